"""Writes train.golden: initial values, averages of parameters, dropout that keeps moments, and
statistics of batch norms for given data."""


import torch
from torch import nn

from golden import Golden


def initial_values(file):
    """Each from seed 11. Shapes and options are repeated in the test."""
    init = nn.init
    for name, shape, fill in [
        ("kaiming_out", (6, 4, 3), lambda t: init.kaiming_uniform_(t, 0.3, mode="fan_out")),
        ("kaiming_relu", (6, 5), lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu")),
        ("kaiming_tanh", (6, 5), lambda t: init.kaiming_normal_(t, nonlinearity="tanh")),
        ("kaiming_selu", (6, 5), lambda t: init.kaiming_uniform_(t, nonlinearity="selu")),
        ("kaiming_linear", (6, 5), lambda t: init.kaiming_uniform_(t, nonlinearity="linear")),
        ("xavier_normal", (6, 4, 3), lambda t: init.xavier_normal_(t, 1.5)),
        ("orthogonal_tall", (9, 4), lambda t: init.orthogonal_(t)),
        ("orthogonal_wide", (4, 3, 3), lambda t: init.orthogonal_(t, 0.7)),
        ("orthogonal_square", (16, 16), lambda t: init.orthogonal_(t, 2.0)),
        ("trunc_normal", (10, 9), lambda t: init.trunc_normal_(t)),
        ("trunc_normal_far", (10, 9), lambda t: init.trunc_normal_(t, 1.0, 0.02, 0.99, 1.05)),
        ("eye", (3, 5), lambda t: init.eye_(t)),
        ("dirac1d", (4, 3, 4), lambda t: init.dirac_(t)),
        ("dirac2d", (6, 2, 3, 5), lambda t: init.dirac_(t, 2)),
        ("dirac3d", (2, 4, 3, 1, 2), lambda t: init.dirac_(t)),
        ("sparse", (10, 4), lambda t: init.sparse_(t, 0.35, 0.5)),
    ]:
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(11)
            file.add(f"init/{name}/{'f64' if dtype == torch.float64 else 'f32'}", fill(torch.empty(shape, dtype=dtype)))


def averages(file):
    """Of a layer with a batch norm's buffers, after each of 4 updates."""
    steps = [torch.randn(19, dtype=torch.float64) for _ in range(4)]
    file.add("ema/values", torch.stack(steps))
    for name, average in {
        "moving": lambda avg, p, n: 0.9 * avg + (1 - 0.9) * p,
        "equal": None,
    }.items():
        model = nn.Linear(19, 1, bias=False).double()
        averaged = torch.optim.swa_utils.AveragedModel(model, avg_fn=average)
        rows = []
        for step in steps:
            model.weight.data.copy_(step)
            averaged.update_parameters(model)
            rows.append(averaged.module.weight.detach().clone().flatten())
        file.add(f"ema/{name}", torch.stack(rows))


def alpha_dropout(file):
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(5)
        x = torch.linspace(-2, 2, 24, dtype=dtype).reshape(4, 6)
        file.add(f"alpha_dropout/{'f64' if dtype == torch.float64 else 'f32'}", nn.AlphaDropout(0.3)(x))


def statistics(file):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    batches = torch.randn(3, 8, 4, dtype=torch.float64)
    for i, layer in ((0, model[0]), (3, model[3])):
        file.add(f"bn/{i}.weight", layer.weight)
        file.add(f"bn/{i}.bias", layer.bias)
    model(batches[0] + 1)  # statistics that are to be forgotten
    model.eval()
    torch.optim.swa_utils.update_bn(list(batches), model)
    file.add("bn/batches", batches)
    for i in (1, 4):
        file.add(f"bn/{i}.running_mean", model[i].running_mean)
        file.add(f"bn/{i}.running_var", model[i].running_var)


if __name__ == "__main__":
    torch.manual_seed(8)
    with Golden("train.golden") as golden:
        initial_values(golden)
        averages(golden)
        alpha_dropout(golden)
        statistics(golden)
