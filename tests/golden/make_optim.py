"""Writes optim.golden: optimizer trajectories, learning-rate schedules, clipped gradients.

A trajectory "name/" has p0 (f64), gradients (steps, n), p (steps, n) after each step, and the state at
its end. Its options are repeated in the test.
"""

import torch

from golden import Golden

STEPS = 6
COUNT = 19

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


def schedules(file):
    for name, make in {
        "schedule/step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
        "schedule/cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8, 0.01),
    }.items():
        p = torch.zeros(1, requires_grad=True)
        q = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.7}], lr=0.3)
        schedule = make(optimizer)
        rates = []
        for _ in range(10):
            optimizer.step()
            schedule.step()
            rates.append([group["lr"] for group in optimizer.param_groups])
        file.add(name, torch.tensor(rates))


BY_HAND = {4: (0.05, 0.9), 8: (0.2, 0.2), 9: (0.6, 0.04)}  # step after which rates are set


def schedules_by_hand(file):
    """Rates that somebody sets; and far beyond T_max."""
    for name, make in {
        "schedule/step_by_hand": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.7),
        "schedule/cosine_by_hand": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8, 0.01),
        "schedule/cosine_beyond": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7, 0.003),
    }.items():
        p = torch.zeros(1, requires_grad=True)
        q = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.7}], lr=0.3)
        schedule = make(optimizer)
        rates = []
        for step in range(1, 40):
            optimizer.step()
            schedule.step()
            rates.append([group["lr"] for group in optimizer.param_groups])
            if name != "schedule/cosine_beyond" and step in BY_HAND:
                for group, lr in zip(optimizer.param_groups, BY_HAND[step]):
                    group["lr"] = lr
        file.add(name, torch.tensor(rates))


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
        schedules_by_hand(golden)
        clipping(golden)
