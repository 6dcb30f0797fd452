"""Writes diffusion.golden: a diffusion model trained for twenty steps from a seed, as samples/diffusion.c does, and
pictures that the averages of its parameters make by DDIM, with guidance and noise.

The test seeds the generators with the same numbers: nothing is copied over. "left/..." are the shares of pictures that
are left after each noising step.
"""

import math
import os
import sys

import torch
from torch.nn import functional as F

from golden import Golden

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from diffusion import UNet  # noqa: E402

SEED, STEPS, BATCH, WIDTH, DEPTH, CLASSES, SIDE = 5, 20, 5, 8, 2, 10, 32
NOISE_STEPS, DROPOUT, LR, WARM_UP, DECAY, MAX_NORM, AVERAGE = 50, 0.3, 0.002, 6, 0.01, 1.0, 0.9
SAMPLES, SAMPLE_STEPS, ETA, GUIDANCE = 4, 7, 0.5, 1.5
F64 = torch.float64


def cosine(steps):
    def share(t):
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    added = torch.tensor([1 - share(t + 1) / share(t) for t in range(steps)], dtype=F64)
    return (1 - added.clamp(max=0.999)).cumprod(0)


def linear(steps):
    """From 0.0001 to 0.02 with a thousand steps."""
    return (1 - torch.linspace(0.1 / steps, min(20 / steps, 0.999), steps, dtype=F64)).cumprod(0)


def sample(network, left):
    random = torch.Generator().manual_seed(SEED + 2)
    classes = torch.arange(SAMPLES) % CLASSES
    x = torch.empty(SAMPLES, 1, SIDE, SIDE, dtype=F64).normal_(generator=random)
    times = [i * NOISE_STEPS // SAMPLE_STEPS - 1 for i in range(SAMPLE_STEPS + 1)]
    for before, t in reversed(list(zip(times, times[1:]))):
        now, then = left[t], left[before] if before >= 0 else torch.ones((), dtype=F64)
        t = torch.full((SAMPLES,), t)
        of_class, without = network(x, t, classes), network(x, t, torch.full_like(classes, CLASSES))
        noise = without + GUIDANCE * (of_class - without)
        picture = ((x - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-1, 1)
        noise = (x - now.sqrt() * picture) / (1 - now).sqrt()
        sigma = ETA * ((1 - then) / (1 - now) * (1 - now / then)).sqrt()
        x = then.sqrt() * picture + (1 - then - sigma**2).sqrt() * noise
        if before >= 0:
            x = x + sigma * torch.empty_like(x).normal_(generator=random)
    return x


def main():
    torch.manual_seed(SEED)
    network = UNet(1, WIDTH, DEPTH, CLASSES).to(F64)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / (WARM_UP + 1), 1, WARM_UP)
    average = None
    left = cosine(NOISE_STEPS)
    random = torch.Generator().manual_seed(SEED + 1)
    pictures = torch.empty(3 * BATCH, 1, SIDE, SIDE).uniform_(-1, 1, generator=torch.Generator().manual_seed(7)).to(F64)
    classes = torch.arange(3 * BATCH) % CLASSES
    losses = []
    for step in range(STEPS):
        x, c = pictures.chunk(3)[step % 3], classes.chunk(3)[step % 3]
        t = torch.empty(BATCH, dtype=torch.int64).random_(0, NOISE_STEPS, generator=random)
        noise = torch.empty_like(x).normal_(generator=random)
        dropped = torch.empty(BATCH, dtype=torch.int64).bernoulli_(DROPOUT, generator=random)
        kept = left[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(
            network(kept.sqrt() * x + (1 - kept).sqrt() * noise, t, torch.where(dropped != 0, CLASSES, c)), noise
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        values = [p.detach().clone() for p in network.parameters()]
        average = values if average is None else [AVERAGE * a + (1 - AVERAGE) * v for a, v in zip(average, values)]
        losses.append(loss.item())
    with torch.no_grad():
        for p, a in zip(network.parameters(), average):
            p.copy_(a)
        made = sample(network, left)
    with Golden("diffusion.golden") as g:
        g.add("losses", torch.tensor(losses, dtype=F64))
        g.add("samples", made)
        for steps in (30, 1000):
            g.add(f"left/cosine/{steps}", cosine(steps))
            g.add(f"left/linear/{steps}", linear(steps))


torch.set_num_threads(1)
main()
