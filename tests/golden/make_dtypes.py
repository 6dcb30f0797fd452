"""Writes dtypes.golden: conversions between all dtypes, and the rounding of f32 and f64 to f16."""

import torch

from golden import Golden

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "u8": torch.uint8,
    "f16": torch.float16,
    "i32": torch.int32,
    "bool": torch.bool,
}
# Numbers that all integer dtypes hold when truncated, and that floating ones round differently.
NUMBERS = [0.0, -0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.99, 5.0, 17.3, 63.96875, 100.0, 127.0, 200.1, 255.0, 1e-3, 1e-7]
NAN, INF = float("nan"), float("inf")
# Around the ends of f16: ties, the largest number, subnormal numbers and what rounds to zero.
EDGES = [NAN, INF, -INF, 65504.0, 65519.0, 65519.996, 65520.0, -65520.0, 65536.0, 1e30, -1e300, 2.0**-14, 2.0**-15,
         2.0**-14 - 2.0**-26, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, -(2.0**-25), 3 * 2.0**-25, 2.0**-26, 1e-45,
         2048.0, 2049.0, 2050.0, 2051.0, 4097.0, 4098.0, -4102.0, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11]

torch.manual_seed(5)
with Golden("dtypes.golden") as g:
    for name, dtype in DTYPES.items():
        source = torch.tensor(NUMBERS, dtype=torch.float64).to(dtype)
        g.add(f"{name}/from", source)
        for to, other in DTYPES.items():
            g.add(f"{name}/to/{to}", source.to(other))
    for name in ("f32", "f64", "bf16", "f16"):
        source = torch.tensor(EDGES, dtype=torch.float64).to(DTYPES[name])
        g.add(f"edges/{name}/from", source)
        for to in ("f32", "f64", "bf16", "f16", "bool"):
            g.add(f"edges/{name}/to/{to}", source.to(DTYPES[to]))
    wide = torch.tensor([-(2**62), -(2**40) - 7, -70000, -2049, -129, -1, 2049, 65519, 65520, 2**31, 2**31 + 5, 2**53 + 1])
    g.add("whole/i64/from", wide)
    for to in DTYPES:
        g.add(f"whole/i64/to/{to}", wide.to(DTYPES[to]))
    bits = torch.randint(-(2**31), 2**31, (20000,), dtype=torch.int64).to(torch.int32)
    g.add("bits/f32", bits)
    g.add("bits/f16", bits.view(torch.float32).to(torch.float16))
    near = torch.randint(0, 0x7C00, (20000,)).to(torch.int16).view(torch.float16).to(torch.float32)
    near = torch.where(torch.rand(20000) < 0.5, near, -near) * (1 + (torch.rand(20000) - 0.5) * 2.0**-10)
    g.add("near/f32", near)
    g.add("near/f16", near.to(torch.float16))
