"""Writes collectives.golden: torch.distributed's collectives over gloo, on 2 and 3 ranks.

"input/TYPE/N" (N, COUNT) has a row for each rank. Outcomes of SUM, PRODUCT, MIN and MAX are those of all_reduce, on
every rank. "reduce" (to the last rank), "broadcast" and "scatter" (from the last rank) have a row for each rank, "gather"
and "all_gather" for each rank that gave it, as the last rank got them.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from golden import Golden

COUNT = 17
TYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "u8": torch.uint8}
OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def inputs(name, size):
    generator = torch.Generator().manual_seed(size)
    if TYPES[name].is_floating_point:
        return torch.randn(size, COUNT, generator=generator, dtype=TYPES[name])
    low, high = (0, 256) if name == "u8" else (-(2**40), 2**40)
    return torch.randint(low, high, (size, COUNT), generator=generator).to(TYPES[name])


def all_rows(row, size):
    rows = [torch.empty_like(row) for _ in range(size)]
    dist.all_gather(rows, row)
    return torch.stack(rows)


def run(rank, size, store, result):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    last = size - 1
    out = {}
    for name in TYPES:
        given = inputs(name, size)
        for op in OPS:
            x = given[rank].clone()
            dist.all_reduce(x, op=OPS[op])
            out[f"{op}/{name}/{size}"] = x
        x = given[rank].clone()
        dist.reduce(x, last)
        rows = all_rows(x, size)
        rows[:last] = given[:last]  # gloo leaves partial sums there
        out[f"reduce/{name}/{size}"] = rows
        x = given[rank].clone()
        dist.broadcast(x, last)
        out[f"broadcast/{name}/{size}"] = all_rows(x, size)
        dist.scatter(x, list(given) if rank == last else None, last)
        out[f"scatter/{name}/{size}"] = all_rows(x, size)
        rows = [torch.empty_like(x) for _ in range(size)]
        dist.gather(given[rank].clone(), rows if rank == last else None, last)
        out[f"gather/{name}/{size}"] = torch.stack(rows)
        out[f"all_gather/{name}/{size}"] = all_rows(given[rank].clone(), size)
    if rank == last:
        torch.save(out, result)
    dist.destroy_process_group()


def main():
    with Golden("collectives.golden") as g, tempfile.TemporaryDirectory() as directory:
        for size in (2, 3):
            result = os.path.join(directory, f"result{size}")
            mp.spawn(run, (size, os.path.join(directory, f"store{size}"), result), size)
            for name in TYPES:
                g.add(f"input/{name}/{size}", inputs(name, size))
            for name, tensor in torch.load(result).items():
                g.add(name, tensor)


if __name__ == "__main__":
    main()
