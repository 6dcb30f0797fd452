"""The twin of bench_loader.c in PyTorch.

    loader.py IMAGES LABELS BATCH WORKERS [SECONDS]

Prints "WORKERS MEDIAN_SAMPLES_PER_SECOND PASSES SUM"; without arguments but --version, PyTorch's version.
"""

import gzip
import statistics
import sys
import time

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

LINE = 64


def read_idx(path):
    with (gzip.open if path.endswith(".gz") else open)(path) as file:
        data = file.read()
    ndim = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim)]
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * ndim).reshape(shape).copy())


def look_at(tensor):
    """The sum of a byte in each line of its memory."""
    return int(tensor.numpy().reshape(-1).view(numpy.uint8)[::LINE].sum(dtype=numpy.uint64))


def run_pass(loader):
    total, samples = 0, 0
    for images, labels in loader:
        total += look_at(images) + look_at(labels)
        samples += len(labels)
    return total, samples


def main(images, labels, batch, workers, seconds="1"):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(read_idx(images), read_idx(labels).long())
    loader = DataLoader(data, batch_size=int(batch), shuffle=True, num_workers=int(workers))
    total, _ = run_pass(loader)  # warms up
    rates, begin = [], time.perf_counter()
    while not rates or time.perf_counter() - begin < float(seconds):
        before = time.perf_counter()
        _, samples = run_pass(loader)
        rates.append(samples / (time.perf_counter() - before))
    print(workers, f"{statistics.median(rates):.0f}", len(rates), total)


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print(f"PyTorch {torch.__version__}")
    else:
        main(*sys.argv[1:])
