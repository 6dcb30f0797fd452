"""Has whole ResNet-50 and GPT-2 go both ways between PyTorch and the library, by .pth and by safetensors: names,
shapes, weights to the bit, outputs in f64. By hand, because of their size (1.5 GB of files):

    cmake --build build --target exchange
    python3 -m pip install --target /tmp/st 'safetensors>=0.8'
    PYTHONPATH=/tmp/st python3 tests/golden/exchange.py build/tests/exchange [FOLDER]
"""

import copy
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file, save_file

from gpt2 import Gpt2


def resnet50():
    net = torchvision.models.resnet50().eval()
    with torch.no_grad():  # statistics as after training
        for name, tensor in net.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.fill_(7)
    return net, torch.randn(2, 3, 224, 224, dtype=torch.float64), net.state_dict(), "", 0


def gpt2():
    """As GPT2LMHeadModel saved itself before 2022: every name below "transformer", masks, a head."""
    net = Gpt2().eval()
    with torch.no_grad():  # of deviation 0.02, logits would be nearly equal
        for p in net.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    old = {f"transformer.{name}": weight for name, weight in net.state_dict().items()}
    for i in range(12):
        old[f"transformer.h.{i}.attn.bias"] = torch.ones(1024, 1024, dtype=torch.uint8).tril().view(1, 1, 1024, 1024)
        old[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = net.wte.weight.detach()
    return net, torch.randint(50257, (2, 100)), old, "transformer", 24


def library(program, name, file, below, folder):
    done = subprocess.run(
        [program, name, file, below, folder / "ours.safetensors", folder / "input.npy", folder / "output.safetensors"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return [int(n) for n in done.stdout.split()]


def exchange(program, make, folder):
    torch.manual_seed(1)
    net, x, old, below, masks = make()
    weights = net.state_dict()
    torch.save(old, folder / "theirs.pth")
    save_file(weights, folder / "theirs.safetensors", metadata={"format": "pt"})
    np.save(folder / "input.npy", x.numpy())
    numel = sum(p.numel() for p in net.parameters())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.zero_()
        y = net.double()(x)
    weights = {name: w.float() if w.dtype == torch.float64 else w for name, w in weights.items()}
    for file, name, unexpected in ("theirs.pth", below, masks), ("theirs.safetensors", "", 0):
        report = library(program, make.__name__, folder / file, name, folder)
        assert report == [len(weights), 0, unexpected], report
        ours = load_file(folder / "ours.safetensors")
        assert all(torch.equal(ours[name], w) and ours[name].dtype == w.dtype for name, w in weights.items())
        assert ours.keys() == weights.keys()
        twin.load_state_dict(ours, strict=True)
        with torch.no_grad():
            back = (twin.double()(x) - y).abs().max().item()
            twin.float()
        of = (load_file(folder / "output.safetensors")["y"] - y).norm().item() / y.norm().item()
        print(f"{make.__name__}, {numel} parameters, {file}: {report[0]} tensors; outputs {tuple(y.shape)}: "
              f"relative difference {of:.1e}; PyTorch with the library's file: {back}", flush=True)  # fmt: skip
        assert of <= 1e-10 and back == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as temporary:
        for network in resnet50, gpt2:
            exchange(sys.argv[1], network, pathlib.Path(temporary))
