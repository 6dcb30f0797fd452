"""Writes gan.golden: critics of Wasserstein GANs with gradient penalties, trained for five steps from a seed.

The tests seed the generator with the same number, build the same critic, draw the same real and fake images,
and train: nothing is copied over. "kind/norm/dtype/" has losses and penalties (unweighted, one per step), the
gradients of the first step and the parameters after the last, each as one vector in the order of the
parameters, and for batch normalisation the running statistics.
"""

import torch
from torch import nn

from golden import Golden

# With it no gradient is nearly 0, of which Adam would make steps of full size in either direction, and norms of
# gradients lie on both sides of 1.
SEED = 159
STEPS = 5
IMAGES = (6, 2, 8, 8)
WEIGHT = 10

NORMS = {
    "none": lambda c: nn.Identity(),
    "layer": lambda c: nn.GroupNorm(1, c),
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True),
    "batch": lambda c: nn.BatchNorm2d(c),
}


def make_critic(norm, dtype):
    # A bias that the normalisation cancels has rounding noise for a gradient, which Adam makes steps of.
    bias = norm in ("none", "layer")
    critic = nn.Sequential(
        nn.Conv2d(2, 4, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(4, 6, 4, stride=2, padding=1, bias=bias), NORMS[norm](6), nn.LeakyReLU(0.2),
        nn.Conv2d(6, 1, 2),
    )
    # So that norms of gradients are about 1.
    with torch.no_grad():
        critic[5].weight.mul_(11 if norm == "none" else 1.5)
    return critic.to(dtype)


def points(real, fake, kind):
    if kind == "r1":
        return real
    if kind == "dragan":
        beta = torch.rand_like(real)
        fake = real + 0.5 * real.std() * beta
    alpha = torch.rand([real.size(0)] + [1] * (real.dim() - 1), dtype=real.dtype)
    return real + alpha * (fake - real)


def penalty(critic, real, fake, kind):
    x = points(real, fake, kind).detach().requires_grad_(True)
    outputs = critic(x)
    gradient, = torch.autograd.grad(outputs, x, torch.ones_like(outputs), create_graph=True)
    norm = gradient.reshape(gradient.size(0), -1).norm(2, dim=1)
    if kind == "r1":
        return (norm ** 2).mean()
    excess = norm - 1
    if kind == "wgan_lp":
        excess = torch.relu(excess)
    return (excess ** 2).mean()


def vector(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def train(file, kind, norm, dtype):
    torch.manual_seed(SEED)
    critic = make_critic(norm, dtype)
    real = torch.randn(IMAGES, dtype=dtype)
    fake = torch.randn(IMAGES, dtype=dtype) * 0.5
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.9))
    losses, penalties, gradients = [], [], None
    for _ in range(STEPS):
        p = penalty(critic, real, fake, kind)
        loss = critic(fake).mean() - critic(real).mean() + WEIGHT * p
        optimizer.zero_grad()
        loss.backward()
        if gradients is None:
            gradients = vector(q.grad for q in critic.parameters())
        optimizer.step()
        losses.append(loss.detach())
        penalties.append(p.detach())
    prefix = f"{kind}/{norm}/{'f64' if dtype == torch.float64 else 'f32'}"
    file.add_all(prefix, losses=torch.stack(losses), penalties=torch.stack(penalties),
                 gradients=gradients, parameters=vector(critic.parameters()))
    if norm == "batch":
        file.add(f"{prefix}/running", vector([critic[3].running_mean, critic[3].running_var]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("gan.golden") as golden:
        for kind in ("wgan_gp", "wgan_lp", "dragan", "r1"):
            for norm in NORMS:
                for dtype in (torch.float64, torch.float32):
                    train(golden, kind, norm, dtype)
