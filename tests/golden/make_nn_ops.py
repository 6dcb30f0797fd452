"""Writes nn_*.golden: convolution, pooling and upsampling, normalisation, products, losses.

Cases are those of golden.py. All numbers are f64; the tests also run them rounded to f32.
"""

import torch
import torch.nn.functional as F

from golden import Cases

torch.manual_seed(2024)
torch.set_default_dtype(torch.float64)

NONE = -1


def conv(cases):
    #     x              weight        stride  padding dilation groups bias
    for x, w, stride, padding, dilation, groups, bias in [
        ((2, 3, 5, 4), (2, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1, True),
        ((1, 2, 7, 6), (3, 2, 3, 2), (2, 1), (1, 0), (1, 1), 1, True),
        ((2, 2, 6, 5), (2, 2, 2, 3), (2, 3), (2, 1), (1, 1), 1, False),
        ((1, 4, 5, 5), (4, 2, 3, 3), (1, 1), (1, 1), (1, 1), 2, True),
        ((1, 3, 6, 5), (3, 1, 3, 3), (2, 2), (1, 1), (1, 1), 3, False),
        ((1, 2, 7, 7), (2, 2, 3, 3), (1, 1), (2, 2), (2, 2), 1, True),
        ((1, 2, 8, 7), (2, 2, 2, 2), (3, 2), (0, 1), (2, 3), 1, False),
        ((2, 4, 3, 3), (3, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1, True),
        ((2, 4, 5, 3), (2, 4, 1, 1), (2, 2), (0, 0), (1, 1), 1, False),
        ((2, 3, 1, 1), (2, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1, True),
    ]:
        inputs = {"x": torch.randn(x), "w": torch.randn(w)}
        if bias:
            inputs["b"] = torch.randn(w[0])
        cases.case("conv", lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups),
                   [*stride, *padding, *dilation, groups], inputs)


def pool(cases):
    #    x             kernel  stride  padding dilation ceil
    for x, kernel, stride, padding, dilation, ceil in [
        ((2, 2, 4, 6), (2, 2), (2, 2), (0, 0), 1, False),
        ((1, 3, 7, 5), (3, 2), (2, 1), (1, 0), 1, False),
        ((1, 2, 6, 5), (3, 3), (2, 2), (1, 1), 1, True),
        ((1, 2, 7, 8), (2, 3), (1, 2), (1, 1), 2, True),
        ((1, 1, 5, 5), (5, 5), (1, 1), (2, 2), 1, False),
    ]:
        cases.case("max_pool", lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, ceil),
                   [*kernel, *stride, *padding, dilation, ceil], {"x": torch.randn(x)})
    # Ties: the first maximum of a window gets the gradient.
    cases.case("max_pool_ties", lambda x: F.max_pool2d(x, 3, 2, 1), [3, 3, 2, 2, 1, 1, 1, 0],
               {"x": torch.randint(0, 2, (2, 3, 7, 6)).double()})

    #    x             kernel  stride  padding ceil  count_include_pad
    for x, kernel, stride, padding, ceil, include in [
        ((2, 2, 4, 6), (2, 2), (2, 2), (0, 0), False, True),
        ((1, 3, 7, 5), (3, 2), (2, 1), (1, 0), False, True),
        ((1, 2, 6, 5), (3, 3), (2, 2), (1, 1), True, True),
        ((1, 2, 6, 5), (3, 3), (2, 2), (1, 1), True, False),
        ((1, 2, 8, 7), (4, 3), (3, 3), (2, 1), True, False),
        ((1, 2, 5, 5), (3, 3), (1, 1), (1, 1), False, False),
    ]:
        cases.case("avg_pool", lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, include),
                   [*kernel, *stride, *padding, ceil, include], {"x": torch.randn(x)})

    for x, size in [
        ((2, 3, 4, 4), (1, 1)),
        ((1, 2, 7, 5), (3, 2)),
        ((1, 2, 3, 4), (5, 4)),
        ((2, 2, 6, 6), (2, 3)),
    ]:
        cases.case("adaptive_avg_pool", lambda x: F.adaptive_avg_pool2d(x, size), [*size],
                   {"x": torch.randn(x)})


def upsample(cases):
    #    x             size    bilinear align_corners
    for x, size, bilinear, align in [
        ((2, 2, 3, 4), (6, 8), False, False),
        ((1, 3, 4, 3), (7, 5), False, False),
        ((1, 2, 5, 6), (3, 4), False, False),
        ((2, 2, 3, 4), (6, 8), True, False),
        ((2, 2, 3, 4), (6, 8), True, True),
        ((1, 3, 4, 3), (7, 10), True, False),
        ((1, 3, 4, 3), (7, 10), True, True),
        ((1, 2, 7, 6), (3, 4), True, True),
        ((1, 2, 7, 6), (3, 4), True, False),
        ((1, 2, 1, 3), (4, 1), True, True),
        ((1, 2, 1, 1), (3, 2), True, False),
    ]:
        mode = {"mode": "bilinear", "align_corners": align} if bilinear else {"mode": "nearest"}
        cases.case("upsample", lambda x: F.interpolate(x, size, **mode), [*size, bilinear, align],
                   {"x": torch.randn(x)})


