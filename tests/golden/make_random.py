"""random.golden: what PyTorch's CPU generator draws."""

import torch

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
