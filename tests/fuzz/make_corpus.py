"""Writes corpus/idx, corpus/cifar and corpus/npy: a file for each interesting shape of the format.

    python3 make_corpus.py
"""

import gzip
import pathlib
import struct

here = pathlib.Path(__file__).resolve().parent / "corpus"


def write(folder, **files):
    (here / folder).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (here / folder / name).write_bytes(data)


def zipped(data):
    return gzip.compress(data, mtime=0)


def damaged(data):
    """A wrong byte in a gzip stream's checksum."""
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]


# ---- IDX ----


def idx(*sizes, kind=8, ndim=None):
    elements = 1
    for size in sizes:
        elements *= size
    head = struct.pack(">HBB", 0, kind, len(sizes) if ndim is None else ndim)
    head += b"".join(struct.pack(">I", size) for size in sizes)
    return head + bytes(i * 7 % 256 for i in range(elements if elements < 4096 else 5))


images = idx(3, 2, 3)
write(
    "idx",
    labels=idx(5),
    images=images,
    colours=idx(2, 3, 2, 2),
    eight=idx(1, 2, 1, 2, 1, 2, 1, 2),
    nine=idx(*[1] * 9),
    none=idx(ndim=0),
    empty=idx(0, 28, 28),
    nothing=b"",
    magic=b"\0\0\x08",
    header=images[:14],
    short=images[:-1],
    long=images + b"\0",
    floats=idx(2, kind=0x0D),
    large=idx(2**32 - 1),
    overflow=idx(2**32 - 1, 2**32 - 1, 2**32 - 1),
    overflow_empty=idx(0, 2**32 - 1, 2**32 - 1),
    gzip=zipped(images),
    gzip_large=zipped(idx(2**32 - 1)),
    gzip_short=zipped(images)[:-9],
    gzip_sum=zipped(images)[:-3],
    gzip_damaged=damaged(zipped(images)),
    gzip_twice=zipped(images[:9]) + zipped(images[9:]),
    gzip_rubbish=zipped(images) + b"rubbish",
    gzip_magic=b"\x1f\x8b",
)

# ---- CIFAR ----


def record(*labels):
    return bytes(labels) + bytes(range(1, 193)) * 16


write(
    "cifar",
    ten=record(9),
    ten_two=record(0) + record(3),
    hundred=record(19, 99),
    hundred_two=record(1, 2) + record(0, 0),
    label_ten=record(3) + record(10),
    label_coarse=record(20, 0),
    label_fine=record(0, 100),
    nothing=b"",
    short=record(1)[:-2],
    long=record(2) + b"\0\0",
    gzip_ten=zipped(record(9) * 5),
    gzip_hundred=zipped(record(5, 50) * 5),
    gzip_label=zipped(record(1) + record(11)),
    gzip_short=zipped(record(7))[:-9],
    gzip_sum=zipped(record(7))[:-3],
    gzip_damaged=damaged(zipped(record(7))),
    gzip_twice=zipped(record(1)) + zipped(record(2)),
    gzip_part=zipped(record(1) + record(2)[:-1]),
)

# ---- NumPy ----


def npy(header, elements=b"", version=1, length=None):
    text = header.encode("latin1")
    length = len(text) if length is None else length
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", length)
        + text + elements
    )


def head(descr, order, shape):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return text + " " * (-(len(text) + 11) % 64) + "\n"


some = bytes(range(48))
f4 = npy(head("'<f4'", False, (2, 3)), some[:24])
write(
    "npy",
    f4=f4,
    f8=npy(head("'<f8'", False, (6,)), some),
    i8=npy(head("'<i8'", False, (3, 1, 2)), some),
    u1=npy(head("'|u1'", False, (2, 3)), some[:6]),
    b1=npy(head("'|b1'", False, (2,)), b"\0\1"),
    fortran=npy(head("'<f4'", True, (3, 4)), some),
    fortran3=npy(head("'|u1'", True, (2, 3, 4)), some[:24]),
    fortran_large=npy(head("'|u1'", True, (40, 3, 34)), bytes(i % 251 for i in range(40 * 3 * 34))),
    version2=npy(head("'<f4'", False, (2, 3)), some[:24], version=2),
    version3=npy(head("'<f4'", False, (2, 3)), some[:24], version=3),
    version4=npy(head("'<f4'", False, (2, 3)), some[:24], version=4),
    scalar=npy(head("'<f8'", False, ()), some[:8]),
    empty=npy(head("'<f8'", True, (0, 3))),
    tight=npy("".join(head("'|u1'", False, (2, 3)).split()), some[:6]),
    spaces=npy("{ \"shape\" : ( 6L , ) ,\t\"fortran_order\":True,\r\n'descr':'<u1'}", some[:6]),
    eight=npy(head("'|u1'", False, (1,) * 8), b"\7"),
    nine=npy(head("'|u1'", False, (1,) * 9), b"\7"),
    big_endian=npy(head("'>f4'", False, (2, 3)), some[:24]),
    half=npy(head("'<f2'", False, (2, 3)), some[:12]),
    object=npy(head("'|O'", False, (1,)), b"\x80\x03N."),
    structured=npy(head("[('x', '<f4'), ('y', '<i8')]", False, (1,)), some[:12]),
    negative=npy(head("'|u1'", False, (-1, -6)), some[:6]),
    overflow=npy(head("'<f8'", False, (2**32, 2**32)), some),
    overflow_size=npy(head("'<f8'", False, (2**64,)), some),
    overflow_empty=npy(head("'<f8'", False, (0, 2**62)), b""),
    large=npy(head("'<f8'", False, (2**29, 2**29)), some),
    length=npy(head("'<f4'", False, (2, 3)), some[:24], version=2, length=2**32 - 1),
    header=f4[:30],
    short=f4[:-1],
    long=f4 + b"\0",
    twice=npy("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (6,)}", some[:6]),
    missing=npy("{'descr': '|u1', 'shape': (6,)}", some[:6]),
    nothing=b"",
    gzip=zipped(f4),
    gzip_large=zipped(npy(head("'<f8'", False, (2**29, 2**29)), some)),
    gzip_sum=zipped(f4)[:-3],
    gzip_damaged=damaged(zipped(f4)),
    gzip_twice=zipped(f4[:70]) + zipped(f4[70:]),
)
