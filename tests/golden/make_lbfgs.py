"""Writes lbfgs.golden: steps of torch.optim.LBFGS on a small network, in f64.

A case "name/" has p0 (n), the parameters in a row, p (steps, n) after each step, loss (steps), what each step
returned, and the state at the end. Its options are repeated in the test. "half/" is the state of "wolfe" after half of
its steps.
"""

import torch

from golden import Golden

torch.manual_seed(3)
X = torch.randn(9, 3, dtype=torch.float64)
Y = torch.randn(9, 2, dtype=torch.float64)


class Row(torch.nn.Module):
    """Two numbers, and a function of them."""

    def __init__(self, function):
        super().__init__()
        self.row = torch.nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
        self.function = function

    def loss(self):
        return self.function(self.row)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        self.layers = layers.double()

    def loss(self):
        return torch.nn.functional.mse_loss(self.layers(X), Y)


def valley(x):
    """Rosenbrock's function."""
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def steep(x):
    """The valley with walls so steep that a search narrows its bracket many times."""
    return 1e4 * valley(x)


def cliff(x):
    """Falls ever faster, so that no step satisfies the conditions."""
    return -(x ** 4).sum()


CASES = {
    "fixed": (20, dict(lr=0.3, max_iter=3, history_size=5)),
    "wolfe": (20, dict(max_iter=3, history_size=5, line_search_fn="strong_wolfe")),
    "defaults": (1, dict()),
    "wolfe_defaults": (2, dict(line_search_fn="strong_wolfe")),
    "long": (3, dict(lr=40, max_iter=3, line_search_fn="strong_wolfe")),
    "short": (3, dict(lr=1e-4, max_iter=3, line_search_fn="strong_wolfe")),
    "evaluations": (4, dict(lr=0.3, max_iter=10, max_eval=3)),
    "gradient": (8, dict(tolerance_grad=0.02, max_iter=5, line_search_fn="strong_wolfe")),
    "change": (8, dict(lr=0.1, tolerance_change=0.02, max_iter=30)),
    "valley": (20, dict(max_iter=4, line_search_fn="strong_wolfe")),
    "valley_far": (12, dict(lr=3, max_iter=3, history_size=2, line_search_fn="strong_wolfe")),
    "cliff": (1, dict(lr=1e-3, max_iter=1, line_search_fn="strong_wolfe")),
    "steep": (3, dict(lr=1e5, tolerance_change=0.05, line_search_fn="strong_wolfe")),
    "converged": (2, dict(tolerance_grad=100)),
}
ROWS = {"valley": valley, "valley_far": valley, "cliff": cliff, "steep": steep}


def row(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def add_state(golden, name, state):
    golden.add(f"{name}/n_iter", state["n_iter"])
    for key in ("d", "prev_flat_grad"):
        if key in state:
            golden.add(f"{name}/{key}", state[key].clone())
    for key in ("old_dirs", "old_stps", "ro"):
        if state.get(key):
            golden.add(f"{name}/{key}", torch.stack(state[key]))
    for key in ("t", "H_diag", "prev_loss", "func_evals"):
        if key in state:
            golden.add(f"{name}/{key}", torch.tensor(float(state[key]), dtype=torch.float64))


with Golden("lbfgs.golden") as golden:
    golden.add_all("data", x=X, y=Y)
    for name, (steps, options) in CASES.items():
        network = Row(ROWS[name]) if name in ROWS else Network()
        optimizer = torch.optim.LBFGS(network.parameters(), **options)
        golden.add(f"{name}/p0", row(network.parameters()))

        def closure():
            optimizer.zero_grad()
            loss = network.loss()
            loss.backward()
            return loss

        after, losses = [], []
        for step in range(steps):
            if name == "wolfe" and step == steps // 2:
                add_state(golden, "half", optimizer.state[next(network.parameters())])
            losses.append(float(optimizer.step(closure)))
            after.append(row(network.parameters()))
        golden.add_all(name, p=torch.stack(after), loss=torch.tensor(losses, dtype=torch.float64))
        add_state(golden, name, optimizer.state[next(network.parameters())])
