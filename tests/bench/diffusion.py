"""The U-Net of samples/networks_diffusion.c, for nets.py and for tests/golden/make_diffusion.py: modules in the same
order, so that one seed gives the same initial values."""

import math

import torch
from torch import nn
from torch.nn import functional as F

GROUPS, HEADS, EMBEDDED = 8, 4, 4


class Residual(nn.Module):
    def __init__(self, cin, cout, features):
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(features, cout)
        self.norm2 = nn.GroupNorm(GROUPS, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.shortcut = nn.Identity() if cin == cout else nn.Conv2d(cin, cout, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.shortcut(x)


def attend(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v)
    return (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        setattr(self, "in", nn.Conv2d(channels, 3 * channels, 1))
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        qkv = getattr(self, "in")(self.norm(x)).flatten(2)
        q, k, v = qkv.unflatten(1, (3 * HEADS, x.size(1) // HEADS)).transpose(2, 3).chunk(3, 1)
        return x + self.out(attend(q, k, v).transpose(2, 3).reshape(x.shape))


class Level(nn.Module):
    def __init__(self, cin, width, depth, features):
        super().__init__()
        self.depth = depth
        self.before = Residual(cin, width, features)
        if depth == 0:
            self.attention = Attention(width)
        else:
            self.down = nn.Conv2d(width, width, 3, 2, 1)
            self.inner = Level(width, 2 * width, depth - 1, features)
            self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 3, padding=1))
        self.after = Residual(2 * width if depth else width, width, features)

    def forward(self, x, time):
        x = self.before(x, time)
        if self.depth == 0:
            return self.after(self.attention(x), time)
        return self.after(torch.cat((x, self.up(self.inner(self.down(x), time))), 1), time)


class UNet(nn.Module):
    def __init__(self, channels, width, depth, classes):
        super().__init__()
        features = EMBEDDED * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, features), nn.SiLU(), nn.Linear(features, features))
        self.classes = nn.Embedding(classes + 1, features)
        setattr(self, "in", nn.Conv2d(channels, width, 3, padding=1))
        self.levels = Level(width, width, depth, features)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def waves(self, t, dtype):
        half = self.width // 2
        angles = t.to(dtype)[:, None] * torch.exp(
            torch.arange(half, dtype=dtype, device=t.device) * (-math.log(10000) / half)
        )
        return torch.cat((angles.sin(), angles.cos()), 1)

    def forward(self, x, t, classes):
        time = F.silu(self.time(self.waves(t, x.dtype)) + self.classes(classes))
        return self.out(F.silu(self.norm(self.levels(getattr(self, "in")(x), time))))
