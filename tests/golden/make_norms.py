"""Writes norms.golden: layer, group and instance normalisation, 2-norm, variance, deviation.

Cases are those of golden.py, with "eps". All numbers are f64; the tests also run them rounded to f32.
"""

import torch
import torch.nn.functional as F

from golden import Cases

torch.manual_seed(77)
torch.set_default_dtype(torch.float64)


def affine_inputs(x, shape, affine):
    inputs = {"x": torch.randn(x) * 2 + 1}
    if affine:
        inputs["w"] = torch.rand(shape) + 0.5
        inputs["b"] = torch.randn(shape)
    return inputs


def norms(file):
    #    x                groups  affine eps
    for x, groups, affine, eps in [
        ((2, 6, 3, 2), 3, True, 1e-5),
        ((2, 6, 2, 3), 1, True, 1e-3),
        ((3, 4, 2, 3), 2, False, 1e-5),
        ((2, 5, 3, 3), 1, False, 1e-5),
        ((3, 6), 2, True, 1e-5),
        ((2, 4, 5), 2, True, 1e-2),
        ((2, 4, 2, 3, 2), 2, True, 1e-5),
        ((1, 8, 1, 2), 4, True, 1e-5),
    ]:
        file.case("group_norm", lambda x, w=None, b=None: F.group_norm(x, groups, w, b, eps), [groups],
                  affine_inputs(x, (x[1],), affine), second=True, eps=eps)
    #    x                affine eps
    for x, affine, eps in [
        ((2, 3, 3, 4), True, 1e-5),
        ((2, 3, 2, 4), False, 1e-5),
        ((3, 2, 5), True, 1e-3),
        ((2, 2, 2, 3, 2), True, 1e-5),
        ((1, 5, 3, 1), True, 1e-5),
    ]:
        file.case("instance_norm", lambda x, w=None, b=None: F.instance_norm(x, weight=w, bias=b, eps=eps),
                  None, affine_inputs(x, (x[1],), affine), second=True, eps=eps)
    #    x               dims affine eps
    for x, dims, affine, eps in [
        ((3, 5), 1, True, 1e-5),
        ((2, 3, 4), 1, True, 1e-5),
        ((2, 3, 4), 2, True, 1e-3),
        ((3, 2, 3, 2), 3, True, 1e-5),
        ((2, 2, 3, 2), 3, False, 1e-5),
        ((2, 2, 3, 4), 2, True, 1e-5),
        ((2, 2, 2, 5), 1, True, 1e-5),
        ((4, 3), 2, True, 1e-5),
    ]:
        file.case("layer_norm", lambda x, w=None, b=None: F.layer_norm(x, x.shape[-dims:], w, b, eps), [dims],
                  affine_inputs(x, x[-dims:], affine), second=True, eps=eps)


def moments(file):
    def over(function):
        return lambda dims, keep: lambda x: function(x, dims, keep)

    kinds = [
        ("norm", over(lambda x, dims, keep: torch.linalg.vector_norm(x, 2, dims or None, keep))),
        ("var", over(lambda x, dims, keep: torch.var(x, dims or list(range(x.dim())), keepdim=keep))),
        ("std", over(lambda x, dims, keep: torch.std(x, dims or list(range(x.dim())), keepdim=keep))),
    ]
    #    x             dims    keepdim
    for x, dims, keep in [
        ((4,), [], False),
        ((3, 4), [], True),
        ((3, 4), [1], False),
        ((2, 3, 2, 2), [1, 2, 3], False),
        ((2, 3, 2, 2), [0, 2], True),
        ((2, 3, 4), [-2], False),
    ]:
        for name, function in kinds:
            file.case(name, function(dims, keep), [int(keep), *dims], {"x": torch.randn(x) + 2},
                      second=name != "var")


with Cases("norms.golden") as file:
    norms(file)
    moments(file)
