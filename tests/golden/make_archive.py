"""Writes python_archive.safetensors, a checkpoint of PyTorch's by Python's safetensors library, and
archive.golden, what the network gives and how it trains on from there; and has the library read
evenkeel_archive.safetensors, which tests/unit/archive/test_archive_python.c writes and compares byte for byte.

    python3 -m pip install --target /tmp/st 'safetensors>=0.8'
    PYTHONPATH=/tmp/st python3 make_archive.py

After a change of what is put in the test, it leaves the file that it wrote where EVENKEEL_GOLDEN_WRITE says:
EVENKEEL_GOLDEN_WRITE=evenkeel_archive.safetensors build/tests/test_archive_python
"""

import ctypes
import pathlib
import sys

import torch
from torch import nn

try:
    from safetensors import TensorSpec, deserialize, serialize_file
except ImportError:
    print("safetensors 0.8 is not installed: python_archive.safetensors stays as it is")
    sys.exit(0)

from golden import Golden

here = pathlib.Path(__file__).resolve().parent
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.uint8: "uint8"}


def write(path, tensors, metadata):
    buffers = {}
    specs = {}
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().numpy().tobytes()
        buffers[name] = ctypes.create_string_buffer(data, len(data))
        specs[name] = TensorSpec(dtype=NAMES[tensor.dtype], shape=list(tensor.shape), data_len=len(data),
                                 data_ptr=ctypes.addressof(buffers[name]))
    serialize_file(specs, str(path), metadata=metadata)


def checkpoint():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    x = torch.randn(3, 2, 5, 5)

    def step():
        loss = network(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        step()
    tensors = {f"model.module.{name}": tensor.clone() for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        state = optimizer.state[parameter]
        tensors[f"optimizer.{name}.steps"] = torch.tensor(int(state["step"]))
        tensors[f"optimizer.{name}.exp_avg"] = state["exp_avg"].clone()
        tensors[f"optimizer.{name}.exp_avg_sq"] = state["exp_avg_sq"].clone()
    tensors["optimizer.lr"] = torch.tensor([optimizer.param_groups[0]["lr"]], dtype=torch.float64)
    write(here / "python_archive.safetensors", tensors, {"format": "pt"})
    with Golden("archive.golden") as golden:
        golden.add("x", x)
        network.eval()
        golden.add("y", network(x))
        network.train()
        golden.add("losses", torch.tensor([step() for _ in range(3)], dtype=torch.float64))


checkpoint()
written = here / "evenkeel_archive.safetensors"
if written.exists():
    dtypes = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "U8": torch.uint8}
    read = dict(deserialize(written.read_bytes()))
    tensors = {}
    for name, t in read.items():
        empty = torch.empty(t["shape"], dtype=dtypes[t["dtype"]])
        data = bytearray(t["data"])
        tensors[name] = torch.frombuffer(data, dtype=empty.dtype).reshape(t["shape"]) if data else empty
    assert tensors["step"].item() == 2**53 + 1
    assert tensors["model.1.num_batches_tracked"].shape == ()
    torch.manual_seed(11)  # the same generator: the network is PyTorch's to the bit
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensors[f"model.{name}"], tensor), name
    torch.set_rng_state(tensors["own"])
    assert tensors["drawn"].item() == torch.randint(2**31, ()).item() % 2**31
    again = here / "again.safetensors"
    write(again, tensors, {"note": "made by Evenkeel"})
    same = again.read_bytes() == written.read_bytes()
    again.unlink()
    assert same, "the library writes other bytes"
    print("evenkeel_archive.safetensors: read; the library writes the same bytes")
