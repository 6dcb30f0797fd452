"""Writes python.safetensors with Python's safetensors library, and has the library read
evenkeel.safetensors, which tests/unit/data/test_safetensors.c writes and compares byte for byte.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install 'safetensors>=0.8'
    /tmp/venv/bin/python make_safetensors.py

After a change of the tensors in both places, the test leaves the file that it wrote where
EVENKEEL_GOLDEN_WRITE says: EVENKEEL_GOLDEN_WRITE=evenkeel.safetensors build/tests/test_safetensors
"""

import ctypes
import pathlib
import struct
import sys

try:
    from safetensors import TensorSpec, deserialize, serialize_file
except ImportError:
    print("safetensors 0.8 is not installed: python.safetensors stays as it is")
    sys.exit(0)

here = pathlib.Path(__file__).resolve().parent


def tensor(dtype, shape, kind, *values):
    return dtype, shape, struct.pack(f"<{len(values)}{kind}", *values)


def write(path, tensors):
    buffers = {name: ctypes.create_string_buffer(t[2], len(t[2])) for name, t in tensors.items()}
    specs = {
        name: TensorSpec(dtype=dtype, shape=shape, data_len=len(data),
                         data_ptr=ctypes.addressof(buffers[name]))
        for name, (dtype, shape, data) in tensors.items()
    }
    serialize_file(specs, str(path), metadata={"format": "evenkeel"})


# bfloat16 1, -2.5, 0.15625
BF16 = (0x3F80, 0xC020, 0x3E20)

# Also in tests/unit/data/test_safetensors.c. Both sort by dtype, then by name.
shared = {
    "weights.f32": tensor("float32", [2, 3], "f", 0, 1, 2, 3, 4, 5.5),
    "f64": tensor("float64", [2], "d", 1e-300, -0.1),
    "bf16": tensor("bfloat16", [3], "H", *BF16),
    "i64": tensor("int64", [1, 2, 1], "q", -(2**62), 7),
    "bytes": tensor("uint8", [3], "B", 0, 1, 255),
    "scalar": tensor("float32", [], "f", 2.5),
    "empty": tensor("float32", [0, 3], "f"),
    'odd "\u00e4\u4e2d\U0001f600\\\n': tensor("uint8", [1], "B", 9),
}

# Of every kind: zeros, subnormal, normal and largest numbers, infinities, NaN; and what they are in float32.
F16 = (0, 0x8000, 1, 0x83FF, 0x0400, 0x3555, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE2A)
F16_WIDE = (0, 0x80000000, 0x33800000, 0xB87FC000, 0x38800000, 0x3EAAA000, 0xC77FE000, 0x7F800000, 0xFF800000,
            0x7FC00000, 0xFFC54000)
for half, wide in zip(F16[:9], F16_WIDE):
    (value,) = struct.unpack("<e", struct.pack("<H", half))
    assert struct.pack("<f", value) == struct.pack("<I", wide)

only_python = {
    "bool": tensor("bool", [2], "B", 1, 0),
    "f16": tensor("float16", [11], "H", *F16),
    "f16 wide": tensor("float32", [11], "I", *F16_WIDE),
    "f16 empty": tensor("float16", [2, 0], "H"),
    "i8": tensor("int8", [3], "b", -128, -1, 127),
    "i16": tensor("int16", [3], "h", -(2**15), -1, 2**15 - 1),
    "i32": tensor("int32", [3, 1], "i", -(2**31), -1, 2**31 - 1),
    "u16": tensor("uint16", [2], "H", 1, 2**16 - 1),
    "u32": tensor("uint32", [], "I", 2**32 - 1),
    "u64": tensor("uint64", [1], "Q", 5),
    "nine": tensor("uint8", [1] * 9, "B", 1),
}

write(here / "python.safetensors", {**shared, **only_python})

written = here / "evenkeel.safetensors"
if written.exists():
    read = dict(deserialize(written.read_bytes()))
    assert read.keys() == shared.keys(), read.keys()
    for name, (_, shape, data) in shared.items():
        assert bytes(read[name]["data"]) == data, name
        assert list(read[name]["shape"]) == shape, name
    again = here / "again.safetensors"
    write(again, shared)
    same = again.read_bytes() == written.read_bytes()
    again.unlink()
    assert same, "the library writes other bytes"
    print("evenkeel.safetensors: read; the library writes the same bytes")
