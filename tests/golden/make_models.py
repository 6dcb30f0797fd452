"""Writes models.golden: torchvision's networks, built from a seed: names, initial values, outputs, losses."""

import torch
import torchvision
from torch.nn import functional as F

from golden import Golden

MODELS = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "resnet34": lambda: torchvision.models.resnet34(num_classes=10),
    "resnet50": lambda: torchvision.models.resnet50(num_classes=10, zero_init_residual=True),
    "resnext50": lambda: torchvision.models.resnet50(num_classes=10, groups=32, width_per_group=4),
}


def describe(net):
    """Lines of a name and sizes, parameters then buffers."""
    lines = []
    for named in net.named_parameters(), net.named_buffers():
        for name, tensor in named:
            lines.append(" ".join([name, *map(str, tensor.shape)]))
    return torch.tensor(list("\n".join(lines).encode()), dtype=torch.uint8)


with Golden("models.golden") as file:
    for name, make in MODELS.items():
        torch.manual_seed(7)
        net = make()
        file.add(f"{name}/names", describe(net))
        file.add(
            f"{name}/sums",
            torch.stack([p.detach().double().abs().sum() for p in net.parameters()]),
        )
        net = net.double()
        x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
        net.eval()
        file.add(f"{name}/y", net(x))

    torch.manual_seed(8)
    net = MODELS["resnet18"]().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9)
    losses = []
    for step in range(20):
        x = torch.randn(8, 3, 32, 32, dtype=torch.float64)
        y = torch.randint(10, (8,))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    file.add("losses", torch.tensor(losses, dtype=torch.float64))
