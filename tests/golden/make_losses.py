"""Writes losses.golden: losses beside those of nn_loss.golden (make_nn_ops.py), medians, quantiles,
logcumsumexp, and rrelu.

Cases are those of golden.py: inputs "x", "u", "v", constants "t" (targets), "w" (weights or positions) and
others. All numbers are f64 that f32 holds exactly.
"""

import torch
import torch.nn.functional as F

from golden import Cases

torch.manual_seed(1130)
torch.set_default_dtype(torch.float64)

REDUCTIONS = ["mean", "sum", "none"]


def exact(x):
    return x.float().double()


def randn(*shape):
    return exact(torch.randn(shape))


def rand(*shape, low=0.0, high=1.0):
    return exact(torch.rand(shape) * (high - low) + low)


def signs(*shape):
    return torch.randint(0, 2, shape).double() * 2 - 1


def errors(file):
    for r, reduction in enumerate(REDUCTIONS):
        for percent in [100, 40, 250, 0]:
            # Gradients of both cancel out in the sum of their cubes.
            both = percent == 40
            inputs, constants = {"x": randn(3, 4)}, {"t": randn(3, 4)}
            if both:
                inputs["u"] = constants.pop("t")
            file.case("smooth_l1",
                      lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=percent / 100),
                      [r, percent], inputs, constants, second=percent > 0)
            if percent > 0:
                file.case("huber", lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=percent / 100),
                          [r, percent], inputs, constants)


def binary(file):
    for r, reduction in enumerate(REDUCTIONS):
        for weight in [None, (3, 4), (4,)]:
            constants = {"t": rand(3, 4)}
            if weight:
                constants["w"] = rand(*weight, low=0.5, high=1.5)
            # PyTorch adds 1e-12 in second derivatives.
            file.case("bce_loss", lambda x, t, w=None: F.binary_cross_entropy(x, t, w, reduction=reduction), [r],
                      {"x": rand(3, 4, low=0.3, high=0.7)}, constants)
            if weight == (3, 4):
                continue
            constants["t"] = torch.randint(0, 2, (3, 4)).double()
            file.case("multilabel_soft_margin",
                      lambda x, t, w=None: F.multilabel_soft_margin_loss(x, t, w, reduction=reduction), [r],
                      {"x": randn(3, 4)}, constants)
        file.case("soft_margin", lambda x, t: F.soft_margin_loss(x, t, reduction=reduction), [r],
                  {"x": randn(3, 4)}, {"t": signs(3, 4)})
    # Both operands have gradients, and probabilities of 0 and 1 the logarithm -100.
    file.case("bce_both", lambda x, y: F.binary_cross_entropy(x, y), [0],
              {"x": rand(5, low=0.1, high=0.9), "u": rand(5)}, second=False)
    file.case("bce_edges", lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), [2],
              {"x": torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0**-60])},
              {"t": torch.tensor([0.0, 1.0, 1.0, 0.25, 0.75])}, second=False)


def likelihoods(file):
    for r, reduction in enumerate(REDUCTIONS + ["batchmean"]):
        for log_target in [False, True]:
            x = exact(torch.log_softmax(torch.randn(3, 4), 1))
            target = exact(torch.softmax(torch.randn(3, 4), 1))
            file.case("kl_div", lambda x, y: F.kl_div(x, y, reduction=reduction, log_target=log_target),
                      [r, int(log_target)], {"x": x, "u": exact(target.log()) if log_target else target})
    zeros = torch.tensor([[0.0, 0.5, 0.5, 0.0]])
    file.case("kl_div_zeros", lambda x, t: F.kl_div(x, t, reduction="sum"), [1, 0], {"x": randn(1, 4)},
              {"t": zeros})
    for r, reduction in enumerate(REDUCTIONS):
        for log_input, full, eps in [(True, False, 0), (True, True, 0), (False, True, 0), (False, False, 25)]:
            x = randn(3, 4) if log_input else rand(3, 4, low=0.5, high=3)
            file.case("poisson_nll",
                      lambda x, t: F.poisson_nll_loss(x, t, log_input, full, eps=eps / 100 if eps else 1e-8,
                          reduction=reduction),
                      [r, int(log_input), int(full), eps], {"x": x},
                      {"t": torch.randint(0, 6, (3, 4)).double()})
        for shape, full, eps in [((3, 4), False, 0), ((3, 1), True, 0), ((3,), False, 0), ((3, 4), True, 60)]:
            file.case(
                "gaussian_nll_bounded" if eps else "gaussian_nll",
                lambda x, y, z: F.gaussian_nll_loss(
                    x, y, z, full=full, eps=eps / 100 if eps else 1e-6, reduction=reduction
                ),
                [r, int(full), eps],
                {"x": randn(3, 4), "u": randn(3, 4), "v": rand(*shape, low=0.3, high=2)},
                second=not eps,  # the clamp in place is not differentiable twice
            )


