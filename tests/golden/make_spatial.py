#!/usr/bin/env python3
"""spatial.golden: convolution with "same" padding, adaptive maxima, unpooling, LP pooling, operations along the
dimension that scalars lack, for tests/unit/ops/test_ops_spatial.c; modules of them, for
tests/unit/nn/test_spatial_modules.c; spectral and weight norm, for tests/unit/nn/test_parametrize.c.

Cases are as in make_rearrange.py. A module's case has its state before (NAME/state/KEY) and after
(NAME/after/KEY) the calls, and NAME/y, NAME/dx, NAME/d/KEY.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations

from golden import Golden

torch.manual_seed(29)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def apart(*shape):
    """Distinct numbers, further apart than differences reach."""
    count = torch.Size(shape).numel()
    return (torch.randperm(count).double() / count * 4 - 2 + 0.05).reshape(shape)


def unpool(function, pool, kernel, stride, padding, size, *shape):
    """The indices of a real pooling."""
    x = apart(*shape)
    y, index = pool(x, kernel, stride, padding, return_indices=True)
    return (lambda y, i: function(y, i, kernel, stride, padding, size), y, index)


U = randn()
V = randn()
AT = torch.tensor(0)
ROW = torch.tensor([0])

CASES = {
    "conv1d_same": (lambda x, w, b: F.conv1d(x, w, b, padding="same"), randn(2, 3, 6), randn(4, 3, 3), randn(4)),
    "conv1d_same_even": (lambda x, w: F.conv1d(x, w, padding="same"), randn(2, 3, 6), randn(2, 3, 4)),
    "conv2d_same": (lambda x, w, b: F.conv2d(x, w, b, padding="same", dilation=(1, 2)), randn(2, 2, 5, 6),
                    randn(3, 2, 3, 2), randn(3)),
    "conv2d_same_even": (lambda x, w: F.conv2d(x, w, padding="same", groups=2), randn(1, 4, 4, 5), randn(4, 2, 2, 4)),
    "conv2d_same_one": (lambda x, w: F.conv2d(x, w, padding="same"), randn(1, 2, 3, 3), randn(2, 2, 1, 1)),
    "conv3d_same": (lambda x, w: F.conv3d(x, w, padding="same"), randn(1, 2, 3, 4, 3), randn(2, 2, 2, 3, 1)),
    "conv1d_single": (lambda x, w, b: F.conv1d(x, w, b, padding=1), randn(3, 6), randn(4, 3, 3), randn(4)),
    "conv2d_single": (lambda x, w: F.conv2d(x, w, stride=2), randn(3, 6, 5), randn(4, 3, 3, 3)),
    "conv_transpose2d_single": (lambda x, w: F.conv_transpose2d(x, w, stride=2), randn(3, 3, 2), randn(3, 2, 3, 3)),
    "conv3d_single": (lambda x, w: F.conv3d(x, w, padding="same"), randn(2, 3, 4, 3), randn(2, 2, 2, 3, 1)),
    "max_pool1d_single": (lambda x: F.max_pool1d(x, 2), apart(3, 6)),
    "max_pool2d_single": (lambda x: F.max_pool2d(x, 3, 2, 1), apart(3, 6, 5)),
    "avg_pool2d_single": (lambda x: F.avg_pool2d(x, 2), randn(3, 6, 5)),
    "adaptive_avg_pool2d_single": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), randn(3, 6, 5)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), apart(2, 3, 7)),
    "adaptive_max_pool1d_more": (lambda x: F.adaptive_max_pool1d(x, 5), apart(2, 3, 3)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), apart(2, 3, 7, 5)),
    "adaptive_max_pool2d_one": (lambda x: F.adaptive_max_pool2d(x, 1), apart(2, 3, 4, 5)),
    "adaptive_max_pool2d_single": (lambda x: F.adaptive_max_pool2d(x, (2, 4)), apart(2, 4, 4)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), apart(1, 2, 3, 7, 5)),
    "max_unpool1d": unpool(F.max_unpool1d, F.max_pool1d, 2, 2, 0, None, 2, 3, 7),
    "max_unpool2d": unpool(F.max_unpool2d, F.max_pool2d, 2, 2, 0, None, 2, 3, 4, 6),
    "max_unpool2d_sizes": unpool(F.max_unpool2d, F.max_pool2d, (3, 2), (3, 2), (1, 0), (7, 7), 1, 2, 7, 7),
    "max_unpool2d_single": unpool(F.max_unpool2d, F.max_pool2d, 2, 2, 0, None, 3, 4, 6),
    "max_unpool3d": unpool(F.max_unpool3d, F.max_pool3d, 2, 2, 0, None, 1, 2, 4, 4, 2),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 3), randn(2, 3, 7)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 2, stride=1), randn(2, 3, 4, 5)),
    "lp_pool2d_ceil": (lambda x: F.lp_pool2d(x, 3, (2, 3), ceil_mode=True), randn(1, 2, 5, 4).abs() + 0.2),
    "lp_pool2d_half": (lambda x: F.lp_pool2d(x, 0.5, 2), randn(1, 2, 4, 4).abs() + 0.2),
    "lp_pool2d_zero": (lambda x: F.lp_pool2d(x, 2, 2), torch.cat([randn(1, 2, 4, 2), torch.zeros(1, 2, 4, 2)], 3).double()),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3, 0.3, 0.6, 1.5), randn(2, 5, 4)),
    "local_response_norm_even": (lambda x: F.local_response_norm(x, 4, 0.5), randn(2, 3, 2, 3)),
    "local_response_norm_3d": (lambda x: F.local_response_norm(x, 2), randn(1, 3, 2, 2, 2)),
    "bilinear": (F.bilinear, randn(4, 3), randn(4, 2), randn(5, 3, 2), randn(5)),
    "bilinear_more": (F.bilinear, randn(2, 3, 3), randn(2, 3, 2), randn(4, 3, 2)),
    "bilinear_vectors": (F.bilinear, randn(3), randn(2), randn(4, 3, 2), randn(4)),
    "scalar_sum": (lambda x: x.sum(0), U),
    "scalar_mean_keepdim": (lambda x: x.mean(-1, keepdim=True), U),
    "scalar_softmax": (lambda x: x.softmax(0) * x, U),
    "scalar_log_softmax": (lambda x: x.log_softmax(-1) + x, U),
    "scalar_sort": (lambda x: x.sort(-1).values, U),
    "scalar_topk": (lambda x: x.topk(1, 0).values, U),
    "scalar_kthvalue": (lambda x: x.kthvalue(1, 0).values, U),
    "scalar_max": (lambda x: x.max(0).values, U),
    "scalar_amax": (lambda x: x.amax(0), U),
    "scalar_cumsum": (lambda x: x.cumsum(0), U),
    "scalar_cumprod": (lambda x: x.cumprod(-1), U),
    "scalar_prod": (lambda x: x.prod(0), U),
    "scalar_logsumexp": (lambda x: x.logsumexp(0), U),
    "scalar_norm": (lambda x: x.norm(dim=0), U),
    "scalar_var": (lambda x: x.var(0, unbiased=False) + x, U),
    "scalar_squeeze": (lambda x: x.squeeze(-1), U),
    "scalar_flatten": (lambda x: x.flatten(0, -1), U),
    "scalar_transpose": (lambda x: x.transpose(0, -1), U),
    "scalar_movedim": (lambda x: x.movedim(0, -1), U),
    "scalar_flip": (lambda x: x.flip(0), U),
    "scalar_unfold": (lambda x: x.unfold(0, 1, 1), U),
    "scalar_normalize": (lambda x: F.normalize(x, dim=0), U),
    "scalar_cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, 0), U, V),
    "scalar_index_select": (lambda x, i: x.index_select(0, i), U, ROW),
    "scalar_index_select_scalar": (lambda x, i: x.index_select(0, i), U, AT),
    "scalar_gather": (lambda x, i: x.gather(0, i), U, AT),
    "scalar_gather_row": (lambda x, i: x.gather(0, i), U, ROW),
    "scalar_scatter": (lambda x, i, s: x.scatter(0, i, s), U, AT, V),
    "scalar_scatter_add": (lambda s, i: torch.zeros((), dtype=torch.float64).scatter_add(0, i, s), U, AT),
    "scalar_scatter_fill": (lambda x, i: x.scatter(0, i, 2.0), U, AT),
    "scalar_index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2.0), U, AT, V),
    "scalar_index_copy": (lambda x, i, s: x.index_copy(0, i, s), U, ROW, randn(1)),
    "scalar_index_fill": (lambda x, i: x.index_fill(0, i, 2.0), U, ROW),
}


def indices(golden):
    x1, x2, x3 = apart(2, 3, 7), apart(2, 3, 7, 5), apart(1, 2, 4, 5, 3)
    ties = torch.randint(0, 2, (2, 3, 7, 5)).double()
    cases = {
        "max_pool1d": (x1, F.max_pool1d(x1, 3, 2, 1, return_indices=True)),
        "max_pool2d": (x2, F.max_pool2d(x2, 3, 2, 1, return_indices=True)),
        "max_pool3d": (x3, F.max_pool3d(x3, 2, return_indices=True)),
        "single": (x2[0], F.max_pool2d(x2[0], 2, return_indices=True)),
        "ties": (ties, F.max_pool2d(ties, 3, 2, return_indices=True)),
        "adaptive_max_pool1d": (x1, F.adaptive_max_pool1d(x1, 3, return_indices=True)),
        "adaptive_max_pool2d": (x2, F.adaptive_max_pool2d(x2, (4, 2), return_indices=True)),
        "adaptive_max_pool3d": (x3, F.adaptive_max_pool3d(x3, (3, 2, 2), return_indices=True)),
        "adaptive_ties": (ties, F.adaptive_max_pool2d(ties, (3, 2), return_indices=True)),
    }
    for name, (x, (y, index)) in cases.items():
        golden.add_all(f"indices/{name}", x=x, y=y, index=index)


def module(golden, name, net, *inputs, training=True):
    """State before, output and gradients, state after; and the gradients of a penalty on the input's gradient."""
    net = net.double().train(training)
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    for key, value in net.state_dict().items():
        golden.add(f"{name}/state/{key}", value)
    for i, x in enumerate(inputs):
        golden.add(f"{name}/x{i}", x)
    y = net(*inputs)
    golden.add(f"{name}/y", y)
    leaves = list(net.parameters())
    (dx,) = torch.autograd.grad(y.pow(3).sum(), inputs[0], create_graph=True)
    golden.add(f"{name}/dx", dx)
    penalty = dx.square().sum()
    golden.add(f"{name}/penalty", penalty)
    if leaves:
        gradients = torch.autograd.grad(penalty, leaves, allow_unused=True)
        for (key, leaf), gradient in zip(net.named_parameters(), gradients):
            golden.add(f"{name}/d/{key}", torch.zeros_like(leaf) if gradient is None else gradient)
    for key, value in net.state_dict().items():
        golden.add(f"{name}/after/{key}", value)


