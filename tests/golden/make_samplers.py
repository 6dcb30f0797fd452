#!/usr/bin/env python3
"""Writes samplers.golden: what samplers draw, in random cases per sampler.

"<sampler>/cases" has a row of parameters per case, "<sampler>/indices" all cases' samples one after
the other (of all ranks in turn, of both passes in turn), "<sampler>/ends" those of batches.

torch.utils.data's samplers draw their own numbers. References of identity samplers, of inference, of
contiguous shares and shares without padding, and of the partitioner are written here, over Python's
`random` and NumPy's generator.
"""

import math
import random

import numpy
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler

from golden import Golden

CASES = 200
choose = random.Random(20240117)  # of cases; the samplers under test have generators of their own


def length(most=60):
    return choose.choice([choose.randint(1, 12), choose.randint(1, most)])


def seed():
    return choose.choice([choose.randint(0, 9), choose.randint(0, 2**31), choose.randint(2**32, 2**62)])


def flag():
    return choose.random() < 0.5


class Table:
    """Cases of one sampler."""

    def __init__(self, name):
        self.name = name
        self.cases, self.indices, self.ends, self.more = [], [], [], []

    def write(self, g):
        tensor = lambda values: torch.tensor(values, dtype=torch.int64)
        g.add(f"{self.name}/cases", tensor(self.cases))
        g.add(f"{self.name}/indices", tensor(self.indices))
        if self.ends:
            g.add(f"{self.name}/ends", tensor(self.ends))
        if self.more:
            kind = torch.float64 if isinstance(self.more[0], float) else torch.int64
            g.add(f"{self.name}/more", torch.tensor(self.more, dtype=kind))


def source(number, given):
    """A generator of the caller's, or None: the default one. And what it draws next, afterwards."""
    torch.manual_seed(number)
    generator = torch.Generator().manual_seed(number) if given else None
    after = lambda: int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    return generator, after


# ---- torch.utils.data ----


def random_cases():
    table = Table("random")
    for _ in range(CASES):
        count, replacement, given, number = length(), flag(), flag(), seed()
        wanted = choose.choice([0, count * choose.randint(1, 3), choose.randint(1, 3 * count)])
        generator, after = source(number, given)
        sampler = RandomSampler(range(count), replacement, wanted or None, generator)
        drawn = list(sampler) + list(sampler)
        table.indices += drawn
        table.cases.append([count, replacement, wanted, given, number, len(drawn), after()])
    return table


def subset_cases():
    table = Table("subset")
    for _ in range(CASES):
        count, given, number = length(), flag(), seed()
        indices = [choose.randint(0, 10**6) for _ in range(count)]
        generator, after = source(number, given)
        sampler = SubsetRandomSampler(indices, generator)
        drawn = list(sampler) + list(sampler)
        table.indices += drawn
        table.more += indices
        table.cases.append([count, given, number, len(drawn), after()])
    return table


def weighted_cases():
    table = Table("weighted")
    for _ in range(CASES):
        count, given, number = length(), flag(), seed()
        scale = choose.choice([1.0, 1e-6, 1e12])
        weights = [choose.choice([0.0, 1.0, choose.random(), 5 * choose.random()]) * scale for _ in range(count)]
        weights[choose.randrange(count)] = scale
        wanted = choose.choice([1, choose.randint(2, 80)])
        generator, after = source(number, given)
        sampler = WeightedRandomSampler(weights, wanted, True, generator)
        drawn = list(sampler) + list(sampler)
        table.indices += drawn
        table.more += weights
        table.cases.append([count, wanted, given, number, len(drawn), after()])
    return table


def batch_cases():
    table = Table("batch")
    for _ in range(CASES):
        count, size, drop_last, shuffled, number = length(), choose.randint(1, 20), flag(), flag(), seed()
        torch.manual_seed(number)
        inner = RandomSampler(range(count)) if shuffled else SequentialSampler(range(count))
        sampler = BatchSampler(inner, size, drop_last)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        end = 0
        for batch in batches:
            table.indices += batch
            end += len(batch)
            table.ends.append(end)
        table.cases.append([count, size, drop_last, shuffled, number, end, len(batches)])
    return table


# ---- one rank's share ----


