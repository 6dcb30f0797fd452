#!/usr/bin/env python3
"""elementwise.golden: PyTorch's mathematical functions, activations, reductions and cumulative operations, for
tests/unit/ops. Entries are as in ops.golden (make_ops.py); comparisons have no gradients.
"""

import torch
import torch.nn.functional as F

from golden import Golden, away_from_0 as randn, in_place, values

torch.manual_seed(23)
NAN, INF = float("nan"), float("inf")


def uniform(low, high, *shape):
    return low + (high - low) * torch.rand(shape, dtype=torch.float64)


# Away from all kinks: for finite differences.
WIDE = values([-7.4, -3.4, -2.2, -1.3, -0.7, -0.2], [0.3, 0.8, 1.6, 2.4, 3.7, 6.6])
KINKS = values(-6, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 25)
STEEP = values(-90, -30, -20.5, -19.5, -5, -1e-3, 1e-3, 5, 19.5, 20.5, 30, 90)
ZEROS = values([2, 0, 3], [0, 0, -1], [1.5, -2, 0.5])
TIES = values([3, 1, 3], [2, 2, -1], [3, 0, 2])
EXPONENTS = values(2, -1, 0, 3, 0, 1.5, 1)
BASES = values(1.5, 2, 3, 0, 0, 0, 0)
OPEN = uniform(-0.9, 0.9, 3, 4)
FUNCTIONS = {
    "sin": randn(3, 4), "cos": randn(3, 4), "tan": OPEN, "asin": OPEN, "acos": OPEN, "atan": randn(3, 4),
    "sinh": randn(3, 4), "cosh": randn(3, 4), "asinh": randn(3, 4), "acosh": uniform(1.2, 4, 3, 4),
    "atanh": OPEN, "erf": randn(3, 4), "erfc": randn(3, 4), "log1p": OPEN, "expm1": randn(3, 4),
    "log2": uniform(0.3, 4, 3, 4), "log10": uniform(0.3, 4, 3, 4), "exp2": randn(3, 4),
    "rsqrt": uniform(0.3, 4, 3, 4), "floor": WIDE, "ceil": WIDE, "round": WIDE, "trunc": WIDE, "frac": WIDE,
}
CASES = {name: (getattr(torch, name), x) for name, x in FUNCTIONS.items()}
CASES |= {
    "round_halves": (torch.round, values(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)),
    "sub_scalar": (lambda x: x - 1.5, randn(2, 3)),
    "div_scalar": (lambda x: x / 3, randn(2, 3)),
    "pow": (torch.pow, uniform(0.3, 3, 2, 3), randn(3)),
    "pow_edges": (torch.pow, BASES, EXPONENTS),
    "atan2": (torch.atan2, randn(4, 3), randn(3)),
    "fmod": (torch.fmod, values(5.3, -5.3, 5.3, -5.3), values(2, 2, -2, -2)),
    "remainder": (torch.remainder, values(5.3, -5.3, 5.3, -5.3), values(2, 2, -2, -2)),
    "lerp": (torch.lerp, randn(2, 3), randn(3), values(0.2, 0.7, 1.0)),
    "lerp_scalar": (lambda x, y: torch.lerp(x, y, 0.3), randn(2, 3), randn(3)),
    "lerp_far": (lambda x, y: torch.lerp(x, y, 0.8), randn(2, 3), randn(3)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=-0.5), randn(2, 3), randn(3), randn(2, 1)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=2), randn(2, 3), randn(3), uniform(0.5, 2, 2, 1)),
    "clamp_tensors": (torch.clamp, randn(4, 5), uniform(-0.9, -0.3, 5), uniform(0.3, 0.9, 4, 1)),
    "clamp_crossed": (torch.clamp, values(0, 1, 2, 3, 4, 2), values(1, 1, 3, 3, 1, 2), values(2, 2, 1, 1, 3, 2)),
    "clamp_low": (lambda x, y: torch.clamp(x, min=y), values(0, 1, 2), values(1, 1, 1)),
    "clamp_high": (lambda x, y: torch.clamp(x, max=y), values(0, 1, 2), values(1, 1, 1)),
    "nan_to_num": (lambda x: torch.nan_to_num(x, nan=2, posinf=4, neginf=-3), values(NAN, INF, -INF, 1)),
    "sub_": (in_place(lambda x, y: x.sub_(y)), randn(2, 3), randn(3)),
    "div_": (in_place(lambda x, y: x.div_(y)), randn(2, 3), uniform(0.5, 2, 3)),
    "clamp_": (in_place(lambda x: x.clamp_(-1.5, 1.7)), randn(4, 5)),
    "lerp_": (in_place(lambda x, y: x.lerp_(y, 0.1)), randn(2, 3), randn(3)),
    "addcmul_": (in_place(lambda x, y, z: x.addcmul_(y, z, value=0.5)), randn(2, 3), randn(3), randn(2, 1)),
}


def prelu_of(shape):
    return (F.prelu, randn(2, 3, 4), uniform(0.1, 0.4, *shape))


# F.hardsigmoid itself multiplies f64 by a sixth that was rounded to f32.
ACTIVATIONS = {
    "silu": F.silu, "mish": F.mish, "elu": lambda x: F.elu(x, 0.7), "celu": lambda x: F.celu(x, 1.5),
    "selu": F.selu, "relu6": F.relu6, "hardtanh": lambda x: F.hardtanh(x, -1, 3),
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6, "hardswish": F.hardswish, "hardshrink": lambda x: F.hardshrink(x, 0.5),
    "softshrink": lambda x: F.softshrink(x, 0.5), "tanhshrink": F.tanhshrink, "softsign": F.softsign,
    "log_sigmoid": F.logsigmoid, "threshold": lambda x: F.threshold(x, 1, -2),
    "softplus_beta": lambda x: F.softplus(x, 2, 6),
}
for name, function in ACTIVATIONS.items():
    CASES[name] = (function, WIDE)
    CASES[name + "_kinks"] = (function, KINKS)
