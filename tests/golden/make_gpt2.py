"""Writes gpt2.golden: a small GPT-2, built from a seed: names, initial values, outputs, gradients, losses; and its
weights in two files: pth/gpt2.pth, as an old file of a model with a head, and gpt2.safetensors, as Python's
safetensors library writes a new one.

    python3 -m pip install --target /tmp/st 'safetensors>=0.8'
    PYTHONPATH=/tmp/st python3 make_gpt2.py
"""

import pathlib

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from golden import Golden
from gpt2 import Gpt2

SMALL = dict(vocabulary=19, context=10, width=12, layers=3, heads=2)

with Golden("gpt2.golden") as file:
    torch.manual_seed(7)
    net = Gpt2(**SMALL)
    lines = [" ".join([name, *map(str, p.shape)]) for name, p in net.named_parameters()]
    file.add("names", torch.tensor(list("\n".join(lines).encode()), dtype=torch.uint8))
    file.add("sums", torch.stack([p.detach().double().abs().sum() for p in net.parameters()]))
    net = net.double().eval()
    with torch.no_grad():
        for p in net.parameters():  # weights at which a slip is seen: of deviation 0.02, all logits are nearly 0
            p.add_(0.3 * torch.randn(p.shape, dtype=torch.float64))
    tokens = torch.randint(19, (2, 10))
    file.add("tokens", tokens)
    y = net(tokens)
    file.add("y", y)
    loss = F.cross_entropy(y[:, :-1].reshape(-1, 19), tokens[:, 1:].reshape(-1))
    loss.backward()
    for name, p in net.named_parameters():
        file.add(f"gradient/{name}", p.grad)

    # With dropout, by AdamW.
    torch.manual_seed(8)
    net = Gpt2(**SMALL, dropout=0.2).double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(20):
        tokens = torch.randint(19, (4, 9))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(tokens[:, :-1]).reshape(-1, 19), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    file.add("losses", torch.tensor(losses, dtype=torch.float64))

    # Files: f32 weights, and what they give in f64.
    torch.manual_seed(9)
    net = Gpt2(**SMALL).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    weights = net.state_dict()
    here = pathlib.Path(__file__).resolve().parent
    save_file(weights, here / "gpt2.safetensors", metadata={"format": "pt"})
    old = {f"transformer.{name}": weight for name, weight in weights.items()}
    for i in range(SMALL["layers"]):
        old[f"transformer.h.{i}.attn.bias"] = torch.ones(10, 10).tril().view(1, 1, 10, 10)
        old[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = weights["wte.weight"]
    torch.save(old, here / "pth" / "gpt2.pth")
    tokens = torch.randint(19, (3, 10))
    file.add("files/tokens", tokens)
    file.add("files/y", net.double()(tokens))
