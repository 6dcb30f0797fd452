"""Re-identification as samples/networks_reid.c builds it, for nets.py and for tests/golden/make_reid.py: modules in
the same order, so that equal seeds give equal parameters.
"""

import torch
from torch import nn
from torch.nn import functional as F


def convolution(cin, cout, kernel, stride=1):
    return nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.norm1 = convolution(cin, cout, 3, stride), nn.BatchNorm2d(cout)
        self.conv2, self.norm2 = convolution(cout, cout, 3), nn.BatchNorm2d(cout)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.AvgPool2d(stride), convolution(cin, cout, 1), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Network(nn.Module):
    """Of one block in each of three stages; in training."""

    def __init__(self, width, features, identities):
        super().__init__()
        self.trunk = nn.Sequential(
            convolution(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, features),
        )  # fmt: skip
        self.neck = nn.BatchNorm1d(features)
        self.classifier = nn.Linear(features, identities, bias=False)

    def forward(self, x):
        features = self.trunk(x)
        return features, self.classifier(self.neck(features))


def batch_hard(features, identities, margin):
    distances = torch.cdist(features, features)
    same = identities.unsqueeze(0) == identities.unsqueeze(1)
    itself = torch.eye(len(identities), dtype=torch.bool, device=features.device)
    furthest = distances.masked_fill(~(same & ~itself), -torch.inf).amax(1)
    nearest = distances.masked_fill(same, torch.inf).amin(1)
    return F.relu(furthest - nearest + margin).mean()
