"""Writes npy/*.npy with NumPy: what tests/unit/data/test_npy.c reads, and what it refuses.

    /usr/bin/python3 make_npy.py

Element i in row-major order is what value() in test_npy.c says.
"""

import gzip
import io
import pathlib

import numpy as np

here = pathlib.Path(__file__).resolve().parent / "npy"
here.mkdir(exist_ok=True)


def values(dtype, *shape):
    i = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    if dtype == "<i8":
        i = i * 2**40 - 5
    elif dtype == "|u1":
        i = i * 7 % 256
    elif dtype == "|b1":
        i = i % 3 == 0
    elif dtype[1] in "iu":
        i = i * 0x13579BDF  # its last bytes
    else:
        i = i * 0.5 - 1
    return i.astype(dtype).reshape(shape)


def write(name, array, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    (here / name).write_bytes(stream.getvalue())
    return stream.getvalue()


def fortran(array):
    return np.asfortranarray(array)


f4 = write("f4.npy", values("<f4", 2, 3))
write("f8.npy", values("<f8", 3))
write("i8.npy", values("<i8", 2, 1, 2))
write("u1.npy", values("|u1", 3, 4))
write("b1.npy", values("|b1", 7))
write("version2.npy", values("<f4", 2, 3), (2, 0))
write("version3.npy", values("<f4", 2, 3), (3, 0))
write("scalar.npy", values("<f8"))
write("empty.npy", values("<i8", 0, 3))
write("empty_fortran.npy", fortran(values("<f4", 3, 0, 2)))
write("dimensions8.npy", values("|u1", 1, 2, 1, 3, 1, 2, 1, 1))
write("fortran2.npy", fortran(values("<f4", 5, 3)))
write("fortran3.npy", fortran(values("<f8", 2, 3, 4)))
write("fortran4.npy", fortran(values("<i8", 3, 2, 2, 5)))
write("fortran_blocks.npy", fortran(values("|u1", 35, 2, 67)))
write("f2.npy", values("<f2", 2, 3))
write("f2_all_kinds.npy", np.array([0, 0x8000, 1, 0x83FF, 0x400, 0x3555, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
                                    0xFE2A], dtype="<u2").view("<f2"))
for name in ("i1", "i2", "i4", "u2", "u4"):
    write(f"{name}.npy", values(("|" if name == "i1" else "<") + name, 3, 5))
write("i2_fortran.npy", fortran(values("<i2", 3, 2, 4)))
write("f2_fortran.npy", fortran(values("<f2", 35, 33)))
(here / "f4.npy.gz").write_bytes(gzip.compress(f4, mtime=0))

# Refused.
write("big_endian.npy", values("<f4", 2, 3).astype(">f4"))
write("big_endian_i4.npy", np.arange(3, dtype=">i4"))
write("u8.npy", np.arange(3, dtype="<u8"))
write("c8.npy", np.arange(3, dtype="<c8"))
write("object.npy", np.array([{"a": 1}, None], dtype=object))
write("structured.npy", np.zeros(2, dtype=[("x", "<f4"), ("y", "<i8")]))
write("text.npy", np.array(["ab", "c"]))
write("dimensions9.npy", np.zeros((1,) * 9, dtype="|u1"))
