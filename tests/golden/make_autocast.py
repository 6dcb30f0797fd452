"""Writes autocast.golden: networks of make_nn.py under torch.autocast("cpu", dtype=torch.bfloat16).

First loss and gradients, and the losses of 20 steps, with and without autocast. CPU autocast keeps losses
in f32 as CUDA's does. Batch normalisation of bf16 keeps f32 parameters there as well.
"""

import torch
from torch import nn

from golden import Golden
from make_nn import NETWORKS, STEPS


def step(network, x, target, autocast):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = network(x)
        loss = nn.functional.cross_entropy(output, target)
    assert loss.dtype == torch.float32
    assert output.dtype == (torch.bfloat16 if autocast else torch.float32)
    return loss


def curve(file, prefix, name, autocast):
    make, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    network = make()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    x = torch.randn(shape)
    target = torch.randint(0, classes, (shape[0],))
    losses = []
    for number in range(STEPS):
        loss = step(network, x, target, autocast)
        optimizer.zero_grad()
        loss.backward()
        if number == 0:
            for path, parameter in network.named_parameters():
                assert parameter.grad.dtype == torch.float32
                file.add(f"{prefix}/gradient/{path}", parameter.grad)
        optimizer.step()
        losses.append(loss.item())
    file.add(f"{prefix}/losses", torch.tensor(losses))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("autocast.golden") as golden:
        for name in NETWORKS:
            curve(golden, f"{name}/bf16", name, True)
            curve(golden, f"{name}/f32", name, False)
