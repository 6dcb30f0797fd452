"""Writes distributed_sgd.golden: "Distributed Synchronous SGD" of PyTorch's distributed tutorial over gloo, on 1, 2 and
3 ranks.

Partition, DataPartitioner, Net, partition_dataset, run and average_gradients are the tutorial's, but for the numbers,
which are f64: in f32 ten epochs make 1e-4 of the last bits, which differ from one machine to the next. The data are the
first 1000 training pictures of Fashion-MNIST. "losses/N" (N, 10) has each rank's mean loss of each epoch.
"""

import gzip
import os
import tempfile
from math import ceil
from random import Random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F

from golden import Golden

DATA = "/usr/share/datasets/fashion-mnist/train-"
SAMPLES = 1000
EPOCHS = 10


class Partition:
    def __init__(self, data, index):
        self.data = data
        self.index = index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.data[self.index[index]]


class DataPartitioner:
    def __init__(self, data, sizes=(0.7, 0.2, 0.1), seed=1234):
        self.data = data
        self.partitions = []
        rng = Random()
        rng.seed(seed)
        data_len = len(data)
        indexes = list(range(data_len))
        rng.shuffle(indexes)
        for frac in sizes:
            part_len = int(frac * data_len)
            self.partitions.append(indexes[0:part_len])
            indexes = indexes[part_len:]

    def use(self, partition):
        return Partition(self.data, self.partitions[partition])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, training=self.training)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def read(name, header, count):
    with gzip.open(DATA + name) as file:
        file.read(header)
        return torch.tensor(list(file.read(count)), dtype=torch.uint8)


def first_samples():
    pictures = read("images-idx3-ubyte.gz", 16, SAMPLES * 28 * 28).view(-1, 1, 28, 28)
    pictures = (pictures.float() / 255 - 0.1307) / 0.3081
    return list(zip(pictures, read("labels-idx1-ubyte.gz", 8, SAMPLES).long()))


def partition_dataset(rank, size):
    bsz = 128 / float(size)
    partition = DataPartitioner(first_samples(), [1.0 / size for _ in range(size)]).use(rank)
    return torch.utils.data.DataLoader(partition, batch_size=int(bsz), shuffle=True), bsz


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size, store, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    torch.manual_seed(1234)
    train_set, bsz = partition_dataset(rank, size)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    num_batches = ceil(len(train_set.dataset) / bsz)
    losses = []
    for _ in range(EPOCHS):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data.double()), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        losses.append(epoch_loss / num_batches)
    all_losses = [None] * size
    dist.all_gather_object(all_losses, losses)
    if rank == 0:
        torch.save(torch.tensor(all_losses, dtype=torch.float64), result)
    dist.destroy_process_group()


def main():
    with Golden("distributed_sgd.golden") as g, tempfile.TemporaryDirectory() as directory:
        for size in (1, 2, 3):
            result = os.path.join(directory, f"result{size}")
            mp.spawn(run, (size, os.path.join(directory, f"store{size}"), result), size)
            g.add(f"losses/{size}", torch.load(result))


if __name__ == "__main__":
    main()
