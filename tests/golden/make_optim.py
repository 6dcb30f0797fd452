"""Writes optim.golden: optimizer trajectories, learning-rate schedules, clipped gradients.

A trajectory "name/" has p0 (f64), gradients (steps, n), p (steps, n) after each step, and the state at
its end. Its options are repeated in the test.
"""

import torch

from golden import Golden

STEPS = 6
COUNT = 19


class NAdam(torch.optim.Optimizer):
    """Dozat's, as in PyTorch 2: in PyTorch 1.13 mu is a factor of the second bias correction twice."""

    def __init__(self, parameters, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps, decay=weight_decay, momentum=momentum_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mu_product=torch.tensor(1.0), exp_avg=torch.zeros_like(p),
                                 exp_avg_sq=torch.zeros_like(p))
                state["step"] = t = state["step"] + 1
                mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (s * group["momentum"])) for s in (t, t + 1))
                state["mu_product"] *= mu
                gradient = p.grad + group["decay"] * p
                state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                size = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt_().add_(group["eps"])
                product = state["mu_product"].item()
                p.addcdiv_(gradient, size, value=-lr * (1 - mu) / (1 - product))
                p.addcdiv_(state["exp_avg"], size, value=-lr * mu_next / (1 - product * mu_next))


OPTIMIZERS = {
    "sgd/plain": (torch.optim.SGD, dict(lr=0.1)),
    "sgd/decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    "sgd/momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd/dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    "sgd/nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "sgd/maximize": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True)),
    "adam/plain": (torch.optim.Adam, dict(lr=0.01)),
    "adam/decay": (torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    "adam/amsgrad": (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adam/maximize": (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1, maximize=True)),
    "adam/beta_zero": (torch.optim.Adam, dict(lr=0.01, betas=(0.0, 0.9))),
    "adamw/plain": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw/no_decay": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0)),
    "adamw/amsgrad": (torch.optim.AdamW, dict(lr=0.02, weight_decay=0.3, amsgrad=True, maximize=True)),
    "adamax/plain": (torch.optim.Adamax, dict(lr=0.01)),
    "adamax/decay": (torch.optim.Adamax, dict(lr=0.02, betas=(0.8, 0.7), eps=1e-3, weight_decay=0.1, maximize=True)),
    "nadam/plain": (NAdam, dict()),
    "nadam/decay": (NAdam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, momentum_decay=0.2)),
    "radam/plain": (torch.optim.RAdam, dict(lr=0.01)),
    "radam/decay": (torch.optim.RAdam, dict(lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)),
    "rmsprop/plain": (torch.optim.RMSprop, dict()),
    "rmsprop/momentum": (torch.optim.RMSprop, dict(lr=0.02, alpha=0.8, momentum=0.9, weight_decay=0.1)),
    "rmsprop/centered": (torch.optim.RMSprop, dict(eps=1e-3, centered=True)),
    "rmsprop/both": (torch.optim.RMSprop, dict(alpha=0.9, eps=1e-3, centered=True, momentum=0.5, maximize=True)),
    "adagrad/plain": (torch.optim.Adagrad, dict()),
    "adagrad/decay": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.1, weight_decay=0.2, initial_accumulator_value=0.3, maximize=True)),
    "adadelta/plain": (torch.optim.Adadelta, dict()),
    "adadelta/decay": (torch.optim.Adadelta, dict(lr=0.5, rho=0.7, eps=1e-3, weight_decay=0.1, maximize=True)),
    "rprop/plain": (torch.optim.Rprop, dict()),
    "rprop/bounds": (torch.optim.Rprop, dict(lr=0.1, etas=(0.3, 1.7), step_sizes=(0.04, 0.2), maximize=True)),
    "asgd/plain": (torch.optim.ASGD, dict()),
    "asgd/average": (torch.optim.ASGD, dict(lr=0.1, lambd=0.3, alpha=0.5, t0=2, weight_decay=0.1, maximize=True)),
}


