"""Writes stylegan.golden: a StyleGAN2 trained for twenty steps from a seed, as samples/stylegan.c does.

The test seeds the generators with the same numbers: nothing is copied over. It has the critic's and the generator's
losses of each step, and R1 penalties, path lengths, and the mean of these, where they are due.
"""

import os
import sys

import torch
from torch.nn import functional as F

from golden import Golden

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from stylegan import GROUP, LAYERS, NOISE, SIDE, Critic, Generator  # noqa: E402

SEED, STEPS, BATCH, WIDTH, LATENT = 5, 20, 8, 2, 8
LR, GAMMA, R1_EVERY, PATH_WEIGHT, PATH_EVERY, MIXING, PATH_DECAY = 0.003, 0.1, 5, 2, 4, 0.9, 0.01
F64 = torch.float64


def draw(count, random):
    groups = (count // GROUP, GROUP)
    z = torch.empty(*groups, 2, LATENT, dtype=F64).normal_(generator=random)
    mixed = torch.empty(groups, dtype=torch.int64).bernoulli_(MIXING, generator=random)
    cut = torch.empty(groups, dtype=torch.int64).random_(1, LAYERS, generator=random)
    noise = torch.empty(*groups, NOISE, dtype=F64).normal_(generator=random)
    return z.flatten(0, 1), torch.where(mixed != 0, cut, LAYERS).flatten(), noise.flatten(0, 1)


def adam(network, every):
    share = every / (every + 1)
    return torch.optim.Adam(network.parameters(), lr=share * LR, betas=(0, 0.99**share))


def forget_masked(network):
    """Parameters that act on a penalty through the slopes of leaky ReLUs alone have a gradient of zeros here and none
    in Evenkeel; Adam skips those without one."""
    for parameter in network.parameters():
        if parameter.grad is not None and not parameter.grad.any():
            parameter.grad = None


def main():
    torch.manual_seed(SEED)
    generator, critic = Generator(WIDTH, LATENT).to(F64), Critic(WIDTH).to(F64)
    of_generator, of_critic = adam(generator, PATH_EVERY), adam(critic, R1_EVERY)
    random = torch.Generator().manual_seed(SEED + 1)
    pictures = torch.empty(3 * BATCH, 1, SIDE, SIDE).uniform_(-1, 1, generator=torch.Generator().manual_seed(7)).to(F64)
    critic_losses, generator_losses, penalties, lengths, path_mean = [], [], [], [], 0.0
    for step in range(STEPS):
        real = pictures.chunk(3)[step % 3]
        with torch.no_grad():
            made = generator(*draw(BATCH, random))
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(made)).mean()
        of_critic.zero_grad(set_to_none=True)
        loss.backward()
        of_critic.step()
        critic_losses.append(loss.item())
        if step % R1_EVERY == 0:
            x = real.clone().requires_grad_()
            (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            penalty = GAMMA / 2 * g.square().sum((1, 2, 3)).mean()
            of_critic.zero_grad(set_to_none=True)
            (penalty * R1_EVERY).backward()
            forget_masked(critic)
            of_critic.step()
            penalties.append(penalty.item())

        critic.requires_grad_(False)
        loss = F.softplus(-critic(generator(*draw(BATCH, random)))).mean()
        of_generator.zero_grad(set_to_none=True)
        loss.backward()
        of_generator.step()
        critic.requires_grad_(True)
        generator_losses.append(loss.item())
        if step % PATH_EVERY == 0:
            seeds = draw(BATCH // 2, random)
            direction = torch.empty(BATCH // 2, 1, SIDE, SIDE, dtype=F64).normal_(generator=random) / SIDE
            length = generator(*seeds, direction)
            path_mean += PATH_DECAY * (length.mean().item() - path_mean)
            of_generator.zero_grad(set_to_none=True)
            (PATH_WEIGHT * PATH_EVERY * (length - path_mean).square().mean()).backward()
            forget_masked(generator)
            of_generator.step()
            lengths.append(length.mean().item())
    with Golden("stylegan.golden") as g:
        for name, values in {
            "critic_losses": critic_losses, "generator_losses": generator_losses, "r1_penalties": penalties,
            "path_lengths": lengths, "path_mean": [path_mean],
        }.items():  # fmt: skip
            g.add(name, torch.tensor(values, dtype=F64))


main()
