"""Writes reid.golden: a network of re-identification trained for twenty steps, from a seed.

The tests seed the generator with the same number, build the same network, draw the same pictures, and train: nothing
is copied over. "losses" and "triplets" are of a training with cross entropy and batch-hard triplets; "hard/" has such a
loss with its gradient.
"""

import os
import sys

import torch
from torch.nn import functional as F

from golden import Golden

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from reid import Network  # noqa: E402

SEED, STEPS, SIDE = 7, 20, 8
WIDTH, FEATURES, IDENTITIES = 4, 8, 6
OF = torch.tensor([0, 1, 1, 2, 0, 2, 3, 3, 4, 0])  # one is alone
MARGIN, TRIPLET, SMOOTHING = 5.0, 0.7, 0.1
RISING, FALLS, GAMMA = 4, (12, 17), 0.2


def batch_hard(features, identities):
    """Example by example, as the paper has it."""
    losses = []
    for i, identity in enumerate(identities):
        distances = (features[i] - features).square().sum(1)
        same = identities == identity
        others = same & (torch.arange(len(identities)) != i)
        if others.any() and not same.all():
            losses.append(F.relu(MARGIN + distances[others].max().sqrt() - distances[~same].min().sqrt()))
        else:
            losses.append(features.new_zeros(()))
    return torch.stack(losses).mean()


def rate(step):
    if step < RISING:
        return 0.01 + 0.99 * step / RISING
    return GAMMA ** sum(step >= fall for fall in FALLS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = Network(WIDTH, FEATURES, IDENTITIES).double()
    x = torch.randn(len(OF), 1, SIDE, SIDE).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses, triplets = [], []
    for _ in range(STEPS):
        features, logits = model(x)
        triplet = batch_hard(features, OF)
        loss = F.cross_entropy(logits, OF, label_smoothing=SMOOTHING) + TRIPLET * triplet
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        triplets.append(triplet.detach())
    with Golden("reid.golden") as golden:
        golden.add("losses", torch.stack(losses))
        golden.add("triplets", torch.stack(triplets))
        for name, of in (("hard", OF), ("same", OF * 0), ("alone", torch.arange(len(OF)))):
            features = torch.randn(len(of), 3).double().requires_grad_()
            loss = batch_hard(features, of)
            gradient = torch.autograd.grad(loss, features)[0] if loss.requires_grad else torch.zeros_like(features)
            golden.add_all(name, features=features, identities=of, loss=loss, gradient=gradient)
