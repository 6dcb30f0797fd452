"""Writes lstm.golden: losses of recurrent networks that tell the language of words, trained for twenty steps.

"losses/KIND" are those of samples/lstm.c from seed SEED, with the words that tests/samples/test_lstm.c writes: words,
their order and initial values are drawn in the same order, and nothing is copied over. Sequences are packed here.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from golden import Golden

SEED, LANGUAGES, LISTED, WORDS, BATCH, EPOCHS = 7, 5, 45, 40, 50, 5
EMBEDDED, HIDDEN, LAYERS, LR, CLIP = 32, 8, 2, 0.005, 0.1


def word_lists():
    """Of small letters, from a generator of small numbers."""
    state = 1

    def draw(count):
        nonlocal state
        state = (1664525 * state + 1013904223) % 2**32
        return (state >> 16) % count

    return [
        ["".join(chr(97 + draw(10 + 4 * language)) for _ in range(3 + draw(8))) for _ in range(LISTED)]
        for language in range(LANGUAGES)
    ]


def training_words():
    """(word, language), in the order in which the sample has them"""
    generator = torch.Generator().manual_seed(SEED)
    training = []
    for language, words in enumerate(word_lists()):
        words = sorted(set(words))
        order = torch.randperm(len(words), generator=generator)[:WORDS]
        training += [(words[at], language) for i, at in enumerate(order) if i % 10 != 9]
    return training


def collate(samples):
    letters = [torch.tensor([ord(c) - 96 for c in word] + [0]) for word, _ in samples]
    targets = [torch.full((len(word) + 1,), language) for word, language in samples]
    return (
        pad_sequence(letters, batch_first=True),
        torch.tensor([len(word) for word in letters]),
        pad_sequence(targets, batch_first=True, padding_value=-100),
    )


class Network(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(27, EMBEDDED)
        self.recurrent = kind(EMBEDDED, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, LANGUAGES)

    def forward(self, letters, lengths):
        packed = pack_padded_sequence(self.embedding(letters), lengths, batch_first=True, enforce_sorted=False)
        output, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.head(output).transpose(1, 2)


def train(kind):
    torch.manual_seed(SEED)
    network = Network(kind).double()
    loader = torch.utils.data.DataLoader(training_words(), BATCH, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.Adam(network.parameters(), LR)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=EPOCHS * len(loader))
    losses = []
    for _ in range(EPOCHS):
        for letters, lengths, targets in loader:
            loss = nn.functional.cross_entropy(network(letters, lengths), targets)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            assert len(losses) > 0 or norm > CLIP
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("lstm.golden") as golden:
        for name, kind in {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}.items():
            golden.add(f"losses/{name}", train(kind))
