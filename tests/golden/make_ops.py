#!/usr/bin/env python3
"""ops.golden: outputs and gradients of PyTorch's operations, for tests/unit/ops.

Each case is an operation (golden.py). Inputs of i64 and u8 carry no gradient.
What an operation is called with besides tensors stands here and in the test of the same name.
"""

import torch

from golden import Golden, away_from_0 as randn, in_place, values

torch.manual_seed(20)


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.5


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def pieces(parts):
    """Uses some of the pieces, and not in order; piece 1 gets no gradient."""
    return torch.cat([parts[-1] * 3, parts[0]], 0)


def add_then_fill(x):
    return x.fill_(3).add_(1)


CONDITION = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.uint8)
INDEX = torch.tensor([2, 0, 2, 1])
POSITIONS = torch.tensor([[0, 2, 1], [1, 1, 0]])
CASES = {
    "add": (torch.add, randn(2, 3), randn(3)),
    "add_scalar_tensor": (torch.add, randn(2, 3), randn()),
    "sub": (torch.sub, randn(2, 1, 3), randn(4, 1)),
    "mul": (torch.mul, randn(2, 3), randn(4, 1, 3)),
    "mul_self": (lambda x: x * x, randn(5)),
    "div": (torch.div, randn(2, 3), randn(2, 1)),
    "maximum": (torch.maximum, randn(2, 3), randn(3)),
    "maximum_ties": (torch.maximum, values(1, 2, 3), values(1, 3, 2)),
    "minimum": (torch.minimum, randn(2, 3), randn(2, 1)),
    "minimum_ties": (torch.minimum, values(1, 2, 3), values(1, 3, 2)),
    "add_scaled": (lambda x, y: torch.add(x, y, alpha=-2.5), randn(2, 3), randn(3)),
    "add_scalar": (lambda x: x + 1.5, randn(2, 3)),
    "mul_scalar": (lambda x: x * -1.5, randn(2, 3)),
    "pow_3": (lambda x: x.pow(3), randn(2, 3)),
    "pow_half": (lambda x: x.pow(0.5), positive(2, 3)),
    "pow_2_at_0": (lambda x: x.pow(2), values(0, -1, 2)),
    "pow_0": (lambda x: x.pow(0), values(0, -1, 2)),
    "pow_minus_1": (lambda x: x.pow(-1), randn(2, 3)),
    "neg": (torch.neg, randn(2, 3)),
    "abs": (torch.abs, randn(2, 3)),
    "abs_at_0": (torch.abs, values(0, -1, 2)),
    "sqrt": (torch.sqrt, positive(2, 3)),
    "square": (torch.square, randn(2, 3)),
    "reciprocal": (torch.reciprocal, randn(2, 3)),
    "exp": (torch.exp, randn(2, 3)),
    "log": (torch.log, positive(2, 3)),
    "sign": (torch.sign, values(0, -1, 2)),
    "clamp": (lambda x: x.clamp(-0.7, 0.9), randn(4, 5)),
    "clamp_at_ends": (lambda x: x.clamp(-1, 2), values(-1, 2, 2.5, -3, 0)),
    "where": (lambda c, x, y: torch.where(c.bool(), x, y), CONDITION, randn(3), randn(4, 1, 3)),
    "relu": (torch.relu, randn(4, 5)),
    "relu_at_0": (torch.relu, values(0, -1, 2)),
    "leaky_relu": (lambda x: torch.nn.functional.leaky_relu(x, 0.2), randn(4, 5)),
    "leaky_relu_at_0": (lambda x: torch.nn.functional.leaky_relu(x, 0.2), values(0, -1, 2)),
    "sigmoid": (torch.sigmoid, randn(2, 3) * 3),
    "tanh": (torch.tanh, randn(2, 3)),
    "softplus": (softplus, randn(2, 3)),
    "softplus_far": (softplus, values(-800, -30, 30, 800)),
    "sum": (torch.sum, randn(2, 3, 4)),
    "sum_dims": (lambda x: x.sum((0, 2)), randn(2, 3, 4)),
    "sum_keepdim": (lambda x: x.sum((1,), keepdim=True), randn(2, 3, 4)),
    "mean": (torch.mean, randn(7, 7)),
    "mean_dims": (lambda x: x.mean((0, 2), keepdim=True), randn(2, 3, 4)),
    "max_dim": (lambda x: x.max(1).values, randn(2, 5, 3)),
    "max_dim_ties": (lambda x: x.max(0).values, values(1, 3, 3, 2)),
    "min_dim": (lambda x: x.min(-1, keepdim=True).values, randn(2, 5)),
    "sum_to": (lambda x: x.sum_to_size(3, 1), randn(2, 3, 4)),
    "reshape": (lambda x: x.reshape(3, -1), randn(2, 3, 4)),
    "reshape_copy": (lambda x: x.permute(2, 0, 1).reshape(4, 6), randn(2, 3, 4)),
    "flatten": (lambda x: x.flatten(1, 2), randn(2, 3, 4, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(1), randn(2, 3)),
    "squeeze": (lambda x: x.squeeze(1), randn(2, 1, 3)),
    "permute": (lambda x: x.permute(2, 0, 1), randn(2, 3, 4)),
    "transpose": (lambda x: x.transpose(0, -1), randn(2, 3, 4)),
    "slice": (lambda x: x[:, 1:8:3], randn(2, 9)),
    "slice_negative": (lambda x: x[-4:-1], randn(6, 2)),
    "slice_empty": (lambda x: x[4:2], randn(6, 2)),
    "narrow": (lambda x: x.narrow(1, 2, 3), randn(2, 6)),
    "select": (lambda x: x.select(1, -2), randn(2, 4, 3)),
    "expand": (lambda x: x.expand(2, 3, 4), randn(3, 1)),
    "contiguous": (lambda x: x.contiguous(), randn(2, 3, 4, 5)),
    "clone": (torch.clone, randn(2, 3)),
    "cat": (lambda *x: torch.cat(x, 1), randn(2, 3), randn(2, 1), randn(2, 2)),
    "cat_first": (lambda *x: torch.cat(x, 0), randn(1, 3), randn(0, 3), randn(2, 3)),
    "stack": (lambda *x: torch.stack(x, -1), randn(2, 3), randn(2, 3)),
    "split": (lambda x: pieces(x.split(3, 0)), randn(8, 2)),
    "chunk": (lambda x: pieces(x.chunk(4, 0)), randn(10, 2)),
    "split_sizes": (lambda x: pieces(x.split([1, 4, 2], 0)), randn(7, 2)),
    "index_select": (lambda x, i: x.index_select(1, i), randn(2, 3), INDEX),
    "gather_dim": (lambda x, i: x.gather(0, i), randn(3, 4), POSITIONS),
    "scatter_add_dim": (lambda x, i: torch.zeros(4, 3, dtype=x.dtype).scatter_add(0, i, x),
                        randn(2, 3), POSITIONS),
    "add_": (in_place(lambda x, y: x.add_(y)), randn(2, 3), randn(3)),
    "add_scaled_": (in_place(lambda x, y: x.add_(y, alpha=-2)), randn(2, 3), randn(2, 1)),
    "mul_": (in_place(lambda x, y: x.mul_(y)), randn(2, 3), randn(3)),
    "mul_scalar_": (in_place(lambda x: x.mul_(-3)), randn(2, 3)),
    "fill_": (in_place(add_then_fill), randn(2, 3)),
    "copy_": (in_place(lambda x, y: x.copy_(y)), randn(2, 3), randn(3)),
}

with Golden("ops.golden") as golden:
    for name, (function, *inputs) in CASES.items():
        golden.add_operation(name, function, *inputs)
