"""Writes grid.golden: torchvision's make_grid and the bytes of its save_image."""

import torch
import torchvision.utils

from golden import Golden

CASES = {
    "plain": ((10, 3, 4, 5), {}),
    "grey": ((5, 1, 3, 3), {"nrow": 2, "padding": 0}),
    "normalized": ((3, 3, 2, 4), {"normalize": True, "nrow": 4}),
    "each": ((3, 2, 2, 4), {"normalize": True, "scale_each": True, "pad_value": 0.5}),
    "range": ((4, 3, 2, 2), {"normalize": True, "value_range": (-1, 1), "padding": 1}),
    "single": ((1, 3, 4, 4), {}),
    "three": ((3, 4, 4), {}),
    "two": ((4, 6), {}),
}

torch.manual_seed(3)
with Golden("grid.golden") as file:
    for name, (shape, options) in CASES.items():
        x = torch.randn(shape)
        grid = torchvision.utils.make_grid(x.clone(), **options)
        file.add(f"{name}/x", x)
        file.add(f"{name}/grid", grid)
        file.add(f"{name}/bytes", grid.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8))
