"""Writes loader.golden: the order and the random numbers of torch.utils.data.DataLoader.

A case "name/W", with W workers, has EPOCHS passes over a data set of COUNT samples, each of which is its index
and DRAWS uniforms: indices (i64) and draws (f32) of all passes one after another, ends (i64) of batches, counted
from the first pass on, and rest (f32), numbers of the default generator afterwards. Options are repeated in the
test.
"""

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from golden import Golden

COUNT = 10
DRAWS = 3
EPOCHS = 3


class Noisy(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor(index), torch.rand(DRAWS)


def generator(seed):
    return torch.Generator().manual_seed(seed)


DATA = Noisy()
CASES = {
    "plain": lambda: dict(batch_size=4),
    "shuffle": lambda: dict(shuffle=True),
    "batches": lambda: dict(shuffle=True, batch_size=3),
    "drop_last": lambda: dict(shuffle=True, batch_size=4, drop_last=True),
    "generator": lambda: dict(shuffle=True, batch_size=4, generator=generator(5)),
    "generator_drop_last": lambda: dict(shuffle=True, batch_size=3, drop_last=True, generator=generator(6)),
    "sampler": lambda: dict(sampler=RandomSampler(DATA, replacement=True, num_samples=7), batch_size=2),
    "batch_sampler": lambda: dict(batch_sampler=BatchSampler(RandomSampler(DATA), 3, False)),
    "batch_sequence": lambda: dict(batch_sampler=BatchSampler(SequentialSampler(DATA), 4, True)),
    "single": lambda: dict(batch_size=None, shuffle=True),
}


def passes(file, name, options, workers):
    torch.manual_seed(0)
    loader = DataLoader(DATA, num_workers=workers, **options)
    indices, draws, ends = [], [], []
    for _ in range(EPOCHS):
        for index, numbers in loader:
            indices += index.reshape(-1).tolist()
            draws.append(numbers.reshape(-1, DRAWS))
            ends.append(len(indices))
    file.add_all(f"{name}/{workers}", indices=indices, draws=torch.cat(draws), ends=ends, rest=torch.rand(4))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("loader.golden") as golden:
        for name, options in CASES.items():
            for workers in (0, 2, 3):
                passes(golden, name, options(), workers)
        torch.manual_seed(0)
        golden.add("range", torch.cat(list(DataLoader(range(10), shuffle=True))))
