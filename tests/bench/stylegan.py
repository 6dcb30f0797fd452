"""StyleGAN2 as samples/networks_stylegan.c builds it, for nets.py and for tests/golden/make_stylegan.py: modules in
the same order, so that one seed gives the same initial values."""

import math

import torch
from torch import nn
from torch.nn import functional as F

GROUP, SIDE, LAYERS, NOISE, LEVELS = 4, 32, 8, 16 + 2 * (64 + 256 + 1024), 4
ROOT2 = math.sqrt(2)


def channels(width, level):
    return (4, 4, 2, 1)[level] * width


def make_filter(gain):
    row = torch.tensor([1.0, 3.0, 3.0, 1.0])
    return (gain * torch.outer(row, row) / 64)[None, None]


def resample(filter, x, stride, padding):
    return F.conv2d(x, filter.expand(x.size(1), -1, -1, -1), stride=stride, padding=padding, groups=x.size(1))


class Linear(nn.Module):
    def __init__(self, cin, cout, bias, rate, activated):
        super().__init__()
        gain = ROOT2 if activated else 1
        self.weight_gain, self.bias_gain, self.activated = gain * rate / math.sqrt(cin), gain * rate, activated
        self.weight = nn.Parameter(torch.randn(cout, cin) * (1 / rate))
        self.bias = nn.Parameter(torch.full((cout,), float(bias)))

    def forward(self, x):
        y = F.linear(x, self.weight * self.weight_gain, self.bias * self.bias_gain)
        return F.leaky_relu(y, 0.2) if self.activated else y


class StyleConv(nn.Module):
    def __init__(self, cin, cout, latent, doubled):
        super().__init__()
        self.affine = Linear(latent, cin, 1, 1, False)
        self.weight = nn.Parameter(torch.randn(cout, cin, 3, 3))
        self.bias = nn.Parameter(torch.zeros(cout))
        self.noise_strength = nn.Parameter(torch.zeros(1))
        self.doubled = doubled
        if doubled:
            self.register_buffer("filter", make_filter(4))

    def forward(self, x, w, noise):
        style = self.affine(w)
        x = x * style[:, :, None, None]
        if self.doubled:
            x = F.conv_transpose2d(x, self.weight.transpose(0, 1), stride=2)
            x = resample(self.filter, x, 1, 1)
        else:
            x = F.conv2d(x, self.weight, padding=1)
        norms = F.linear(style.square(), self.weight.square().sum((2, 3)))
        x = x * ((norms + 1e-8).rsqrt() * ROOT2)[:, :, None, None] + noise * (self.noise_strength * ROOT2)
        return F.leaky_relu(x + (self.bias * ROOT2)[:, None, None], 0.2)


class Colour(nn.Module):
    def __init__(self, cin, latent):
        super().__init__()
        self.affine = Linear(latent, cin, 1, 1, False)
        self.weight = nn.Parameter(torch.randn(1, cin, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x, w):
        style = self.affine(w) * (1 / math.sqrt(x.size(1)))
        return F.conv2d(x * style[:, :, None, None], self.weight) + self.bias[:, None, None]


class Synthesis(nn.Module):
    def __init__(self, width, latent):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, channels(width, 0), 4, 4))
        self.register_buffer("filter", make_filter(4))
        self.convolutions, self.colours = nn.ModuleList(), nn.ModuleList()
        for i in range(2 * LEVELS - 1):
            level, doubles = (i + 1) // 2, i % 2 == 1
            cout = channels(width, level)
            cin = channels(width, level - 1) if doubles else cout
            self.convolutions.append(StyleConv(cin, cout, latent, doubles))
            if not doubles:
                self.colours.append(Colour(cout, latent))

    def forward(self, w, noise):
        x, picture, first = self.start.expand(len(w), -1, -1, -1), None, 0
        for i, convolution in enumerate(self.convolutions):
            side = 4 << (i + 1) // 2
            x = convolution(x, w[:, i], noise[:, first : first + side * side].reshape(-1, 1, side, side))
            first += side * side
            if i % 2 == 0:
                own = self.colours[(i + 1) // 2](x, w[:, i + 1])
                if picture is not None:
                    own = F.conv_transpose2d(picture, self.filter, stride=2, padding=1) + own
                picture = own
        return picture


class Mapping(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.layers = nn.Sequential(*(Linear(latent, latent, 0, 0.01, True) for _ in range(4)))

    def forward(self, z):
        return self.layers(z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt())


class Generator(nn.Module):
    def __init__(self, width, latent):
        super().__init__()
        self.mapping = Mapping(latent)
        self.synthesis = Synthesis(width, latent)

    def forward(self, z, cut, noise, direction=None):
        """As stylegan_generator's, but without groups: z (N, 2, latent), cut (N), noise (N, NOISE)."""
        w = self.mapping(z.flatten(0, 1)).unflatten(0, (-1, 2))
        below = torch.arange(LAYERS, device=z.device)[None, :, None] < cut[:, None, None]
        w = torch.where(below, w[:, :1], w[:, 1:])
        pictures = self.synthesis(w, noise)
        if direction is None:
            return pictures
        (gradient,) = torch.autograd.grad((pictures * direction).sum(), w, create_graph=True)
        return (gradient.square().sum(2).mean(1) + 1e-8).sqrt()


class Conv(nn.Module):
    def __init__(self, cin, cout, kernel, halved, activated, gain):
        super().__init__()
        self.gain, self.weight_gain = gain, gain / math.sqrt(cin * kernel * kernel)
        self.kernel, self.halved = kernel, halved
        self.weight = nn.Parameter(torch.randn(cout, cin, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(cout)) if activated else None
        if halved:
            self.register_buffer("filter", make_filter(1))

    def forward(self, x):
        slides = self.kernel > 1
        if self.halved:
            x = resample(self.filter, x, 1 if slides else 2, 2 if slides else 1)
        bias = None if self.bias is None else self.bias * self.gain
        x = F.conv2d(x, self.weight * self.weight_gain, bias, 2 if self.halved and slides else 1,
                     0 if self.halved else self.kernel // 2)  # fmt: skip
        return x if bias is None else F.leaky_relu(x, 0.2)


class CriticBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = Conv(cin, cin, 3, False, True, ROOT2)
        self.conv2 = Conv(cin, cout, 3, True, True, 1)
        self.shortcut = Conv(cin, cout, 1, True, False, 1 / ROOT2)

    def forward(self, x):
        return self.conv2(self.conv1(x)) + self.shortcut(x)


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        most = channels(width, 0)
        self.body = nn.Sequential(
            Conv(1, width, 1, False, True, ROOT2),
            *(CriticBlock(channels(width, level), channels(width, level - 1)) for level in (3, 2, 1)),
        )
        self.conv = Conv(most + 1, most, 3, False, True, ROOT2)
        self.head = nn.Sequential(Linear(16 * most, most, 0, 1, True), Linear(most, 1, 0, 1, False))

    def forward(self, x):
        """Scores (N); N is a multiple of GROUP."""
        x = self.body(x)
        groups = x.reshape(-1, GROUP, x[0].numel())
        variance = (groups - groups.mean(1, keepdim=True)).square().mean(1, keepdim=True)
        deviation = (variance + 1e-8).sqrt().mean(2, keepdim=True)
        deviation = deviation.expand(-1, GROUP, 16).reshape(-1, 1, 4, 4)
        return self.head(self.conv(torch.cat((x, deviation), 1)).flatten(1))[:, 0]
