"""Writes pth/*.pth: files of torch.save, and files that no honest program wrote.

    python3 make_pth.py
"""

import argparse
import collections
import io
import json
import math
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


class Masked(torch.nn.Module):
    """A module with buffers that its state dictionary lacks, also in a child."""

    def __init__(self, child=None):
        super().__init__()
        self.fc = child or torch.nn.Linear(2, 1)
        self.register_buffer("mask", torch.zeros(3), persistent=False)
        self.register_buffer("kept", torch.ones(2))


torch.manual_seed(1)
save("masked", Masked(Masked()))
save("masked_protocol4", Masked(Masked()), pickle_protocol=4)
quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
save("kinds", {"w": torch.ones(2), "sparse": torch.eye(2).to_sparse(), "quantized": quantized})


# ---- a checkpoint with what evenkeel_archive.safetensors has, and more, for tests/fuzz ----


def checkpoint():
    """Nested dictionaries. All f32 tensors share a storage, as do the generators' states."""
    data = (here.parent / "evenkeel_archive.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    kinds = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "U8": torch.uint8}
    shared, flat = torch.linspace(-1, 1, 72), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        size, kind = entry["shape"], kinds[entry["dtype"]]
        if kind == torch.float32:
            flat[name] = shared[: math.prod(size)].reshape(size)
        else:
            flat[name] = torch.frombuffer(data[begin:end], dtype=kind).reshape(size)
        if not size:
            flat[name] = flat[name].item()
    nested = {"random": {key: flat["own"] for key in ("default", "python", "numpy")}}
    nested["schedule"] = {"steps": 3, "initial_lr": flat["optimizer.lr"], "lr": flat["optimizer.lr"]}
    nested["scaler"] = {"scale": 4.0, "tracker": 7}
    nested["ema"] = {"updates": 3}
    for name, value in flat.items():
        if name.startswith("model."):
            nested["ema"][name[6:]] = value
        place = nested
        *above, last = name.split(".", 1)
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


save("checkpoint", checkpoint(), _use_new_zipfile_serialization=False)


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


# Magic number, protocol, facts about the system.
old_begin = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."

zipped("plain", named(w=tensor(), v=tensor(1, (2, 2), (1, 1))))
zipped("outside", named(w=tensor(offset=1)))
zipped("overflow", named(w=tensor(0, (2**62, 4), (1, 2**62))))
zipped("expanded", named(w=tensor(0, (10**6, 4), (0, 1)), v=tensor()))
zipped("windows", named(w=tensor(0, (3, 4), (0, 1)), v=tensor(1, (2, 2), (1, 1)), s=tensor(3, (5,), (0,))))
# The state of a generator whose elements are all the last one of its storage.
last = tensor(5055, (5056,), (0,), "1", "ByteStorage", 5056)
zipped("state", named(g=last), files=[("data/1", bytes(5056))])
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
# 300 times a dictionary of 300 pairs whose keys have no name.
zipped("skipped", b"\x80\x02}q\x01(" + b"NN" * 300 + b"u0](" + b"h\x01" * 300 + b"e.")
zipped("script", named(w=tensor()), files=[("constants.pkl", b"\x80\x02).")])
zipped("deep", b"\x80\x02K\x01" + b"\x85" * 200 + b".")
zipped("itself", b"\x80\x02]q\x00h\x00a.")
zipped("elsewhere", named(w=tensor()), folder="")
# In the old format: a storage whose key takes long to be compared.
key = "0" * 2000
pickles = [old_begin, named(w=tensor(key=key)), b"\x80\x02](X" + struct.pack("<I", 2000) + key.encode() + b"e."]
(here / "longkey.pth").write_bytes(b"".join(pickles) + struct.pack("<Q4f", 4, 0, 1, 2, 3))
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
