#!/usr/bin/env python3
"""functional.golden: derivatives of functions and what hooks do to gradients, for
tests/unit/ops/test_functional.c and tests/unit/nn/test_module_hooks.c."""

import torch
import torch.nn as nn
from torch.autograd import functional

from golden import Golden

torch.manual_seed(31)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def outputs(a, b):
    """Two outputs; the second doesn't depend on a."""
    return torch.sin(a @ b), b.exp().sum(0)


def energy(a, b):
    return (torch.sin(a @ b) ** 2).sum() + (b ** 3).sum()


with Golden("functional.golden") as golden:
    a, b = randn(2, 3), randn(3, 2)
    v, w = (randn(2, 2), randn(2)), (randn(2, 3), randn(3, 2))
    golden.add_all("input", a=a, b=b, v0=v[0], v1=v[1], w0=w[0], w1=w[1])
    y, g = functional.vjp(outputs, (a, b), v)
    golden.add_all("vjp", y0=y[0], y1=y[1], r0=g[0], r1=g[1])
    y, g = functional.jvp(outputs, (a, b), w)
    golden.add_all("jvp", r0=g[0], r1=g[1])
    j = functional.jacobian(outputs, (a, b))
    golden.add_all("jacobian", r0=j[0][0], r1=j[0][1], r2=j[1][0], r3=j[1][1])
    h = functional.hessian(energy, (a, b))
    golden.add_all("hessian", r0=h[0][0], r1=h[0][1], r2=h[1][0], r3=h[1][1])
    # The Jacobian as part of a graph.
    x = a.clone().requires_grad_()
    j = functional.jacobian(lambda a: torch.sin(a @ b), x, create_graph=True)
    golden.add("graph/d", torch.autograd.grad(j.pow(2).sum(), x)[0])

    # Hooks of tensors: the middle is doubled and clipped, the leaf's sum is negated.
    x = a.clone().requires_grad_()
    middle = x.sin()
    middle.register_hook(lambda g: g * 2)
    middle.register_hook(lambda g: g.clamp(-1, 1))
    x.register_hook(lambda g: -g)
    ((middle * b.t()).sum() + x.pow(2).sum()).backward()
    golden.add("hook/d", x.grad)

    # Hooks of modules: inputs are scaled before, outputs shifted after, gradients of inputs negated.
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for name, value in net.state_dict().items():
        golden.add(f"module/state/{name}", value)
    seen = {}
    net[0].register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    net[0].register_forward_hook(lambda m, inputs, output: output + 1)

    def backward(m, grad_input, grad_output):
        seen["input"], seen["output"] = grad_input[0], grad_output[0]
        return (-3 * grad_input[0],)

    net[2].register_full_backward_hook(backward)
    x = a.clone().requires_grad_()
    y = net(x)
    y.pow(2).sum().backward()
    golden.add_all("module", y=y, d=x.grad, grad_input=seen["input"], grad_output=seen["output"])
    for name, value in net.named_parameters():
        golden.add(f"module/d/{name}", value.grad)