def modules(golden):
    torch.manual_seed(5)
    module(golden, "reflect", nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), randn(2, 2, 4, 5))
    module(golden, "replicate", nn.Conv1d(2, 3, 3, padding=4, stride=2, padding_mode="replicate"), randn(2, 2, 5))
    module(golden, "circular", nn.Conv2d(2, 2, (2, 3), padding="same", padding_mode="circular"), randn(1, 2, 4, 5))
    module(golden, "circular3d", nn.Conv3d(1, 2, 2, padding=(1, 0, 2), padding_mode="circular"), randn(1, 1, 3, 3, 4))
    module(golden, "same", nn.Conv2d(2, 2, (2, 3), padding="same", dilation=2), randn(2, 4, 5))
    for training in (True, False):
        norm = nn.InstanceNorm2d(3, momentum=0.3, affine=True, track_running_stats=True)
        with torch.no_grad():
            for value in (norm.weight, norm.bias, norm.running_mean):
                value.normal_()
            norm.running_var.uniform_(0.5, 2)
        module(golden, f"instance_norm{int(training)}", norm, randn(4, 3, 3, 4), training=training)
    module(golden, "instance_norm_single", nn.InstanceNorm1d(3, track_running_stats=True), randn(3, 6))
    torch.manual_seed(6)
    golden.add_all("initial/bilinear", **nn.Bilinear(3, 2, 4).state_dict())


