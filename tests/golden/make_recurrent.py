"""Writes recurrent.golden: initial values, outputs, states and gradients of recurrent networks, and a loss curve.

The tests seed the generator with the same number, build the same module and draw the same inputs: nothing is copied
over.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from golden import Golden

INPUT, HIDDEN, STEPS, SAMPLES = 3, 4, 5, 3
BOTH = {"num_layers": 2, "bidirectional": True}

# name: class, options, lengths; without "state" the state before is left out, with "one" there is no batch
NETWORKS = {
    "rnn": (nn.RNN, BOTH, None, "state"),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu", "bias": False}, None, ""),
    "rnn_short": (nn.RNN, BOTH, [3, 1, 2], "state"),
    "lstm": (nn.LSTM, {**BOTH, "dropout": 0.4}, None, "state"),
    "lstm_proj": (nn.LSTM, {**BOTH, "proj_size": 2, "batch_first": True}, None, "state"),
    "lstm_lengths": (nn.LSTM, {**BOTH, "batch_first": True}, [3, 5, 1], "state"),
    "lstm_one": (nn.LSTM, {"num_layers": 2}, None, "state one"),
    "gru": (nn.GRU, {**BOTH, "dropout": 0.4}, None, "state"),
    "gru_lengths": (nn.GRU, BOTH, [2, 4, 5], "state"),
    "gru_one": (nn.GRU, {"batch_first": True, "bias": False}, None, "one"),
}

CELLS = {
    "rnn_cell": (nn.RNNCell, {}),
    "rnn_cell_relu": (nn.RNNCell, {"nonlinearity": "relu", "bias": False}),
    "lstm_cell": (nn.LSTMCell, {}),
    "gru_cell": (nn.GRUCell, {}),
}


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def finish(file, name, module, results, leaves):
    """Writes results, and the gradients of the sum of their squares, weighted by 1, 2, 3."""
    sum((i + 1) * result.square().sum() for i, result in enumerate(results)).backward()
    for i, result in enumerate(results):
        file.add(f"{name}/result{i}", result)
    for i, leaf in enumerate(leaves):
        file.add(f"{name}/gradient{i}", leaf.grad)
    file.add(f"{name}/gradients", flat(p.grad for p in module.parameters()))


def networks(file):
    for name, (make, options, lengths, how) in NETWORKS.items():
        torch.manual_seed(11)
        module = make(INPUT, HIDDEN, **options)
        file.add(f"{name}/initial", flat(module.parameters()))
        module.double()
        batch_first = options.get("batch_first", False)
        batch = [] if "one" in how else [SAMPLES]
        x = draw(*([*batch, STEPS] if batch_first else [STEPS, *batch]), INPUT)
        rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        leaves, state = [x], None
        if "state" in how:
            h = draw(rows, *batch, options.get("proj_size", HIDDEN))
            leaves.append(h)
            state = h
            if make is nn.LSTM:
                c = draw(rows, *batch, HIDDEN)
                leaves.append(c)
                state = (h, c)
        if lengths is not None:
            packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted=False)
            packed, after = module(packed, state)
            output, _ = pad_packed_sequence(packed, batch_first, total_length=STEPS)
        else:
            output, after = module(x, state)
        finish(file, name, module, [output, *(after if make is nn.LSTM else [after])], leaves)


def cells(file):
    for name, (make, options) in CELLS.items():
        torch.manual_seed(12)
        module = make(INPUT, HIDDEN, **options)
        file.add(f"{name}/initial", flat(module.parameters()))
        module.double()
        first, second = draw(SAMPLES, INPUT), draw(SAMPLES, INPUT)
        after = module(second, module(first))
        finish(file, name, module, after if make is nn.LSTMCell else [after], [first, second])


def curve(file):
    torch.manual_seed(13)
    lstm = nn.LSTM(6, 16, num_layers=2, dropout=0.25, batch_first=True, bidirectional=True).double()
    gru = nn.GRU(32, 8, batch_first=True).double()
    head = nn.Linear(8, 2).double()
    parameters = [*lstm.parameters(), *gru.parameters(), *head.parameters()]
    x = torch.randn(8, 7, 6, dtype=torch.float64)
    target = torch.randn(8, 7, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    losses = []
    for _ in range(20):
        loss = nn.functional.mse_loss(head(gru(lstm(x)[0])[0]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    file.add("curve", torch.tensor(losses, dtype=torch.float64))


def padding(file):
    pieces = [torch.arange(n * 2, dtype=torch.float32).reshape(n, 2) for n in (2, 4, 1)]
    file.add("padded", pad_sequence(pieces, padding_value=-1))
    file.add("padded_batch_first", pad_sequence(pieces, batch_first=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("recurrent.golden") as golden:
        networks(golden)
        cells(golden)
        curve(golden)
        padding(golden)
