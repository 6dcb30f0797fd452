"""Writes ddp.golden: five steps of DistributedDataParallel over gloo, on 1, 2 and 3 ranks.

The network is Linear(10, 10), ReLU, Linear(10, 5) after manual_seed(42). Rank r draws its input (20, 10) and
then its labels (20, 5) from a generator seeded with 1000 + r. MSE, SGD with a rate of 0.001. "parameters/N" has all
parameters of N ranks after the steps, in the order of registration; "losses/N" (N, 5) each rank's losses.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from golden import Golden

STEPS = 5


def train(rank, size, store, result):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    torch.manual_seed(42)
    net = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    generator = torch.Generator().manual_seed(1000 + rank)
    x = torch.randn(20, 10, generator=generator)
    y = torch.randn(20, 5, generator=generator)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    all_losses = [None] * size
    dist.all_gather_object(all_losses, losses)
    if rank == 0:
        parameters = torch.cat([p.detach().flatten() for p in net.parameters()])
        torch.save((parameters, torch.tensor(all_losses)), result)
    dist.destroy_process_group()


def main():
    with Golden("ddp.golden") as g, tempfile.TemporaryDirectory() as directory:
        for size in (1, 2, 3):
            result = os.path.join(directory, f"result{size}")
            mp.spawn(train, (size, os.path.join(directory, f"store{size}"), result), size)
            parameters, losses = torch.load(result)
            g.add(f"parameters/{size}", parameters)
            g.add(f"losses/{size}", losses)


if __name__ == "__main__":
    main()
