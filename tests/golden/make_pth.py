"""Writes pth/*.pth: files of torch.save, and files that no honest program wrote.

    python3 make_pth.py
"""

import argparse
import collections
import io
import pathlib
import pickle
import struct
import zipfile

import torch

here = pathlib.Path(__file__).resolve().parent / "pth"
here.mkdir(exist_ok=True)


def save(name, value, **options):
    torch.save(value, here / (name + ".pth"), **options)


# ---- as PyTorch writes them ----

net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
for i, tensor in enumerate(net.state_dict().values()):
    if tensor.dtype == torch.float32:
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) / 8 + i)
    else:
        tensor.fill_(9)
save("module", net.state_dict())
save("module_old", net.state_dict(), _use_new_zipfile_serialization=False)
save("module_protocol4", net.state_dict(), pickle_protocol=4)
save("whole", net)
wrapped = collections.OrderedDict(("module." + k, v) for k, v in net.state_dict().items())
save("wrapped", {"state_dict": wrapped, "args": argparse.Namespace(lr=1)})

t = torch.arange(12.0).reshape(3, 4)
everything = {
    "f64": t.double(),
    "f16": t.half(),
    "bf16": t.bfloat16(),
    "i64": t.long(),
    "i32": t.int(),
    "i16": t.short(),
    "i8": t.char(),
    "u8": t.byte(),
    "bool": t > 5,
    "transposed": t.t(),
    "transposed_f16": t.half().t(),
    "row": t[1],
    "columns": t[:, 1:3],
    "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "parameter": torch.nn.Parameter(t.clone()),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(3.5),
    "epoch": 7,
    "loss": 0.25,
    "negative": -3,
    "million": 10**6,
    "billions": -(10**10),
    "flag": True,
    "name": "caf\u00e9",
    "none": None,
    "huge": 1 << 70,
    "size": t.shape,
    "device": torch.device("cpu"),
    "list": [1, (2, "two")],
    3: {"key": torch.ones(2)},
}
save("everything", everything)
save("everything_old", everything, _use_new_zipfile_serialization=False)


# ---- as nobody should ----


def zipped(name, data, files=(), method=zipfile.ZIP_STORED, folder="archive/"):
    """An archive whose pickle is `data`; storage 0 has the numbers 0 to 3 in f32."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path, bytes in [
            ("data.pkl", data),
            ("data/0", struct.pack("<4f", 0, 1, 2, 3)),
            *files,
        ]:
            archive.writestr(zipfile.ZipInfo(folder + path, (1980, 1, 1, 0, 0, 0)), bytes, method)
    (here / (name + ".pth")).write_bytes(buffer.getvalue())


def tensor(offset=0, sizes=(4,), strides=(1,), key="0", kind="FloatStorage", count=4):
    """The operations that push a tensor in storage `key`."""

    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()

    def number(n):
        return b"\x8a\x08" + struct.pack("<q", n)

    def row(numbers):
        return b"(" + b"".join(map(number, numbers)) + b"t"

    storage = b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n"
    storage += text(key) + text("cpu") + number(count) + b"tQ"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + number(offset)
        + row(sizes)
        + row(strides)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def named(**operations):
    """A pickle of a dictionary."""
    pairs = b"".join(b"U" + bytes([len(k)]) + k.encode() + v for k, v in operations.items())
    return b"\x80\x02}(" + pairs + b"u."


zipped("plain", named(w=tensor(), v=tensor(1, (2, 2), (1, 1))))
zipped("outside", named(w=tensor(offset=1)))
zipped("overflow", named(w=tensor(0, (2**62, 4), (1, 2**62))))
zipped("expanded", named(w=tensor(0, (10**6, 4), (0, 1))))
zipped("negative", named(w=tensor(3, (4,), (-1,))))
zipped("missing", named(w=tensor(key="7")))
zipped("unknown", named(w=tensor(kind="QUInt8Storage")))
zipped("nine", named(w=tensor(0, (1,) * 9, (1,) * 9)))
zipped("twice", b"\x80\x02}(U\x03a.bK\x01U\x01a}U\x01bK\x02su.")
zipped("compressed", named(w=tensor()), method=zipfile.ZIP_DEFLATED)
zipped("big", named(w=tensor()), files=[("byteorder", b"big")])
zipped("opcode", b"\x80\x02I1\n.")
zipped("protocol", b"\x80\x09K\x01.")
zipped("early", b"\x80\x02}(")
zipped("stack", b"\x80\x02R.")
zipped("memo", b"\x80\x02K\x01r\xff\xff\xff\x7f.")
# Each of 40 lists has the one before twice: 2^40 numbers.
zipped("laughs", b"\x80\x02K\x01" + b"".join(b"q\x00](h\x00h\x00e" for _ in range(40)) + b".")
# The same without a number in it.
zipped("silent", b"\x80\x02]" + b"".join(b"q\x00](h\x00h\x00e" for _ in range(40)) + b".")
zipped("deep", b"\x80\x02K\x01" + b"\x85" * 200 + b".")
zipped("itself", b"\x80\x02]q\x00h\x00a.")
zipped("elsewhere", named(w=tensor()), folder="")
module = (here / "module.pth").read_bytes()
(here / "truncated.pth").write_bytes(module[:-100])
old = (here / "module_old.pth").read_bytes()
(here / "old_truncated.pth").write_bytes(old[:-10])
(here / "old_magic.pth").write_bytes(old[:15])
buffer = io.BytesIO()
with zipfile.ZipFile(buffer, "w") as archive:
    archive.writestr(zipfile.ZipInfo("a.txt", (1980, 1, 1, 0, 0, 0)), b"text")
(here / "other.pth").write_bytes(buffer.getvalue())
# A pickle that would call a function, if anything were called.
zipped("call", pickle.dumps({"w": 1}, 2)[:-1] + b"0cos\nsystem\nU\x05false\x85R.")