def trajectories(file):
    for name, (kind, options) in OPTIMIZERS.items():
        p = torch.randn(COUNT, requires_grad=True)
        # Of falling size, so that amsgrad's maximum differs from the running mean.
        gradients = torch.randn(STEPS, COUNT) / torch.arange(1, STEPS + 1).unsqueeze(1)
        optimizer = kind([p], **options)
        file.add_all(name, p0=p, gradients=gradients)
        after = []
        for gradient in gradients:
            p.grad = gradient.clone()
            optimizer.step()
            after.append(p.detach().clone())
        file.add(f"{name}/p", torch.stack(after))
        for key, value in optimizer.state[p].items():
            if key != "step" and value is not None:
                file.add(f"{name}/{key}", value)


def two_groups(kind=torch.optim.SGD, **options):
    first, second = [torch.zeros(1, requires_grad=True)], [torch.zeros(1, requires_grad=True)]
    return kind([{"params": first}, {"params": second, "lr": 0.7}], lr=0.3, **options)


def members(optimizer, member="lr"):
    return [group[member] for group in optimizer.param_groups]


BY_HAND = {4: (0.05, 0.9), 8: (0.2, 0.2), 9: (0.6, 0.04)}  # step after which rates are set


def schedules(file):
    """Rates after each step, also if somebody sets them, and far beyond T_max."""
    lr = torch.optim.lr_scheduler
    for name, make, steps, by_hand in [
        ("step", lambda o: lr.StepLR(o, 3, 0.5), 10, {}),
        ("cosine", lambda o: lr.CosineAnnealingLR(o, 8, 0.01), 10, {}),
        ("step_by_hand", lambda o: lr.StepLR(o, 3, 0.7), 39, BY_HAND),
        ("cosine_by_hand", lambda o: lr.CosineAnnealingLR(o, 8, 0.01), 39, BY_HAND),
        ("cosine_beyond", lambda o: lr.CosineAnnealingLR(o, 7, 0.003), 39, {}),
    ]:
        optimizer = two_groups()
        schedule = make(optimizer)
        rates = []
        for step in range(1, steps + 1):
            optimizer.step()
            schedule.step()
            rates.append(members(optimizer))
            for group, rate in zip(optimizer.param_groups, by_hand.get(step, ())):
                group["lr"] = rate
        file.add(f"schedule/{name}", torch.tensor(rates))


def more_schedules(file):
    """Rates from step 0 on, of two groups; for cycles also their momentum (or beta1)."""
    lr = torch.optim.lr_scheduler
    for name, make in {
        "lambda": lambda o: lr.LambdaLR(o, [lambda t: 1 / (1 + t), lambda t: 0.5**t]),
        "multiplicative": lambda o: lr.MultiplicativeLR(o, [lambda t: 0.9, lambda t: 1 - 0.01 * t]),
        "multi_step": lambda o: lr.MultiStepLR(o, [7, 3, 7, 12], 0.5),
        "constant": lambda o: lr.ConstantLR(o, 0.25, 4),
        "linear": lambda o: lr.LinearLR(o, 0.25, 0.75, 6),
        "exponential": lambda o: lr.ExponentialLR(o, 0.9),
        "polynomial": lambda o: lr.PolynomialLR(o, 9, 2.5),
        "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
        "restarts_equal": lambda o: lr.CosineAnnealingWarmRestarts(o, 4),
        "one_cycle": lambda o: lr.OneCycleLR(o, [0.5, 2.0], 18),
        "one_cycle_three": lambda o: lr.OneCycleLR(
            o, 0.5, 19, pct_start=0.4, anneal_strategy="linear", base_momentum=0.7, max_momentum=0.9,
            div_factor=10, final_div_factor=100, three_phase=True),
        "cyclic": lambda o: lr.CyclicLR(o, 0.01, 0.1, 3, 4),
        "cyclic_halves": lambda o: lr.CyclicLR(o, 0.01, 0.1, 2, mode="triangular2", cycle_momentum=False),
        "cyclic_range": lambda o: lr.CyclicLR(o, 0.01, 0.1, 4, mode="exp_range", gamma=0.95),
        "sequential": lambda o: lr.SequentialLR(
            o, [lr.ConstantLR(o, 0.1, 3), lr.ExponentialLR(o, 0.9), lr.CosineAnnealingLR(o, 6)], [4, 9]),
        "sequential_step": lambda o: lr.SequentialLR(
            o, [lr.LinearLR(o, 0.1, 1.0, 5), lr.StepLR(o, 2, 0.5), lr.PolynomialLR(o, 5)], [5, 11]),
        "sequential_restarts": lambda o: lr.SequentialLR(
            o, [lr.LinearLR(o, 0.5, 1.0, 3), lr.CosineAnnealingWarmRestarts(o, 4)], [3]),
        "chained": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.1, 4), lr.ExponentialLR(o, 0.9),
                                                  lr.MultiStepLR(o, [2, 6], 0.5)]),
        "adam_one_cycle": lambda o: lr.OneCycleLR(o, 0.5, 18),
    }.items():
        adam = name.startswith("adam")
        optimizer = two_groups(torch.optim.Adam) if adam else two_groups(momentum=0.4)
        schedule = make(optimizer)
        rows = []
        for step in range(19):
            momenta = [betas[0] for betas in members(optimizer, "betas")] if adam else members(optimizer, "momentum")
            rows.append(members(optimizer) + momenta)
            optimizer.step()
            if step < 18:
                schedule.step()
        file.add(f"more/{name}", torch.tensor(rows))


