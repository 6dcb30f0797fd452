"""Writes resample.golden: interpolate, grid_sample, affine_grid.

Cases are those of golden.py: inputs "x", "grid" or "theta", factors among the options in thousandths. PyTorch
1.13 has no second derivatives of grid_sample. They are those of a composition of differentiable operations,
whose values and gradients are grid_sample's. All numbers are f64; the tests also run them rounded to f32.
"""

import itertools

import torch
import torch.nn.functional as F

from golden import Cases

torch.manual_seed(31)
torch.set_default_dtype(torch.float64)


def add_sample(file, function, options, inputs, reference):
    """A case of grid_sample with the second gradients of the reference; without a reference they are 0."""
    prefix, leaves, dy = file.case("grid_sample", function, options, inputs)
    seconds = [torch.zeros_like(x) for x in leaves]
    if reference is not None:
        y, again = function(*leaves), reference(*leaves)
        assert torch.allclose(again, y, 1e-11, 1e-11)
        known = torch.autograd.grad(y, leaves, dy)
        gradients = torch.autograd.grad(again, leaves, dy, create_graph=True)
        assert all(torch.allclose(a, b, 1e-10, 1e-10) for a, b in zip(gradients, known))
        seconds = torch.autograd.grad(sum((g**3).sum() for g in gradients), leaves)
    for key, second in zip(inputs, seconds):
        file.add(f"{prefix}/second_{key}", torch.where(second.abs() < 1e-12, 0.0, second))


MODES = ["nearest", "bilinear", "nearest-exact", "linear", "bicubic", "trilinear", "area"]


def interpolate(file):
    def case(x, mode, size=None, factor=None, align=False, recompute=False, antialias=False):
        arguments = {"mode": mode, "antialias": antialias}
        if mode not in ("nearest", "nearest-exact", "area"):
            arguments["align_corners"] = align
        if factor:
            arguments |= {"scale_factor": factor, "recompute_scale_factor": recompute}
        else:
            arguments["size"] = size
        dims = len(x) - 2
        sizes = [*(size or []), *[0] * (3 - (dims if size else 0))]
        factors = [*[round(1000 * f) for f in factor or []], *[0] * (3 - (dims if factor else 0))]
        options = [MODES.index(mode), align, recompute, antialias, *sizes, *factors]
        file.case("interpolate", lambda x: F.interpolate(x, **arguments), options, {"x": torch.randn(x)})

    shapes = {1: (1, 2, 7), 2: (1, 1, 4, 5), 3: (1, 1, 3, 2, 4)}
    larger = {1: (11,), 2: (7, 6), 3: (4, 3, 5)}
    smaller = {1: (3,), 2: (3, 3), 3: (2, 1, 4)}
    of_dims = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}
    for dims in (1, 2, 3):
        shape = shapes[dims]
        double = tuple(2 * s for s in shape[2:])
        for mode in ["nearest", "nearest-exact", "area"]:
            for size in (larger[dims], smaller[dims], double):
                case(shape, mode, size)
            case(shape, mode, factor=(1.7,) * dims)
        for mode in of_dims[dims]:
            for align in (False, True):
                for size in (larger[dims], smaller[dims]):
                    case(shape, mode, size, align=align)
            case(shape, mode, (1,) * dims, align=True)
            case(shape, mode, shape[2:])
            case(shape, mode, factor=(1.7,) * dims)
            case(shape, mode, factor=(1.7,) * dims, recompute=True)
            case(shape, mode, factor=(0.6, 2.3, 1.1)[:dims])
            case((1, 2) + (1,) * dims, mode, larger[dims])
    for mode, align in itertools.product(("bilinear", "bicubic"), (False, True)):
        for size in ((2, 9), (1, 1)):
            case((1, 1, 5, 6), mode, size, align=align, antialias=True)
        case((1, 1, 9, 7), mode, (2, 3), align=align, antialias=True)
        case((1, 1, 5, 7), mode, factor=(0.6, 0.45), align=align, antialias=True)


def inside(at, size, padding, align):
    """Places in pixels, brought back from outside."""
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return at * 0
        distance = (at - low).abs()
        turns = torch.floor(distance / span).detach()
        rest = distance - turns * span
        at = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    if padding != "zeros":
        at = at.clamp(0, size - 1)
    return at


def cubic(t):
    """Keys' weights with a = -0.75."""
    a = -0.75

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def composed(x, grid, mode, padding, align):
    """grid_sample of operations that have derivatives of any order."""
    sizes = x.shape[2:]
    taps = []
    for d, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - d]
        at = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
        if mode != "bicubic":
            at = inside(at, size, padding, align)
        first = torch.floor(at).detach()
        t = at - first
        weights = cubic(t) if mode == "bicubic" else [1 - t, t]
        along = []
        for k, weight in enumerate(weights):
            pixel = first + k - (1 if mode == "bicubic" else 0)
            if mode == "bicubic":
                pixel = inside(pixel, size, padding, align)
            valid = (pixel >= 0) & (pixel < size)
            along.append((pixel.clamp(0, size - 1).long(), weight * valid))
        taps.append(along)
    planes = x.flatten(2)
    y = 0
    for combination in itertools.product(*taps):
        index, weight = 0, 1
        for (position, share), size in zip(combination, sizes):
            index = index * size + position
            weight = weight * share
        read = planes.gather(2, index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1))
        y = y + read.view(*x.shape[:2], *index.shape[1:]) * weight.unsqueeze(1)
    return y


def grid_sample(file):
    modes = ["bilinear", "nearest", "bicubic"]
    paddings = ["zeros", "border", "reflection"]
    for x, size in (((1, 2, 3, 4), (2, 3)), ((1, 1, 2, 3, 3), (1, 2, 2)), ((1, 1, 1, 1), (1, 1))):
        for mode, padding, align in itertools.product(modes, paddings, (False, True)):
            if mode == "bicubic" and len(x) == 5:
                continue
            inputs = {"x": torch.randn(x), "grid": torch.rand(x[0], *size, len(size)) * 3.2 - 1.6}
            add_sample(
                file,
                lambda x, g: F.grid_sample(x, g, mode, padding, align),
                [modes.index(mode), paddings.index(padding), align],
                inputs,
                None if mode == "nearest" else lambda x, g: composed(x, g, mode, padding, align),
            )


def affine_grid(file):
    for size, align in itertools.product(((2, 3, 4, 5), (1, 1, 1, 3), (2, 1, 2, 3, 4)), (False, True)):
        dims = len(size) - 2
        file.case("affine_grid", lambda theta: F.affine_grid(theta, size, align), [align, len(size), *size],
                  {"theta": torch.randn(size[0], dims, dims + 1)})


with Cases("resample.golden") as file:
    interpolate(file)
    grid_sample(file)
    affine_grid(file)
