"""Writes nn.golden: initial values of layers, and loss curves of whole networks from a seed.

The tests seed the generator with the same number, build the same network, draw the same inputs and train:
nothing is copied over.
"""

import torch
from torch import nn

from golden import Golden

STEPS = 20


def initial_values(file):
    layers = {
        "linear": lambda: nn.Linear(20, 7),
        "linear_no_bias": lambda: nn.Linear(3, 5, bias=False),
        "conv": lambda: nn.Conv2d(3, 8, 3),
        "conv_groups": lambda: nn.Conv2d(4, 6, (3, 2), groups=2),
        "conv_1x1": lambda: nn.Conv2d(5, 4, 1),
    }
    torch.manual_seed(42)  # once: the layers follow each other in one stream
    for name, make in layers.items():
        layer = make()
        file.add(f"initial/{name}/weight", layer.weight)
        if layer.bias is not None:
            file.add(f"initial/{name}/bias", layer.bias)
    for name, function in {
        "kaiming_uniform": lambda t: nn.init.kaiming_uniform_(t, a=0.2),
        "kaiming_normal": lambda t: nn.init.kaiming_normal_(t),
        "xavier_uniform": lambda t: nn.init.xavier_uniform_(t, gain=1.5),
    }.items():
        file.add(f"initial/{name}", function(torch.empty(6, 3, 2, 2)))


def mlp():
    return nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 5)
    )


def convnet():
    # No bias before batch normalisation: its gradient is rounding noise, which Adam makes steps of.
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(16, 4),
    )


NETWORKS = {"mlp": (mlp, (32, 12), 5), "convnet": (convnet, (16, 3, 12, 12), 4)}

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3),
}


def curves(file):
    for name, (make, shape, classes) in NETWORKS.items():
        for optimizer_name, make_optimizer in OPTIMIZERS.items():
            torch.manual_seed(0)
            network = make()
            optimizer = make_optimizer(network.parameters())
            criterion = nn.CrossEntropyLoss()
            losses = []
            x = torch.randn(shape)
            target = torch.randint(0, classes, (shape[0],))
            for _ in range(STEPS):
                loss = criterion(network(x), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            prefix = f"curve/{name}/{optimizer_name}"
            file.add(f"{prefix}/losses", torch.tensor(losses))
            network.eval()
            with torch.no_grad():
                file.add(f"{prefix}/evaluation", network(x))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("nn.golden") as golden:
        initial_values(golden)
        curves(golden)