NETS = {
    "linear": lambda norm: norm(nn.Linear(4, 3)),
    "conv": lambda norm: norm(nn.Conv2d(3, 4, 3, bias=False)),
    "transposed": lambda norm: norm(nn.ConvTranspose2d(3, 4, 3)),
    "embedding": lambda norm: norm(nn.Embedding(5, 4)),
}
INPUTS = {"linear": randn(5, 4), "conv": randn(2, 3, 5, 4), "transposed": randn(2, 3, 3, 2)}


def spectral_state(net):
    """The state under the names of torch.nn.utils.spectral_norm."""
    names = {"original": "weight_orig", "_u": "weight_u", "_v": "weight_v"}
    return {names.get(key.split(".")[-1], key): value for key, value in net.state_dict().items()}


def spectral(golden):
    """Three calls in training, of which the last one's penalty is differentiated; one in evaluation."""
    for name, make in NETS.items():
        if name == "embedding":
            continue
        torch.manual_seed(8)
        net = make(parametrizations.spectral_norm)
        key = f"spectral/{name}"
        golden.add_all(f"{key}/initial", **spectral_state(net))
        net = net.double()
        x = INPUTS[name].clone().requires_grad_()
        golden.add(f"{key}/x", x)
        outputs = [net(x), net(x), net(x)]
        for i, y in enumerate(outputs):
            golden.add(f"{key}/y{i}", y)
        # All three are in one graph.
        loss = sum(y.square().sum() for y in outputs)
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        gradients = torch.autograd.grad(dx.square().sum(), list(net.parameters()), allow_unused=True)
        golden.add(f"{key}/dx", dx)
        for (path, leaf), gradient in zip(net.named_parameters(), gradients):
            path = "weight_orig" if "original" in path else path
            golden.add(f"{key}/d/{path}", torch.zeros_like(leaf) if gradient is None else gradient)
        golden.add_all(f"{key}/after", **spectral_state(net))
        golden.add(f"{key}/evaluated", net.eval()(x))
    torch.manual_seed(9)
    net = parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=3, dim=1)
    golden.add_all("spectral/options/initial", **spectral_state(net))
    net = net.double()
    x = randn(2, 6)
    golden.add_all("spectral/options", x=x, y=net(x))
    golden.add_all("spectral/options/after", **spectral_state(net))


def weight(golden):
    for name, make in NETS.items():
        for dim in (0, 1, None):
            torch.manual_seed(8)
            net = make(lambda layer: nn.utils.weight_norm(layer, dim=dim))
            key = f"weight/{name}/{-1 if dim is None else dim}"
            golden.add_all(f"{key}/initial", **net.state_dict())
            if name == "embedding":
                continue
            net = net.double()
            with torch.no_grad():
                net.weight_g.mul_(1.5)
            x = INPUTS[name].clone().requires_grad_()
            y = net(x)
            (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            gradients = torch.autograd.grad(dx.square().sum(), list(net.parameters()), allow_unused=True)
            golden.add_all(key, x=x, y=y, dx=dx)
            for (path, leaf), gradient in zip(net.named_parameters(), gradients):
                golden.add(f"{key}/d/{path}", torch.zeros_like(leaf) if gradient is None else gradient)


with Golden("spatial.golden") as golden:
    for name, (function, *inputs) in CASES.items():
        golden.add_operation(name, function, *inputs)
    indices(golden)
    modules(golden)
    spectral(golden)
    weight(golden)