def plateaus(file):
    measures = [5, 4, 4.1, 3.99995, 4, 4.2, 4.1, 4.3, 3, 3.5, 3.6, 3.7, 3.8, 3.9, 4, 4.1, 4.2, 4.3, 4.4, 4.5]
    file.add("plateau/measures", torch.tensor(measures))
    lr = torch.optim.lr_scheduler
    for name, options in {
        "plain": dict(patience=2),
        "cooldown": dict(patience=1, cooldown=2, factor=0.5, min_lr=0.05),
        "higher": dict(mode="max", patience=0, threshold=0.2, threshold_mode="abs", factor=0.3),
        "relative": dict(mode="max", patience=2, threshold=0.1, eps=0.1),
    }.items():
        optimizer = two_groups()
        schedule = lr.ReduceLROnPlateau(optimizer, **options)
        rows = []
        for measure in measures:
            schedule.step(measure)
            rows.append(members(optimizer))
        file.add(f"plateau/{name}", torch.tensor(rows))


def clipping(file):
    gradients = [torch.randn(7), torch.randn(3, 4), torch.randn(2, 3, 2, 2)]
    for i, gradient in enumerate(gradients):
        file.add(f"clip/{i}/gradient", gradient)
    for name, clip in {
        "norm": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5),
        "loose": lambda p: torch.nn.utils.clip_grad_norm_(p, 150),
        "value": lambda p: torch.nn.utils.clip_grad_value_(p, 0.4),
        "inf": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5),
        "minus_inf": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5),
        "nan": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5),
        "one": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5, norm_type=1),
        "three": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5, norm_type=3),
        "most": lambda p: torch.nn.utils.clip_grad_norm_(p, 0.7, norm_type=float("inf")),
    }.items():
        parameters = [torch.zeros_like(g, requires_grad=True) for g in gradients]
        for p, g in zip(parameters, gradients):
            p.grad = g.clone()
        if name in ("inf", "minus_inf", "nan"):
            parameters[1].grad[1] = float(name.replace("minus_", "-"))
        result = clip(parameters)
        if result is not None:
            file.add(f"clip/{name}", result)
        for i, p in enumerate(parameters):
            file.add(f"clip/{i}/{name}", p.grad)


if __name__ == "__main__":
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    with Golden("optim.golden") as golden:
        trajectories(golden)
        schedules(golden)
        more_schedules(golden)
        plateaus(golden)
        clipping(golden)
