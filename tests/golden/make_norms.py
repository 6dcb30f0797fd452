"""Writes norms.golden: layer, group and instance normalisation, 2-norm, variance, deviation.

A case is a group "name/number/": inputs "x", "w", "b", "options" (i64, in the order of the test that reads
it), "eps", the output "y", the gradient that arrives there "dy", and "d<input>" for every input. Where
there is a "second_<input>", it is the gradient of the sum of g^3 over the first gradients g. All
numbers are f64; the tests also run them rounded to f32.
"""

import torch
import torch.nn.functional as F

from golden import Golden

torch.manual_seed(77)
torch.set_default_dtype(torch.float64)

counts = {}


def add(file, name, function, options, inputs, second=False, **constants):
    number = counts.get(name, 0)
    counts[name] = number + 1
    prefix = f"{name}/{number}"
    leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    y = function(*leaves.values())
    dy = torch.randn(y.shape)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True)
    if options:
        file.add(f"{prefix}/options", torch.tensor(options, dtype=torch.int64))
    file.add_all(prefix, **inputs, **constants, y=y, dy=dy)
    for key, gradient in zip(leaves, gradients):
        file.add(f"{prefix}/d{key}", gradient)
    if second:
        penalty = sum((g ** 3).sum() for g in gradients)
        results = torch.autograd.grad(penalty, list(leaves.values()), allow_unused=True)
        for key, leaf, result in zip(leaves, leaves.values(), results):
            file.add(f"{prefix}/second_{key}", torch.zeros_like(leaf) if result is None else result)


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
        add(
            file,
            "group_norm",
            lambda x, w=None, b=None: F.group_norm(x, groups, w, b, eps),
            [groups],
            affine_inputs(x, (x[1],), affine),
            second=True,
            eps=eps,
        )
    #    x                affine eps
    for x, affine, eps in [
        ((2, 3, 3, 4), True, 1e-5),
        ((2, 3, 2, 4), False, 1e-5),
        ((3, 2, 5), True, 1e-3),
        ((2, 2, 2, 3, 2), True, 1e-5),
        ((1, 5, 3, 1), True, 1e-5),
    ]:
        add(
            file,
            "instance_norm",
            lambda x, w=None, b=None: F.instance_norm(x, weight=w, bias=b, eps=eps),
            None,
            affine_inputs(x, (x[1],), affine),
            second=True,
            eps=eps,
        )
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
        add(
            file,
            "layer_norm",
            lambda x, w=None, b=None: F.layer_norm(x, x.shape[-dims:], w, b, eps),
            [dims],
            affine_inputs(x, x[-dims:], affine),
            second=True,
            eps=eps,
        )


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
            add(
                file,
                name,
                function(dims, keep),
                [int(keep), *dims],
                {"x": torch.randn(x) + 2},
                second=name != "var",
            )


with Golden("norms.golden") as file:
    norms(file)
    moments(file)