def shares(order, replicas, drop_last, padding, contiguous):
    """Of DistributedSampler, where it has no such option, per rank."""
    count = len(order)
    if drop_last:
        order = order[: count // replicas * replicas]
    elif padding:
        total = math.ceil(count / replicas) * replicas
        order = [order[i % count] for i in range(total)]
    if not contiguous:
        return [order[rank::replicas] for rank in range(replicas)]
    parts, begin = [], 0
    for rank in range(replicas):
        size = len(order) // replicas + (rank < len(order) % replicas)
        parts.append(order[begin : begin + size])
        begin += size
    return parts


def distributed_cases():
    table = Table("distributed")
    for _ in range(CASES):
        count, replicas, number, epoch = length(100), choose.randint(1, 8), seed(), choose.randint(0, 30)
        shuffle, drop_last, padding, contiguous = flag(), flag(), choose.random() < 0.7, choose.random() < 0.3
        parts = []
        for rank in range(replicas):
            sampler = DistributedSampler(range(count), replicas, rank, shuffle, number, drop_last)
            sampler.set_epoch(epoch)
            parts.append(list(sampler))
        generator = torch.Generator().manual_seed(number + epoch)
        order = torch.randperm(count, generator=generator).tolist() if shuffle else list(range(count))
        assert parts == shares(order, replicas, drop_last, True, False)
        if contiguous or not padding:
            parts = shares(order, replicas, drop_last, padding, contiguous)
        for part in parts:
            table.indices += part
            table.ends.append(len(part))
        table.cases.append([count, replicas, number, epoch, shuffle, drop_last, padding, contiguous])
    return table


def inference_cases():
    table = Table("inference")
    for _ in range(CASES):
        count, replicas, padding = length(), choose.randint(1, 9), flag()
        order = list(range(count))
        if padding:
            order += [count - 1] * (-count % replicas)
        for part in shares(order, replicas, False, False, True):
            table.indices += part
            table.ends.append(len(part))
        table.cases.append([count, replicas, padding])
    return table


# ---- identities ----


def identity_groups(identities, instances):
    """Groups of `instances` samples of the same identity, with Python's and NumPy's global generators."""
    members = {}
    for sample, identity in enumerate(identities):
        members.setdefault(identity, []).append(sample)
    groups = []
    for own in members.values():
        own = list(own)
        if len(own) < instances:
            own = numpy.random.choice(own, size=instances, replace=True)
        random.shuffle(own)
        for begin in range(0, len(own) - instances + 1, instances):
            groups.append([int(sample) for sample in own[begin : begin + instances]])
    random.shuffle(groups)
    return groups


def some_identities():
    count = length()
    kinds = choose.randint(1, max(1, count // choose.randint(1, 6)))
    names = [choose.randint(-(10**9), 10**9) for _ in range(kinds)]
    return [choose.choice(names) for _ in range(count)]


def identity_cases():
    table = Table("identity")
    for _ in range(CASES):
        identities, instances, number = some_identities(), choose.randint(1, 6), choose.randint(0, 2**32 - 1)
        random.seed(number)
        numpy.random.seed(number)
        drawn = [sample for _ in range(2) for group in identity_groups(identities, instances) for sample in group]
        table.indices += drawn
        table.more += identities
        table.cases.append([len(identities), instances, number, len(drawn)])
    return table


def distributed_identity_cases():
    table = Table("distributed_identity")
    for _ in range(CASES):
        identities, instances, replicas = some_identities(), choose.randint(1, 6), choose.randint(1, 5)
        number, epoch = choose.choice([choose.randint(0, 9), choose.randint(0, 2**32 - 100)]), choose.randint(0, 30)
        begin = len(table.indices)
        for rank in range(replicas):
            random.seed(number + epoch)
            numpy.random.seed(number + epoch)
            groups = identity_groups(identities, instances)
            whole = len(groups)
            if whole % replicas:
                samples = math.ceil((whole - replicas) / replicas) * instances
            else:
                samples = math.ceil(whole * instances / replicas)
            own = groups[rank : samples * replicas // instances : replicas]
            assert len(own) * instances == samples
            table.indices += [sample for group in own for sample in group]
        table.more += identities
        table.cases.append([len(identities), instances, replicas, number, epoch, len(table.indices) - begin])
    return table


# ---- the partitioner ----


def partition(count, sizes, number):
    order = list(range(count))
    random.Random(number).shuffle(order)
    parts = []
    for size in sizes:
        part = int(size * count)
        parts.append(order[:part])
        order = order[part:]
    return parts


def partition_cases():
    table = Table("partition")
    fractions = []
    for _ in range(CASES):
        count, number, parts = length(100), choose.choice([1234, seed()]), choose.randint(1, 7)
        drawn = [choose.random() + 0.05 for _ in range(parts)]
        whole = sum(drawn) * choose.choice([1.0, 1.25])
        sizes = choose.choice([[1 / parts] * parts, [part / whole for part in drawn]])
        fractions += sizes
        for part in partition(count, sizes, number):
            table.indices += part
            table.ends.append(len(part))
        table.cases.append([count, number, parts])
    table.more = fractions
    return table


# The articles' own numbers, where they are known.
assert partition(10, [0.7, 0.2, 0.1], 1234) == [[2, 8, 3, 5, 6, 4, 9], [0, 1], [7]]
assert [len(part) for part in partition(29, [0.7, 0.2, 0.1], 1234)] == [20, 5, 2]
assert partition(60000, [1 / 7] * 7, 1234)[0][:5] == [33712, 36159, 45528, 25849, 53734]

with Golden("samplers.golden") as g:
    for make in (random_cases, subset_cases, weighted_cases, batch_cases, distributed_cases, inference_cases,
                 identity_cases, distributed_identity_cases, partition_cases):
        make().write(g)
