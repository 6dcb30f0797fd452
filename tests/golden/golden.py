"""Writes golden files: named tensors of PyTorch, read by golden() in tests/unit/unit.h.

    from golden import Golden

    with Golden("mine.golden") as file:
        file.add("softmax/x", x)
        file.add_operation("softmax", lambda x: x.softmax(1), x)

Cases is a file of operations with options, whose cases have numbers.

Format, little endian: "EKGOLD01", then entries until the end of the file: u32 name length, name bytes,
u32 dtype, u32 ndim, i64 dims[ndim], row-major data. The number of a dtype is ek_dtype's.
"""

import os
import struct

import torch

DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.int64: 3,
    torch.uint8: 4,
    torch.float16: 5,
    torch.int32: 6,
    torch.bool: 7,
}




def away_from_0(*shape):
    """Normal f64, away from 0, where many operations have a kink."""
    x = torch.randn(shape, dtype=torch.float64)
    return x + 0.2 * torch.sign(x)


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def in_place(function):
    """Applies an in-place function to a tensor with a history."""
    return lambda x, *others: function(x * 2, *others)


def or_zeros(gradient, leaf):
    return torch.zeros_like(leaf) if gradient is None else gradient


class Golden:
    """A golden file beside this script, replaced when the block ends well and kept when it does not."""

    def __init__(self, file):
        self.path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
        self.entries = []
        self.names = set()

    def add(self, name, value):
        """One entry. Python numbers and lists become tensors."""
        tensor = torch.as_tensor(value).detach().cpu()
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name}: {tensor.dtype} cannot be written")
        if name in self.names:
            raise ValueError(f"{name} is written twice")
        self.names.add(name)
        dtype = DTYPES[tensor.dtype]
        tensor = tensor.contiguous()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.int16)
        encoded = name.encode()
        self.entries.append(
            struct.pack("<I", len(encoded))
            + encoded
            + struct.pack("<II", dtype, tensor.dim())
            + struct.pack(f"<{tensor.dim()}q", *tensor.shape)
            + tensor.numpy().tobytes()
        )

    def add_all(self, prefix, **tensors):
        """Several entries, "prefix/key" each."""
        for key, value in tensors.items():
            self.add(f"{prefix}/{key}", value)

    def add_operation(self, name, function, *inputs):
        """Inputs "name/x0", ..., the output "name/y", a gradient of the output "name/g", and gradients
        "name/dx0", ... of floating inputs."""
        inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        leaves = [x for x in inputs if x.requires_grad]
        y = function(*inputs)
        g = torch.randn_like(y)
        if not y.requires_grad:
            y = y + 0 * leaves[0].sum()
        gradients = iter(torch.autograd.grad(y, leaves, g, allow_unused=True))
        for i, x in enumerate(inputs):
            self.add(f"{name}/x{i}", x)
            if x.requires_grad:
                self.add(f"{name}/dx{i}", or_zeros(next(gradients), x))
        self.add_all(name, y=y, g=g)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            return
        with open(self.path, "wb") as file:
            file.write(b"EKGOLD01")
            for entry in self.entries:
                file.write(entry)
        nbytes = os.path.getsize(self.path)
        print(f"{os.path.basename(self.path)}: {len(self.entries)} tensors, {nbytes} bytes")


class Cases(Golden):
    """A golden file of cases, groups "name/number/": "options" (i64, in the order of the test that reads them), inputs
    and constants by name, the output "y", the gradient that arrives there "dy", "d<input>" for every input, and,
    if `second`, "second_<input>", the gradient of the sum of g^3 over the first gradients g. Without `zeros` those
    are left out if all are 0."""

    def __init__(self, file, rounded=lambda x: x, second=False, zeros=True):
        super().__init__(file)
        self.counts = {}
        self.rounded = rounded
        self.second = second
        self.zeros = zeros

    def next(self, name):
        """The prefix of a case's entries."""
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        return f"{name}/{number}"

    def case(self, name, function, options, inputs, constants=None, second=None, **written):
        """One case of function(*inputs, *constants). What is only written follows the constants. Returns the
        prefix of the case's entries, the leaves and the gradient of the output."""
        prefix = self.next(name)
        second = self.second if second is None else second
        named = {k: v.clone().requires_grad_() for k, v in inputs.items()}
        leaves = list(named.values())
        constants = constants or {}
        y = function(*leaves, *constants.values())
        dy = self.rounded(torch.randn(y.shape))
        gradients = torch.autograd.grad(y, leaves, dy, create_graph=second, retain_graph=True)
        if options:
            self.add(f"{prefix}/options", torch.tensor(options, dtype=torch.int64))
        self.add_all(prefix, **inputs, **constants, **written, y=y, dy=dy)
        self.add_all(prefix, **{f"d{key}": g for key, g in zip(named, gradients)})
        penalty = sum((g**3).sum() for g in gradients)
        if second and penalty.requires_grad:
            seconds = torch.autograd.grad(penalty, leaves, allow_unused=True)
            if self.zeros or any(g is not None and (g != 0).any() for g in seconds):
                self.add_all(prefix, **{f"second_{k}": or_zeros(g, x) for (k, x), g in zip(named.items(), seconds)})
        return prefix, leaves, dy
