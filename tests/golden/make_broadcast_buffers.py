"""Writes broadcast_buffers.golden: running means of a batch norm under data parallelism, as PyTorch's.

Two ranks, one fed zeros, the other ones, are simulated in one process: at the start of every forward
the second rank's buffers become copies of the first's (broadcast) or stay (kept), or both ranks see the
statistics of the whole batch (sync). "case" (3 or 4, 2, 5) has the means per rank inside the first
forward, after it, and inside the second; "extra" has one forward more before that. "sync_loss" is the
mean of the ranks' squared sums; in the other cases it is rounding noise.
"""

import copy

import torch

from golden import Golden

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def means(ranks):
    return torch.stack([rank[1].running_mean.clone() for rank in ranks])


def broadcast_buffers(ranks):
    for name in BUFFERS:
        getattr(ranks[1][1], name).copy_(getattr(ranks[0][1], name))


def forward(ranks, parts, case):
    """One forward of both ranks; returns the means that the modules see at its start."""
    if case != "kept":
        broadcast_buffers(ranks)
    inside = means(ranks)
    if case == "sync":
        whole = torch.cat([rank[0](part) for rank, part in zip(ranks, parts)])
        ranks[0][1](whole)
        broadcast_buffers(ranks)
    else:
        for rank, part in zip(ranks, parts):
            rank(part)
    return inside


def main():
    parts = [torch.zeros(7, 3, 5, 5), torch.ones(7, 3, 5, 5)]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.BatchNorm2d(5))
    with Golden("broadcast_buffers.golden") as g, torch.no_grad():
        for case, forwards in {"broadcast": 1, "kept": 1, "sync": 1, "extra": 2}.items():
            ranks = [copy.deepcopy(net) for _ in range(2)]
            seen = []
            for _ in range(forwards):
                seen += [forward(ranks, parts, case), means(ranks)]
            # Backward and the optimizer's step change no buffer; the next forward sends them.
            seen.append(forward(ranks, parts, case))
            g.add(case, torch.stack(seen))
        sums = net.double()(torch.cat(parts).double()).view(2, -1).sum(1)
        g.add("sync_loss", sums.square().mean())


main()
