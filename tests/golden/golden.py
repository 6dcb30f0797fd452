"""Writes golden files: named tensors of PyTorch, read by golden() in tests/unit/unit.h.

    from golden import Golden

    with Golden("mine.golden") as g:
        g.add("softmax/x", x)

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
