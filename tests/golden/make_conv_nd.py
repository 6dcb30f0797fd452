"""Writes conv_nd.golden: convolution, transposed convolution and pooling in one to three dimensions.

Cases are those of golden.py. Options are as many numbers per dimension as there are dimensions: stride,
padding, dilation, output_padding, then groups; for pools kernel, stride, padding, dilation, then ceil_mode and
count_include_pad. "initial/" holds the values of layers made one after the other from one
seed.
"""

import torch
import torch.nn.functional as F
from torch import nn

from golden import Cases


def conv(cases):
    functions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    #     x                weight           stride     padding    dilation   groups bias
    for x, w, stride, padding, dilation, groups, bias in [
        ((2, 3, 9), (4, 3, 3), (1,), (1,), (1,), 1, True),
        ((2, 4, 11), (6, 2, 4), (3,), (2,), (2,), 2, True),
        ((1, 3, 6), (3, 1, 2), (2,), (0,), (1,), 3, False),
        ((3, 2, 5), (3, 2, 1), (1,), (0,), (1,), 1, True),
        ((1, 2, 3, 3, 2), (2, 2, 3, 2, 2), (1, 1, 1), (1, 1, 0), (1, 1, 1), 1, True),
        ((2, 1, 4, 3, 4), (2, 1, 2, 3, 1), (2, 1, 3), (1, 0, 0), (1, 1, 1), 1, True),
        ((1, 2, 4, 3, 4), (4, 1, 2, 2, 2), (2, 2, 1), (0, 1, 1), (2, 1, 3), 2, False),
        ((2, 3, 2, 2, 2), (3, 1, 2, 1, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1), 3, True),
        ((2, 3, 2, 3, 1), (2, 3, 1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1, True),
    ]:
        dims = len(stride)
        inputs = {"x": torch.randn(x), "w": torch.randn(w)}
        if bias:
            inputs["b"] = torch.randn(w[0])
        cases.case(f"conv{dims}d",
                   lambda x, w, b=None: functions[dims](x, w, b, stride, padding, dilation, groups),
                   [*stride, *padding, *dilation, *[0] * dims, groups], inputs)


def conv_transpose(cases):
    functions = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    #     x             weight        stride  padding dilation output  groups bias
    for x, w, stride, padding, dilation, output, groups, bias in [
        ((2, 3, 5), (3, 2, 3), (1,), (1,), (1,), (0,), 1, True),
        ((2, 4, 4), (4, 3, 4), (3,), (1,), (2,), (2,), 2, True),
        ((1, 2, 4), (2, 3, 2), (1,), (0,), (3,), (2,), 1, False),
        ((2, 3, 4, 3), (3, 2, 3, 3), (1, 1), (0, 0), (1, 1), (0, 0), 1, True),
        ((2, 3, 3, 4), (3, 4, 4, 4), (2, 2), (1, 1), (1, 1), (0, 0), 1, True),
        ((1, 4, 3, 3), (4, 1, 3, 2), (2, 3), (1, 0), (1, 1), (1, 2), 2, True),
        ((1, 2, 3, 4), (2, 3, 2, 3), (1, 2), (1, 2), (3, 2), (2, 1), 1, False),
        ((2, 3, 4, 2), (3, 1, 3, 3), (2, 1), (1, 1), (1, 1), (1, 0), 3, True),
        ((2, 4, 3, 3), (4, 2, 1, 1), (1, 1), (0, 0), (1, 1), (0, 0), 1, True),
        ((2, 4, 3, 3), (4, 2, 1, 1), (2, 2), (0, 0), (1, 1), (1, 0), 1, True),
        ((3, 4, 1, 1), (4, 3, 4, 4), (1, 1), (0, 0), (1, 1), (0, 0), 1, False),
        ((1, 2, 3, 2, 2), (2, 2, 3, 2, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1), (0, 0, 0), 1, True),
        ((1, 2, 2, 2, 2), (2, 2, 2, 3, 1), (2, 3, 1), (0, 1, 0), (1, 1, 2), (1, 2, 1), 2, True),
        ((1, 3, 2, 2, 3), (3, 1, 3, 3, 2), (2, 1, 2), (1, 1, 0), (1, 2, 1), (0, 0, 1), 3, False),
    ]:
        dims = len(stride)
        inputs = {"x": torch.randn(x), "w": torch.randn(w)}
        if bias:
            inputs["b"] = torch.randn(w[1] * groups)
        cases.case(f"conv_transpose{dims}d",
                   lambda x, w, b=None: functions[dims](x, w, b, stride, padding, output, groups, dilation),
                   [*stride, *padding, *dilation, *output, groups], inputs)


def pool(cases):
    maximum = {1: F.max_pool1d, 3: F.max_pool3d}
    average = {1: F.avg_pool1d, 3: F.avg_pool3d}
    #    x                kernel     stride     padding    dilation   ceil
    for x, kernel, stride, padding, dilation, ceil in [
        ((2, 3, 8), (2,), (2,), (0,), (1,), False),
        ((2, 2, 9), (3,), (2,), (1,), (2,), True),
        ((1, 3, 6), (4,), (1,), (2,), (1,), False),
        ((2, 2, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), False),
        ((1, 2, 5, 6, 4), (3, 2, 3), (2, 1, 2), (1, 0, 1), (1, 2, 1), True),
        ((1, 3, 4, 3, 5), (2, 3, 1), (1, 2, 3), (1, 1, 0), (2, 1, 1), True),
    ]:
        dims = len(kernel)
        cases.case(f"max_pool{dims}d", lambda x: maximum[dims](x, kernel, stride, padding, dilation, ceil),
                   [*kernel, *stride, *padding, *dilation, ceil, True], {"x": torch.randn(x)})
    #    x                kernel     stride     padding    ceil   count_include_pad
    for x, kernel, stride, padding, ceil, include in [
        ((2, 3, 8), (2,), (2,), (0,), False, True),
        ((2, 2, 9), (4,), (3,), (2,), True, True),
        ((2, 2, 9), (4,), (3,), (2,), True, False),
        ((2, 2, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True),
        ((1, 2, 5, 6, 4), (3, 2, 3), (2, 1, 2), (1, 0, 1), True, True),
        ((1, 2, 5, 6, 4), (3, 2, 3), (2, 3, 2), (1, 1, 1), True, False),
    ]:
        dims = len(kernel)
        cases.case(f"avg_pool{dims}d", lambda x: average[dims](x, kernel, stride, padding, ceil, include),
                   [*kernel, *stride, *padding, *[1] * dims, ceil, include], {"x": torch.randn(x)})
    adaptive = {1: F.adaptive_avg_pool1d, 3: F.adaptive_avg_pool3d}
    for x, size in [
        ((2, 3, 7), (3,)),
        ((2, 2, 3), (5,)),
        ((2, 2, 4, 4, 4), (1, 1, 1)),
        ((1, 2, 5, 3, 4), (3, 2, 3)),
        ((1, 3, 2, 4, 3), (4, 2, 5)),
    ]:
        cases.case(f"adaptive_avg_pool{len(size)}d", lambda x: adaptive[len(size)](x, size), [*size],
                   {"x": torch.randn(x)})
    # Ties: the first maximum of a window gets the gradient.
    cases.case("max_pool_ties", lambda x: F.max_pool3d(x, 3, 2, 1),
               [3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 1],
               {"x": torch.randint(0, 2, (2, 2, 4, 5, 4)).double()})


def initial_values(file):
    layers = {
        "conv1d": lambda: nn.Conv1d(4, 6, 3, groups=2),
        "conv3d": lambda: nn.Conv3d(3, 4, (2, 3, 1)),
        "conv_transpose1d": lambda: nn.ConvTranspose1d(3, 5, 4),
        "conv_transpose2d": lambda: nn.ConvTranspose2d(4, 6, (3, 2), groups=2),
        "conv_transpose2d_no_bias": lambda: nn.ConvTranspose2d(5, 3, 4, bias=False),
        "conv_transpose3d": lambda: nn.ConvTranspose3d(2, 3, 2),
    }
    torch.manual_seed(7)  # once: the layers follow each other in one stream
    for name, make in layers.items():
        layer = make()
        file.add(f"initial/{name}/weight", layer.weight)
        if layer.bias is not None:
            file.add(f"initial/{name}/bias", layer.bias)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Cases("conv_nd.golden") as cases:
        initial_values(cases)
        torch.manual_seed(2025)
        torch.set_default_dtype(torch.float64)
        conv(cases)
        conv_transpose(cases)
        pool(cases)