def margins(file):
    for r, reduction in enumerate(REDUCTIONS):
        for percent in [0, 70]:
            file.case("margin_ranking",
                      lambda x, y, t: F.margin_ranking_loss(x, y, t, margin=percent / 100, reduction=reduction),
                      [r, percent], {"x": randn(6), "u": randn(6)}, {"t": signs(6)})
            file.case("cosine_embedding",
                      lambda x, y, t: F.cosine_embedding_loss(x, y, t, margin=percent / 200,
                          reduction=reduction),
                      [r, percent // 2], {"x": randn(5, 3), "u": randn(5, 3)}, {"t": signs(5)})
        for percent in [100, 30]:
            file.case("hinge_embedding",
                      lambda x, t: F.hinge_embedding_loss(x, t, margin=percent / 100, reduction=reduction),
                      [r, percent], {"x": randn(3, 4)}, {"t": signs(3, 4)})
        for percent, p, eps, swap in [(100, 2, 0, False), (50, 2, 0, True), (200, 1, 0, False), (100, 3, 10, True)]:
            file.case("triplet_margin",
                      lambda x, y, z: F.triplet_margin_loss(x, y, z, margin=percent / 100, p=p,
                          eps=eps / 100 if eps else 1e-6, swap=swap, reduction=reduction),
                      [r, percent, p, eps, int(swap)], {"x": randn(4, 3), "u": randn(4, 3), "v": randn(4, 3)})
        for p, percent, weighted in [(1, 100, False), (2, 100, False), (1, 50, True), (2, 80, True)]:
            constants = {"t": torch.randint(0, 5, (4,))}
            if weighted:
                constants["w"] = rand(5, low=0.5, high=1.5)
            file.case("multi_margin",
                      lambda x, t, w=None: F.multi_margin_loss(x, t, p=p, margin=percent / 100, weight=w,
                          reduction=reduction),
                      [r, p, percent], {"x": randn(4, 5)}, constants, second=False)
        file.case("multilabel_margin", lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), [r],
                  {"x": randn(4, 5)},
                  {"t": torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 1, 2, 3], [4, 3, 2, 1, 0], [2, 2, -1, -1, -1]])},
                  second=False)
    for name, function in [("multi_margin", F.multi_margin_loss), ("multilabel_margin", F.multilabel_margin_loss)]:
        target = torch.tensor(2) if name == "multi_margin" else torch.tensor([2, 0, -1, 4, 1])
        options = [0, 1, 100] if name == "multi_margin" else [0]
        file.case(name, function, options, {"x": randn(5)}, {"t": target}, second=False)
    file.case("cosine_embedding", lambda x, y, t: F.cosine_embedding_loss(x, y, t), [0, 0],
              {"x": randn(4), "u": randn(4)}, {"t": torch.tensor(1.0)})
    file.case("triplet_margin", lambda x, y, z: F.triplet_margin_loss(x, y, z), [0, 100, 2, 0, 0],
              {"x": randn(4), "u": randn(4), "v": randn(4)})


def probabilities(file):
    for shape, weighted, percent in [
        ((3, 4), False, 0),
        ((3, 4), True, 0),
        ((3, 4), True, 20),
        ((2, 3, 2, 2), False, 10),
        ((2, 3, 2), True, 0),
    ]:
        for r, reduction in enumerate(REDUCTIONS):
            inputs = {"x": randn(*shape), "u": exact(torch.softmax(torch.randn(shape), 1))}
            constants = {"w": rand(shape[1], low=0.5, high=1.5)} if weighted else {}
            file.case("probabilities",
                      lambda x, y, w=None: F.cross_entropy(x, y, w, reduction=reduction,
                          label_smoothing=percent / 100),
                      [r, percent], inputs, constants)


def sequences(file):
    frames, classes = 7, 4
    lengths = torch.tensor([7, 5, 7])
    targets = torch.tensor([[1, 1, 2], [2, 3, 0], [0, 0, 0]])
    target_lengths = torch.tensor([3, 2, 0])
    joined = torch.tensor([1, 1, 2, 2, 3])
    impossible = torch.tensor([7, 2, 7])
    for r, reduction in enumerate(REDUCTIONS):
        for t, blank, inputs, zero in [
            (targets, 0, lengths, False),
            (joined, 0, lengths, False),
            (targets.clamp(max=2), 3, lengths, False),
            (targets, 0, impossible, True),
        ]:
            where = target_lengths
            if zero:
                where = torch.tensor([3, 3, 0])
            file.case("ctc",
                      lambda x, t, lengths, target_lengths: F.ctc_loss(x.log_softmax(2), t, lengths,
                          target_lengths, blank, reduction, zero),
                      [r, blank, int(zero)], {"x": randn(frames, 3, classes)},
                      {"t": t, "w": inputs, "target_lengths": where}, second=False)


