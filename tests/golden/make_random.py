"""random.golden: what PyTorch's CPU generator draws."""

import torch
from torch.nn import functional as F

from golden import Golden

SIZES = (1, 3, 12, 15, 16, 17, 20, 32, 33, 100)
SEEDS = (0, 1, 42, 1234, 2**32 + 1, 2**53 - 1)
TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


def fills(g, kind, name, dtype):
    """One tensor per seed: fills of all sizes after each other, so that what a fill leaves counts."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        parts = []
        for n in SIZES:
            part = torch.empty(n, dtype=dtype)
            if kind == "uniform":
                part.uniform_(-0.3, 1.1)
            elif kind == "rand":
                part.uniform_()
            elif kind == "normal":
                part.normal_(0.25, 1.5)
            else:
                part.normal_()
            parts.append(part)
        g.add(f"{kind}/{name}/{seed}", torch.cat(parts))


# Memory that is neither row-major nor channels-last: (order of memory is not that of the elements, gaps, both).
STRIDED = {
    "transposed": lambda dtype: torch.zeros(4, 5, dtype=dtype).t(),
    "gaps": lambda dtype: torch.zeros(6, 8, dtype=dtype)[:, 1::2],
    "permuted": lambda dtype: torch.zeros(2, 3, 7, dtype=dtype)[:, :, :5].permute(2, 0, 1),
    "row": lambda dtype: torch.zeros(17, 2, dtype=dtype)[:, 0],
}


def strided(g, key, types, fill):
    """Twice, so that what a fill leaves counts."""
    for layout, make in STRIDED.items():
        for name in types:
            torch.manual_seed(42)
            x = make({**TYPES, "i64": torch.int64, "u8": torch.uint8}[name])
            for turn in (1, 2):
                y = fill(x)
                g.add(f"strided/{key}/{name}/{layout}/{turn}", x if y is None else y)


with Golden("random.golden") as g:
    for kind in ("uniform", "rand", "normal", "randn"):
        for name, dtype in TYPES.items():
            fills(g, kind, name, dtype)
    for seed in SEEDS:
        torch.manual_seed(seed)
        g.add(f"randperm/{seed}", torch.randperm(50))
        g.add(f"randint/{seed}", torch.randint(-5, 1000, (20,)))
        g.add(f"randint_wide/{seed}", torch.randint(-(2**40), 2**50, (20,)))
        g.add(f"random_f32/{seed}", torch.empty(20).random_(-7, 9))
        g.add(f"random_u8/{seed}", torch.empty(20, dtype=torch.uint8).random_(3, 256))
        g.add(f"random64/{seed}", torch.empty(3, dtype=torch.int64).random_())
    # Long enough that every rounding of the block transformation shows.
    torch.manual_seed(123)
    g.add("long", torch.randn(4096))
    # A weight drawn in row-major order whatever its strides, as for a weight kept channels-last.
    torch.manual_seed(7)
    g.add("weight", torch.empty(3, 4, 2, 2).normal_())
    # States: fresh, in the middle of a block of words, and with a normal number kept.
    torch.manual_seed(2**40 + 9)
    g.add("state/fresh", torch.get_rng_state())
    torch.rand(700)
    g.add("state/middle", torch.get_rng_state())
    g.add("state/middle/next", torch.rand(4))
    torch.randn(3)
    g.add("state/cached", torch.get_rng_state())
    g.add("state/cached/next", torch.randn(5))
    strided(g, "uniform", TYPES, lambda x: x.uniform_(-0.3, 1.1))
    strided(g, "normal", TYPES, lambda x: x.normal_(0.25, 1.5))
    strided(g, "random", ("f32", "i64", "u8"), lambda x: x.random_(3, 100))
    # One uniform of f64 for each, whatever the dtype (in builds without MKL).
    strided(g, "bernoulli", ("f32", "f64", "bf16", "i64", "u8"), lambda x: x.bernoulli_(0.3))
    strided(g, "dropout", ("f32", "f64"), lambda x: F.dropout(torch.ones_like(x), 0.4))
    for name in ("f32", "f64"):
        torch.manual_seed(42)
        g.add(f"dropout/{name}", F.dropout(torch.full((3, 7), 3, dtype=TYPES[name]), 0.4))
        torch.manual_seed(42)
        g.add(f"dropout2d/{name}", F.dropout2d(torch.full((4, 5, 2, 3), 3, dtype=TYPES[name]), 0.4))
