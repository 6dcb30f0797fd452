r"""Writes pth/tied.pth, the state of a network with tied weights, a module in two places, a new last layer and a first
convolution of one channel, and tied.golden: what the network gives, its gradients, and how it trains; and has PyTorch
load evenkeel_tied.safetensors, strictly, which tests/unit/archive/test_archive_python.c writes and compares byte for
byte.

    python3 -m pip install --target /tmp/st 'safetensors>=0.8'
    PYTHONPATH=/tmp/st python3 make_tied.py

The test leaves the file where EVENKEEL_GOLDEN_WRITE says:
CK_RUN_CASE=tied_weights_of_pytorch_go_both_ways EVENKEEL_GOLDEN_WRITE=evenkeel_tied.safetensors \
    build/tests/test_archive_python
"""

import pathlib

import torch
from torch import nn
from torch.nn import functional as F

from golden import Golden

here = pathlib.Path(__file__).resolve().parent


class Tied(nn.Module):
    """The next byte's logits from a byte and a picture of one channel."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6))
        self.encoder = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.again = self.body
        self.decoder = nn.Linear(6, 11)
        self.decoder.weight = self.encoder.weight
        self.body[2] = nn.Linear(6, 6)
        self.stem[0].weight = nn.Parameter(torch.randn(6, 1, 3, 3))

    def forward(self, picture, byte):
        x = self.stem(picture).mean((2, 3)) + self.encoder(byte)
        return self.decoder(self.again(self.body(x)))


torch.manual_seed(3)
net = Tied()
torch.save(net.state_dict(), here / "pth" / "tied.pth")
net.double()
picture, byte, target = torch.rand(5, 1, 7, 7, dtype=torch.float64), torch.randint(11, (5,)), torch.randint(11, (5,))
with Golden("tied.golden") as file:
    file.add("picture", picture)
    file.add("byte", byte)
    file.add("target", target)
    net.eval()
    expected = net(picture, byte)
    file.add("y", expected)
    net.train()
    F.cross_entropy(net(picture, byte), target).backward()
    file.add("names", torch.tensor(list("\n".join(name for name, _ in net.named_parameters()).encode()), dtype=torch.uint8))
    for name, p in net.named_parameters():
        file.add(f"gradient/{name}", p.grad)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(picture, byte), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    file.add("losses", torch.tensor(losses, dtype=torch.float64))

written = here / "evenkeel_tied.safetensors"
try:
    from safetensors.torch import load_file
except ImportError:
    print("safetensors is not installed: evenkeel_tied.safetensors is not read")
else:
    if written.exists():
        other = Tied()
        other.load_state_dict(load_file(written), strict=True)
        assert other.decoder.weight is other.encoder.weight
        assert torch.equal(other.double().eval()(picture, byte), expected)
        print("evenkeel_tied.safetensors: PyTorch loads it strictly")