def orders(file):
    nan = float("nan")
    for shape in [(5,), (4, 3), (2, 3, 4), (1,)]:
        x = randn(*shape)
        file.case("median", lambda x: x.median(), [], {"x": x})
        holes = x.clone()
        holes.view(-1)[::5] = nan
        for dim in range(len(shape)):
            prefix, *_ = file.case("median_dim", lambda x: x.median(dim).values, [dim], {"x": x})
            file.add(f"{prefix}/index", x.median(dim).indices)
            value, index = holes.nanmedian(dim)
            median, median_index = holes.median(dim)
            file.add_all(file.next("nanmedian_dim"), x=holes, dim=dim, y=value, index=index, median=median,
                         median_index=median_index)
    equal = torch.tensor([1.0, 2.0, 2.0, 2.0, 5.0])
    file.case("median_equal", lambda x: x.median(), [], {"x": equal}, second=False)
    x = torch.tensor([3.0, nan, 1.0, nan, 2.0, 7.0])
    file.case("nanmedian", lambda x: x.nanmedian(), [], {"x": x}, second=False)
    for m, mode in enumerate(["linear", "lower", "higher", "nearest", "midpoint"]):
        q = exact(torch.tensor([0.0, 0.25, 0.45, 0.5, 0.85, 1.0]))
        for dim, keepdim, q in [(None, False, q), (0, False, q), (1, True, q), (-1, False, q[2]), (None, True, q)]:
            file.case("quantile", lambda x, t: torch.quantile(x, t, dim, keepdim, interpolation=mode),
                      [m, 9 if dim is None else dim, int(keepdim)], {"x": randn(6, 5)}, {"t": q},
                      second=False)
            x = randn(6, 5)
            x.view(-1)[::4] = nan
            x[:, 3] = nan
            for name, function in [("nanquantile", torch.nanquantile), ("quantile_nan", torch.quantile)]:
                file.case(name, lambda x, t: function(x, t, dim, keepdim, interpolation=mode).nan_to_num(77),
                          [m, 9 if dim is None else dim, int(keepdim)], {"x": x}, {"t": q}, second=False)
    for shape, dim in [((5,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 9, 2), 1)]:
        file.case("logcumsumexp", lambda x: x.logcumsumexp(dim), [dim], {"x": randn(*shape) * 3}, second=False)
    far = torch.tensor([[-1000.0, 0.0, 1000.0, -1000.0], [500.0, 1000.0, 1000.0, 999.0]])
    file.case("logcumsumexp_far", lambda x: x.logcumsumexp(1), [1], {"x": far}, second=False)


def tokens(file):
    for shape, weighted, percent in [
        ((6, 5), False, 0),
        ((2, 3, 5), False, 0),
        ((2, 2, 3, 5), True, 20),
        ((2, 3, 5), True, 10),
    ]:
        target = torch.randint(0, 5, shape[:-1])
        target.view(-1)[1] = -100
        for r, reduction in enumerate(REDUCTIONS):
            constants = {"t": target}
            if weighted:
                constants["w"] = rand(5, low=0.5, high=1.5)
            file.case("token_cross_entropy",
                      lambda x, t, w=None: F.cross_entropy(x.movedim(-1, 1), t, w, reduction=reduction,
                          label_smoothing=percent / 100),
                      [r, percent], {"x": randn(*shape)}, constants)


def slopes(file):
    for number, (shape, dtype) in enumerate([((40,), torch.float32), ((3, 5, 4), torch.float64)]):
        torch.manual_seed(91 + number)
        x = torch.randn(shape, dtype=dtype)
        torch.manual_seed(7)
        y = F.rrelu(x, 0.1, 0.3, training=True)
        file.add_all(f"rrelu/{number}", x=x, y=y, next=torch.rand(1, dtype=torch.float64))
        file.add(f"rrelu/{number}/still", F.rrelu(x, 0.1, 0.3))


with Cases("losses.golden", exact, second=True, zeros=False) as file:
    for family in [errors, binary, likelihoods, margins, probabilities, sequences, orders, slopes, tokens]:
        family(file)
