"""The networks of nets.c in PyTorch, with the losses and optimizers they are trained with. train.py times them."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import diffusion
import reid
import stylegan


class Residual(nn.Module):
    """A body that makes `cout` channels of `cin`, and its shortcut."""

    def __init__(self, body, cin, cout, stride):
        super().__init__()
        self.body = body
        if stride == 1 and cin == cout:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def residual(cin, cout, stride):
    body = nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
        nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout),
    )  # fmt: skip
    return Residual(body, cin, cout, stride)


def bottleneck(cin, width, stride):
    body = nn.Sequential(
        nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
    )  # fmt: skip
    return Residual(body, cin, 4 * width, stride)


def two_convolutions(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
        nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
    )  # fmt: skip


class UNetLevel(nn.Module):
    def __init__(self, cin, width, depth):
        super().__init__()
        self.before = two_convolutions(cin, width)
        self.inner = nn.Sequential(
            nn.MaxPool2d(2), unet_levels(width, 2 * width, depth - 1),
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )  # fmt: skip
        self.after = two_convolutions(2 * width, width)

    def forward(self, x):
        skipped = self.before(x)
        return self.after(torch.cat((skipped, self.inner(skipped)), 1))


def unet_levels(cin, width, depth):
    return UNetLevel(cin, width, depth) if depth else two_convolutions(cin, width)


def mlp():
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


def mnist():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def resnet18():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        residual(64, 64, 1), residual(64, 64, 1), residual(64, 128, 2), residual(128, 128, 1),
        residual(128, 256, 2), residual(256, 256, 1), residual(256, 512, 2), residual(512, 512, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def resnet50():
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    cin = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(bottleneck(cin, 64 << stage, 2 if stage > 0 and i == 0 else 1))
            cin = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg11():
    """With batch normalisation; without dropout, so that losses can be compared."""
    layers, cin = [], 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(cin, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
            cin = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def unet(channels=3, width=32, depth=4):
    return nn.Sequential(unet_levels(channels, width, depth), nn.Conv2d(width, 11, 1))


def unet_of_scenes():
    return unet(1, 16, 3)


def entropy_and_dice(logits, target):
    right = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(torch.float32)
    found = logits.float().softmax(1)
    both, labels = (found * right).sum((2, 3)), right.sum((2, 3))
    dice = (2 * both + 1) / (found.sum((2, 3)) + labels + 1)
    has = labels.clamp(0, 1)
    return F.cross_entropy(logits, target) + 1 - ((dice * has).sum(1) / has.sum(1).clamp(min=1)).mean()


def dcgan():
    def up(cin, cout, stride, padding):
        return nn.Sequential(
            nn.ConvTranspose2d(cin, cout, 4, stride, padding, bias=False), nn.BatchNorm2d(cout),
            nn.ReLU(),
        )  # fmt: skip

    return nn.Sequential(
        up(100, 512, 1, 0), up(512, 256, 2, 1), up(256, 128, 2, 1), up(128, 64, 2, 1),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def segmentation(width=32):
    def stage(cin, cout, stride):
        return nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU()
        )

    return nn.Sequential(
        stage(1, width, 2), stage(width, 2 * width, 2), stage(2 * width, 2 * width, 1),
        stage(2 * width, 4 * width, 2), stage(4 * width, 4 * width, 1),
        stage(4 * width, 6 * width, 1), nn.Conv2d(6 * width, 11, 1),
    )  # fmt: skip


def upsampled_cross_entropy(logits, target):
    logits = F.interpolate(logits, target.shape[1:], mode="bilinear", align_corners=True)
    return F.cross_entropy(logits, target, ignore_index=255)


def critic(norm=None, width=64):
    def down(cin, cout, norm):
        middle = [norm(cout)] if norm else []
        return [nn.Conv2d(cin, cout, 4, 2, 1), *middle, nn.LeakyReLU(0.2)]

    return nn.Sequential(
        *down(1, width, None), *down(width, 2 * width, norm), *down(2 * width, 4 * width, norm),
        nn.Conv2d(4 * width, 1, 4),
    )  # fmt: skip


class Projection(nn.Module):
    """x w + b, for w (in, out)."""

    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cin, cout))
        self.bias = nn.Parameter(torch.zeros(cout))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).view(*x.shape[:2], -1)


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Projection(width, 3 * width), "c_proj": Projection(width, width)})
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": Projection(width, 4 * width), "c_proj": Projection(4 * width, width)})

    def attend(self, q, k, v):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1) @ v

    def forward(self, x):
        heads = self.attn["c_attn"](self.ln_1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.attn["c_proj"](self.attend(*heads).transpose(1, 2).flatten(2))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, words, context, width, layers, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(GptLayer(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        return F.linear(self.ln_f(self.h(x)), self.wte.weight)


def gpt():
    return Gpt(256, 128, 128, 4, 4)


def gpt2():
    return Gpt(50257, 1024, 768, 12, 12)


def critic_with_layer_norm():
    return critic(lambda channels: nn.GroupNorm(1, channels))


class StyleCritic(stylegan.Critic):
    broadcast_buffers = False  # its filters never change

    def __init__(self):
        super().__init__(16)


class StyleGenerator(stylegan.Generator):
    """Takes latents and noise in one row."""

    broadcast_buffers = False

    def __init__(self):
        super().__init__(16, 64)

    def forward(self, x, direction=None):
        z, noise = x[:, :128].unflatten(1, (2, 64)), x[:, 128:]
        return super().forward(z, torch.full((len(x),), 4, device=x.device), noise, direction)


class Diffusion(diffusion.UNet):
    """At one step and with one class."""

    def __init__(self):
        super().__init__(1, 16, 2, 10)

    def forward(self, x):
        count = (len(x),)
        return super().forward(x, torch.full(count, 500, device=x.device), torch.full(count, 3, device=x.device))


class Words(nn.Module):
    """letter_network of samples/networks_lstm.c, without dropout."""

    def __init__(self, kind, hidden=192, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(27, 32)
        self.recurrent = kind(32, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 5)

    def forward(self, x):
        return self.head(self.recurrent(self.embedding(x))[0]).transpose(1, 2)


def attention():
    return nn.TransformerEncoderLayer(256, 8, 1024, dropout=0, batch_first=True)


def embedding():
    return nn.Sequential(nn.Embedding(50000, 128), nn.Flatten(), nn.Linear(64 * 128, 10))


def supervised(criterion):
    def loss(model, x, target, rank, devices):
        return criterion(model(x), target)

    return loss


def reid_losses(model, x, target, rank, devices):
    features, logits = model(x)
    return F.cross_entropy(logits, target, label_smoothing=0.1) + reid.batch_hard(features.float(), target, 0.3)


def wgan_gp(model, real, fake, rank, devices):
    d_fake, d_real = model(fake), model(real)
    a = torch.rand(len(real) * devices, 1, 1, 1).chunk(devices)[rank].to(real.device)
    x = (real + a * (fake - real)).requires_grad_()
    d = model(x)
    (g,) = torch.autograd.grad(d, x, torch.ones_like(d), create_graph=True)
    penalty = ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
    return d_fake.mean() - d_real.mean() + 10 * penalty


def style_scores(model, real, fake, rank, devices):
    return F.softplus(model(fake)).mean() + F.softplus(-model(real)).mean()


def style_r1(model, real, fake, rank, devices):
    loss = style_scores(model, real, fake, rank, devices)
    x = real.detach().requires_grad_()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return loss + 0.05 * g.square().sum((1, 2, 3)).mean()


def style_path(model, x, direction, rank, devices):
    return model(x, direction).square().mean()


def next_token_entropy(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def gentle_momentum(parameters):
    """For nets whose first gradients are so steep that steps of 0.01 would make rounding errors grow."""
    return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=2e-4, betas=(0.5, 0.9))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def clipped(optimizer_of):
    """Clips the gradients to a norm of 1 before each step."""

    def make(parameters):
        parameters = list(parameters)
        optimizer = optimizer_of(parameters)
        step = optimizer.step

        def clip_and_step():
            nn.utils.clip_grad_norm_(parameters, 1.0)
            step()

        optimizer.step = clip_and_step
        return optimizer

    return make


class Tokens(tuple):
    """The shape of inputs that are whole numbers below `count`."""

    def __new__(cls, count, *shape):
        self = super().__new__(cls, shape)
        self.count = count
        return self


LOSSES_OF_GRADIENTS = (wgan_gp, style_r1, style_path)  # their backward goes through another one
ENTROPY = supervised(F.cross_entropy)
IMAGE = (1, 32, 32)
# name: batch, input shape, target shape, classes (0: real numbers), network, loss, optimizer
WORKLOADS = {
    "mlp": (256, (784,), (), 10, mlp, ENTROPY, momentum),
    "mnist": (64, (1, 28, 28), (), 10, mnist, ENTROPY, momentum),
    "resnet18": (32, (3, 32, 32), (), 10, resnet18, ENTROPY, momentum),
    "segmentation": (8, (1, 128, 128), (128, 128), 11, segmentation,
                     supervised(upsampled_cross_entropy), momentum),
    "critic": (32, IMAGE, IMAGE, 0, critic, wgan_gp, adam),
    "critic-layer": (32, IMAGE, IMAGE, 0, critic_with_layer_norm, wgan_gp, adam),
    "resnet50": (8, (3, 224, 224), (), 1000, resnet50, ENTROPY, gentle_momentum),
    "vgg11": (8, (3, 224, 224), (), 1000, vgg11, ENTROPY, gentle_momentum),
    "unet": (8, (3, 128, 128), (128, 128), 11, unet, ENTROPY, momentum),
    "style-critic": (32, IMAGE, IMAGE, 0, StyleCritic, style_scores, adam),
    "style-r1": (32, IMAGE, IMAGE, 0, StyleCritic, style_r1, adam),
    "style-generator": (32, (128 + stylegan.NOISE,), IMAGE, 0, StyleGenerator, supervised(F.mse_loss), adam),
    "style-path": (16, (128 + stylegan.NOISE,), IMAGE, 0, StyleGenerator, style_path, adam),
    "unet-dice": (16, (1, 48, 48), (48, 48), 11, unet_of_scenes, supervised(entropy_and_dice), adamw),
    "dcgan": (64, (100, 1, 1), (3, 64, 64), 0, dcgan, supervised(F.mse_loss), adam),
    "reid": (64, (1, 28, 28), (), 16, lambda: reid.Network(16, 64, 2000), reid_losses, adamw),
    "diffusion": (64, IMAGE, IMAGE, 0, Diffusion, supervised(F.mse_loss), adamw),
    "gpt": (16, Tokens(256, 128), (128,), 256, gpt, supervised(next_token_entropy), adamw),
    "gpt2": (8, Tokens(50257, 1024), (1024,), 50257, gpt2, supervised(next_token_entropy), adamw),
    "lstm": (256, Tokens(27, 16), (16,), 5, lambda: Words(nn.LSTM), ENTROPY, adam),
    "lstm512": (64, Tokens(27, 100), (100,), 5, lambda: Words(nn.LSTM, 512, 2), ENTROPY, adam),
    "gru": (256, Tokens(27, 16), (16,), 5, lambda: Words(nn.GRU), ENTROPY, adam),
    "attention": (8, (128, 256), (128, 256), 0, attention, supervised(F.mse_loss), momentum),
    "embedding": (32, Tokens(50000, 64), (), 10, embedding, ENTROPY, momentum),
}  # fmt: skip


def parse(spelling):
    """(a row of WORKLOADS with the batch, length and optimizer that are asked for, "f32", "tf32", "bf16", "default", or "fast":
    f32 here)"""
    spelled, _, batch = spelling.partition("@")
    unclipped = spelled.removesuffix("-clip")
    name = unclipped.removesuffix("-adam")
    precision = next((word for word in ("bf16", "tf32", "fast", "default") if name.endswith("-" + word)), "f32")
    usual, inputs, targets, *rest, optimizer = WORKLOADS[name.removesuffix("-" + precision)]
    batch, _, length = batch.partition("x")
    if length:
        inputs, targets = Tokens(inputs.count, int(length)), (int(length),)
    if name != unclipped:
        optimizer = adam
    return (int(batch or usual), inputs, targets, *rest, optimizer if unclipped == spelled else clipped(optimizer)), precision
