"""random_split.golden: torch.utils.data.random_split by lengths and by fractions."""

import warnings

import torch
from torch.utils.data import random_split

from golden import Golden

CASES = (
    (10, [3, 7]),
    (50, [50]),
    (20, [0, 5, 0, 15]),
    (97, [40, 30, 20, 7]),
    (100, [0.7, 0.2, 0.1]),
    (11, [0.5, 0.5]),
    (7, [1 / 3, 1 / 3, 1 / 3]),
    (29, [0.1] * 10),
    (10, [0.99, 0.01]),
    (57, [0.29, 0.57, 0.14]),
    (3, [1.0]),
)

warnings.simplefilter("ignore")  # parts of length 0 are wanted
with Golden("random_split.golden") as g:
    for i, (count, sizes) in enumerate(CASES):
        g.add(f"{i}/count", count)
        g.add(f"{i}/sizes", torch.tensor(sizes, dtype=torch.int64 if type(sizes[0]) is int else torch.float64))
        generator = torch.Generator().manual_seed(40 + i)
        for k, part in enumerate(random_split(range(count), sizes, generator=generator)):
            g.add(f"{i}/{k}", torch.tensor(list(part), dtype=torch.int64))
        g.add(f"{i}/next", torch.randint(0, 1000, (), generator=generator))
    torch.manual_seed(7)
    for k, part in enumerate(random_split(range(12), [5, 7])):
        g.add(f"default/{k}", torch.tensor(list(part)))
