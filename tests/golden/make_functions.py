#!/usr/bin/env python3
"""functions.golden: gelu, ndtr and logsumexp of PyTorch, near 0, in the tails and where exp overflows, for
tests/unit/ops. Entries are as in ops.golden (make_ops.py).
"""

import torch

from golden import Golden

torch.manual_seed(21)
gelu = torch.nn.functional.gelu
TAILS = torch.tensor([-10, -5, -3, -1, -0.5, 0, 0.5, 1, 2, 10], dtype=torch.float64)
FAR = torch.tensor([[1000, 1000, 999], [-1000, -1000, -999], [3, -2, 700]], dtype=torch.float64)


def randn(*shape):
    return 2 * torch.randn(shape, dtype=torch.float64)


CASES = {
    "gelu": (gelu, randn(3, 4)),
    "gelu_tails": (gelu, TAILS),
    "gelu_tanh": (lambda x: gelu(x, approximate="tanh"), randn(3, 4)),
    "gelu_tanh_tails": (lambda x: gelu(x, approximate="tanh"), TAILS),
    "ndtr": (torch.special.ndtr, randn(3, 4)),
    "ndtr_tails": (torch.special.ndtr, TAILS),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), randn(3, 4)),
    "logsumexp_dims": (lambda x: x.logsumexp(1), randn(2, 3, 2, 2)),
    "logsumexp_keepdim": (lambda x: x.logsumexp((0, -1), keepdim=True), randn(2, 3, 2, 2)),
    "logsumexp_far": (lambda x: x.logsumexp(1), FAR),
}

with Golden("functions.golden") as golden:
    for name, (function, values) in CASES.items():
        x = values.clone().requires_grad_()
        y = function(x)
        g = torch.randn_like(y)
        (dx,) = torch.autograd.grad(y, x, g)
        golden.add_all(name, x0=x, y=y, g=g, dx0=dx)
