"""Writes gpt.golden: losses of samples/gpt.c's training, from its seed, with its order of windows, dropout, clipping
and schedule (tests/samples/test_gpt.c has the same text)."""

import math

import torch
from torch.nn import functional as F

from golden import Golden
from gpt2 import Gpt2

CONTEXT, STRIDE, BATCH, STEPS, WARM_UP, RATE, SEED = 8, 16, 5, 20, 4, 0.01, 3

# The text: 12 pieces of 4096 bytes, of which the tenth is held out.
state, text = 1, bytearray()
while len(text) < 12 * 4096:
    state = (1664525 * state + 1013904223) % 2**32
    text.append(ord("a") + (state >> 16) % 3 * (len(text) % 7) % 26)
training = torch.tensor(list(text[: 9 * 4096] + text[10 * 4096 :]))

order = torch.randperm((len(training) - CONTEXT - 1) // STRIDE + 1, generator=torch.Generator().manual_seed(SEED))
torch.manual_seed(SEED)
net = Gpt2(256, CONTEXT, width=12, layers=2, heads=2, dropout=0.2).double()
optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.01)
losses = []
torch.empty((), dtype=torch.int64).random_()  # as a DataLoader does when a pass begins
for step in range(STEPS):
    if step < WARM_UP:
        rate = RATE * (0.01 + 0.99 * step / WARM_UP)
    else:
        rate = RATE / 10 + 0.9 * RATE * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))) / 2
    for group in optimizer.param_groups:
        group["lr"] = rate
    windows = [training[i * STRIDE : i * STRIDE + CONTEXT + 1] for i in order[step * BATCH : (step + 1) * BATCH]]
    tokens = torch.stack(windows)
    loss = F.cross_entropy(net(tokens[:, :-1]).reshape(-1, 256), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())

with Golden("gpt.golden") as file:
    file.add("losses", torch.tensor(losses, dtype=torch.float64))