for name in ("silu", "mish", "elu", "celu", "selu", "hardswish", "softsign", "log_sigmoid", "softplus_beta"):
    CASES[name + "_steep"] = (ACTIVATIONS[name], STEEP)
CASES |= {
    "prelu": prelu_of((3,)), "prelu_one": prelu_of((1,)),
    "prelu_at_0": (F.prelu, values([0, -1, 2]), values(0.25)),
    "glu": (lambda x: F.glu(x, 1), randn(2, 6, 3)), "softmin": (lambda x: F.softmin(x, 1), randn(2, 3)),
    "max": (torch.max, randn(3, 4)), "min": (torch.min, randn(3, 4)),
    "max_ties": (torch.max, TIES), "min_ties": (torch.min, TIES.neg()),
    "amax": (lambda x: x.amax((0, 2)), randn(2, 3, 4)),
    "amin": (lambda x: x.amin((1,), keepdim=True), randn(2, 3, 4)),
    "amax_ties": (lambda x: x.amax(1), TIES), "amin_ties": (lambda x: x.amin(0), TIES),
    "prod": (torch.prod, randn(2, 3)), "prod_dim": (lambda x: x.prod(1), randn(2, 3, 4)),
    "prod_keepdim": (lambda x: x.prod(-1, keepdim=True), randn(2, 3)),
    "prod_zeros": (lambda x: x.prod(1), ZEROS), "prod_of_all_zeros": (torch.prod, ZEROS),
    "prod_one_zero": (torch.prod, values(2, 0, 3, -1)),
    "cumsum": (lambda x: x.cumsum(0), randn(4, 3)), "cumsum_last": (lambda x: x.cumsum(-1), randn(2, 3, 5)),
    "cumprod": (lambda x: x.cumprod(0), randn(4, 3)), "cumprod_last": (lambda x: x.cumprod(-1), randn(2, 3, 5)),
    "cumprod_zeros": (lambda x: x.cumprod(1), ZEROS),
    "var_biased": (lambda x: x.var(1, unbiased=False), randn(3, 4)),
    "std_biased": (lambda x: x.std(unbiased=False), randn(3, 4)),
    "var_2": (lambda x: x.var((0, 1), correction=2, keepdim=True), randn(3, 4)),
    "nansum": (lambda x: x.nansum(1), values([1, NAN, 2], [NAN, NAN, 3])),
}
for name, p in {"0": 0, "1": 1, "half": 0.5, "one_and_half": 1.5, "3": 3, "inf": INF, "minus_inf": -INF}.items():
    CASES["norm_" + name] = (lambda x, p=p: torch.linalg.vector_norm(x, p, 1), randn(3, 4))
    if p > 0:
        CASES["norm_at_0_" + name] = (lambda x, p=p: torch.norm(x, p, 1), values([0, 0], [0, 2]))

CASES |= {
    "rsub_scalar": (lambda x: 1.5 - x, randn(2, 3)),
    "fmod_scalar": (lambda x: torch.fmod(x, -2), values(5.3, -5.3, 0.4, -0.4)),
    "remainder_scalar": (lambda x: torch.remainder(x, -2), values(5.3, -5.3, 0.4, -0.4)),
}

TRUTHS = values([0, 1, -2], [NAN, 0.5, 0])
COMPARISONS = {
    "eq_scalar": (lambda x: x == 0.5, TRUTHS), "ne_scalar": (lambda x: x != 0.5, TRUTHS),
    "lt_scalar": (lambda x: x < 0.5, TRUTHS), "le_scalar": (lambda x: x <= 0.5, TRUTHS),
    "gt_scalar": (lambda x: x > 0.5, TRUTHS), "ge_scalar": (lambda x: x >= 0.5, TRUTHS),
    "logical_not": (torch.logical_not, TRUTHS),
    "logical_and": (torch.logical_and, TRUTHS, values(0, 3, 0)),
    "logical_or": (torch.logical_or, TRUTHS, values(0, 3, 0)),
    "logical_xor": (torch.logical_xor, TRUTHS, values(0, 3, 0)),
    "isnan": (torch.isnan, values(NAN, INF, -INF, 1)), "isinf": (torch.isinf, values(NAN, INF, -INF, 1)),
    "isfinite": (torch.isfinite, values(NAN, INF, -INF, 1)),
    "any": (torch.any, TRUTHS), "all": (torch.all, TRUTHS), "any_dim": (lambda x: x.any(1), ZEROS),
    "all_dim": (lambda x: x.all(0, keepdim=True), TRUTHS),
    "argmin": (lambda x: x.argmin(1), TIES), "argmin_nan": (lambda x: x.argmin(0, keepdim=True), TRUTHS),
}

with Golden("elementwise.golden") as golden:
    for name, (function, *inputs) in CASES.items():
        golden.add_operation(name, function, *inputs)
    for name, (function, *inputs) in COMPARISONS.items():
        for i, x in enumerate(inputs):
            golden.add(f"{name}/x{i}", x)
        golden.add(f"{name}/y", function(*inputs))