def batch_norm(cases):
    #    x             training affine momentum eps
    for x, training, affine, momentum, eps in [
        ((6, 3), True, True, 0.1, 1e-5),
        ((3, 2, 4), True, True, 0.3, 1e-3),
        ((2, 3, 3, 4), True, True, 0.1, 1e-5),
        ((2, 3, 3, 3), True, False, 0.0, 1e-5),
        ((2, 3, 3, 4), False, True, 0.1, 1e-5),
        ((4, 2), False, False, 0.1, 1e-2),
    ]:
        for relu in (False, True):
            channels = x[1]
            inputs = {"x": torch.randn(x) * 2 + 1}
            if affine:
                inputs["w"] = torch.rand(channels) + 0.5
                inputs["b"] = torch.randn(channels)
            mean, var = torch.randn(channels), torch.rand(channels) + 0.5
            after_mean, after_var = mean.clone(), var.clone()

            def function(x, w=None, b=None):
                y = F.batch_norm(x, after_mean, after_var, w, b, training, momentum, eps)
                return F.relu(y) if relu else y

            name = "batch_norm_relu" if relu else "batch_norm"
            prefix, _, _ = cases.case(name, function, [training], inputs)
            cases.add_all(
                prefix,
                numbers=torch.tensor([momentum, eps]),
                running_mean=mean,
                running_var=var,
                after_mean=after_mean,
                after_var=after_var,
            )


def softmax(cases):
    for shape, dim in [((3, 4), 1), ((2, 3, 4), 1), ((4, 3), 0), ((2, 3, 2, 3), 1), ((5,), 0)]:
        for logarithm in (False, True):
            f = F.log_softmax if logarithm else F.softmax
            cases.case("softmax", lambda x: f(x, dim), [dim, logarithm], {"x": torch.randn(shape) * 2})


def products(cases):
    for x, y in [
        ((3, 4), (4, 2)),
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 2)),
        ((2, 3, 4), (2, 4, 3)),
        ((3, 4), (2, 4, 3)),
        ((2, 1, 3, 2), (3, 2, 2)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((3, 1), (1, 2)),
    ]:
        cases.case("matmul", torch.matmul, None, {"x": torch.randn(x), "w": torch.randn(y)})
    for x, out, bias in [((3, 4), 5, True), ((4,), 3, True), ((2, 3, 4), 2, True), ((5, 3), 2, False)]:
        inputs = {"x": torch.randn(x), "w": torch.randn(out, x[-1])}
        if bias:
            inputs["b"] = torch.randn(out)
        cases.case("linear", F.linear, None, inputs)


REDUCTIONS = ["mean", "sum", "none"]


def class_losses(cases):
    #    x             weight  ignore  smoothing (percent)
    for number, (shape, weighted, ignore, smoothing) in enumerate([
        ((5, 4), False, None, 0),
        ((5, 4), True, 2, 0),
        ((4, 3, 5), False, 255, 0),
        ((2, 3, 2, 4), True, 0, 0),
        ((6, 4), False, None, 10),
        ((6, 4), True, 1, 20),
        ((2, 3, 2, 3), True, 255, 15),
        ((2, 3, 2, 3), False, 255, 15),
    ]):
        for r, reduction in enumerate(REDUCTIONS):
            if number >= 2 and r != number % 3:
                continue
            classes = shape[1]
            target = torch.randint(0, classes, (shape[0], *shape[2:]))
            if ignore is not None:
                target.view(-1)[1::3] = ignore
            constants = {"target": target}
            if weighted:
                constants["weight"] = torch.rand(classes) + 0.5
            options = [r, NONE if ignore is None else ignore, smoothing]
            index = -100 if ignore is None else ignore
            cases.case("cross_entropy",
                       lambda x, t, w=None: F.cross_entropy(x, t, w, ignore_index=index,
                           reduction=reduction, label_smoothing=smoothing / 100),
                       options, {"x": torch.randn(shape) * 2}, constants)
            if smoothing == 0:
                cases.case("nll",
                           lambda x, t, w=None: F.nll_loss(x, t, w, ignore_index=index, reduction=reduction),
                           options, {"x": torch.randn(shape)}, constants)


def losses(cases):
    for r, reduction in enumerate(REDUCTIONS):
        for name, f in [("mse", F.mse_loss), ("l1", F.l1_loss)]:
            cases.case(name, lambda x, t: f(x, t, reduction=reduction), [r],
                       {"x": torch.randn(3, 4), "t": torch.randn(3, 4)})
        for weight, pos_weight in [(None, None), ((3, 4), None), (None, (4,)), ((4,), (3, 1))]:
            constants = {}
            if weight:
                constants["weight"] = torch.rand(weight) + 0.5
            if pos_weight:
                constants["pos_weight"] = torch.rand(pos_weight) + 0.5
            cases.case("bce",
                       lambda x, t, *_: F.binary_cross_entropy_with_logits(x, t, constants.get("weight"),
                           reduction=reduction, pos_weight=constants.get("pos_weight")),
                       [r], {"x": torch.randn(3, 4) * 3, "t": torch.rand(3, 4)}, constants)


for name, families in {
    "conv": [conv],
    "pool": [pool, upsample],
    "norm": [batch_norm, softmax],
    "matmul": [products],
    "loss": [class_losses, losses],
}.items():
    with Cases(f"nn_{name}.golden") as cases:
        for family in families:
            family(cases)
