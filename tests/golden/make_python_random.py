#!/usr/bin/env python3
"""Writes python_random.golden: draws of Python's `random` and of NumPy's legacy generator.

Per seed: a shuffle of 0..59, then random._randbelow of each bound in turn, three rounds; NumPy's
randint(0, bound) likewise.
"""

import random

import numpy
import torch

from golden import Golden

SEEDS = [0, 1, 42, 1234, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53 - 1, 2**63 - 1, -1, -42, -(2**32) - 7, -(2**63) + 1]
NUMPY_SEEDS = [0, 1, 42, 1234, 2**31, 2**32 - 1]
BOUNDS = [1, 2, 3, 10, 255, 256, 257, 1000003, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 10**12 + 39, 2**53, 2**62 + 1,
          2**63 - 1]
SHUFFLED, ROUNDS = 60, 3


def tensor(values):
    return torch.tensor(values, dtype=torch.int64)


def python_of(seed):
    random.seed(seed)
    shuffled = list(range(SHUFFLED))
    random.shuffle(shuffled)
    below = [random.randrange(bound) for _ in range(ROUNDS) for bound in BOUNDS]
    return shuffled, below


def numpy_of(seed):
    numpy.random.seed(seed)
    return [int(numpy.random.randint(0, bound, dtype=numpy.int64)) for _ in range(ROUNDS) for bound in BOUNDS]


with Golden("python_random.golden") as g:
    drawn = [python_of(seed) for seed in SEEDS]
    g.add("seeds", tensor(SEEDS))
    g.add("numpy_seeds", tensor(NUMPY_SEEDS))
    g.add("bounds", tensor(BOUNDS))
    g.add("shuffle", tensor([shuffled for shuffled, _ in drawn]))
    g.add("below", tensor([below for _, below in drawn]))
    g.add("numpy_below", tensor([numpy_of(seed) for seed in NUMPY_SEEDS]))
