"""Sets of safetensors files, in Hugging Face's layout: writes python.safetensors.index.json with two parts, which
tests/unit/archive/test_archive_set.c opens; and checks the set run.safetensors.index.json, which
tests/unit/distributed/test_archive_parts.c writes to the byte, by Python's safetensors.

    python3 -m pip install --target /tmp/st 'safetensors>=0.8'
    PYTHONPATH=/tmp/st python3 tests/golden/make_set.py
"""

import json
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).parent / "set"


def write(parts):
    names = [f"python-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    total = 0
    for name, part in zip(names, parts):
        save_file(part, FOLDER / name, metadata={"format": "pt"})
        total += sum(t.numel() * t.element_size() for t in part.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {key: name for name, part in zip(names, parts) for key in sorted(part)},
    }
    (FOLDER / "python.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def read(path):
    """As transformers does: each file of the weight map once."""
    index = json.loads(path.read_text())
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        part = load_file(path.parent / name)
        assert all(index["weight_map"][key] == name for key in part)
        found |= part
    assert set(found) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in found.values())
    return index, found


write([
    {"net.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "net.bias": torch.tensor([7.0, 8.0])},
    {"head.weight": torch.arange(4, dtype=torch.bfloat16).reshape(1, 4), "step": torch.tensor(9)},
])
index, found = read(FOLDER / "run.safetensors.index.json")
assert list(index["metadata"]["hosts"].values()) == ["h1", "h2"]
assert torch.equal(found["0.weight"], torch.arange(6, dtype=torch.float32).reshape(2, 3))
assert torch.equal(found["0.bias"], torch.tensor([10.0, 11.0]))
assert torch.equal(found["1.weight"], torch.tensor([[20.0, 21.0]]))
assert torch.equal(found["1.bias"], torch.tensor([30.0]))
assert found["step"] == 5
with safe_open(FOLDER / index["weight_map"]["step"], "pt") as file:
    assert file.metadata()["note"] == "text"
torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).load_state_dict(
    {key: value for key, value in found.items() if key != "step"}
)
print("all is well")
