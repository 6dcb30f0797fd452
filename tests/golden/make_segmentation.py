"""Writes segmentation.golden: U-Nets trained for twenty steps with cross entropy and Dice, from a seed.

The tests seed the generator with the same number, build the same network, draw the same pictures and labels, and
train: nothing is copied over. "transposed/" and "bilinear/" have the losses, "dice/" has a Dice loss with its gradient.
"""

import torch
from torch import nn
from torch.nn import functional as F

from golden import Golden

SEED, STEPS, BATCH, SIDE = 7, 20, 5, 16
CLASSES, IGNORED = 11, 255
WIDTH, DEPTH = 4, 2


def convolutions(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
    )  # fmt: skip


class Level(nn.Module):
    def __init__(self, cin, width, depth, up):
        super().__init__()
        self.before = convolutions(cin, width)
        self.inner = nn.Sequential(nn.MaxPool2d(2), levels(width, 2 * width, depth - 1, up))
        if up == "transposed":
            self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        else:
            scale = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.up = nn.Sequential(scale, nn.Conv2d(2 * width, width, 1))
        self.after = convolutions(2 * width, width)

    def forward(self, x):
        skipped = self.before(x)
        return self.after(torch.cat((skipped, self.up(self.inner(skipped))), 1))


def levels(cin, width, depth, up):
    return Level(cin, width, depth, up) if depth else convolutions(cin, width)


def dice_loss(logits, target):
    counted = (target != IGNORED).unsqueeze(1)
    right = F.one_hot(torch.where(target == IGNORED, 0, target), CLASSES).permute(0, 3, 1, 2) * counted
    found = logits.softmax(1) * counted
    both, labels = (found * right).sum((2, 3)), right.sum((2, 3))
    dice = (2 * both + 1) / (found.sum((2, 3)) + labels + 1)
    has = labels.clamp(0, 1)
    return 1 - ((dice * has).sum(1) / has.sum(1).clamp(min=1)).mean()


def data():
    """Different numbers of pixels count in each picture."""
    x = torch.randn(BATCH, 1, SIDE, SIDE).double()
    target = torch.randint(0, CLASSES, (BATCH, SIDE, SIDE))
    hidden = torch.randint(0, 8, (BATCH, SIDE, SIDE)) < torch.arange(BATCH).view(-1, 1, 1)
    target[hidden] = IGNORED
    return x, target


def train(golden, up):
    torch.manual_seed(SEED)
    model = nn.Sequential(levels(1, WIDTH, DEPTH, up), nn.Conv2d(WIDTH, CLASSES, 1)).double()
    x, target = data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, STEPS, 0.9)
    losses = []
    for _ in range(STEPS):
        logits = model(x)
        loss = F.cross_entropy(logits, target, ignore_index=IGNORED) + 0.5 * dice_loss(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    golden.add(f"{up}/losses", torch.stack(losses))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Golden("segmentation.golden") as golden:
        train(golden, "transposed")
        train(golden, "bilinear")
        torch.manual_seed(SEED)
        _, target = data()
        target = target[-2:, :6, :6].clone()
        target[0, target[0] == 4] = 3  # a class that a sample lacks
        target[0, 0, 0] = IGNORED
        logits = torch.randn(2, CLASSES, 6, 6).double().requires_grad_()
        loss = dice_loss(logits, target)
        loss.backward()
        golden.add_all("dice", target=target, logits=logits, loss=loss, gradient=logits.grad)
