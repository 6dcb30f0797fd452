"""Looks at a run from a notebook: its checkpoints as NumPy's or PyTorch's arrays, its logs as columns.

    import evenkeel
    run = evenkeel.Archive("run/checkpoint.safetensors")    # or a .pth file
    list(run), run.texts                                     # names of tensors; texts by their names
    run["model.0.weight"].numpy()                            # NumPy's array over the same memory
    torch.from_dlpack(run["model.0.weight"])                 # PyTorch's, also of bf16
    net.load_state_dict({k: torch.from_dlpack(v) for k, v in run.below("model").items()})
    evenkeel.log("run/log.jsonl")["loss"]                    # a list; None where a line has no loss

    mine = evenkeel.from_dlpack(array)                       # of any library, over the same memory
    evenkeel.save("x.pth", {"model": {"0.weight": array}, "step": 7, "note": "a text"})

Needs Python 3.8 and the shared library: the one that EVENKEEL_LIBRARY names, else that of ../../build, else the
system's. Arrays travel by DLPack (include/evenkeel/dlpack.h) in both directions, and keep their memory alive.
"""

import collections.abc
import csv
import ctypes
import ctypes.util
import itertools
import json
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

_DTYPES = ("f32", "f64", "bf16", "i64", "u8", "f16", "i32", "bool")  # as ek_dtype
_NUMPY = {"f32": "<f4", "f64": "<f8", "i64": "<i8", "u8": "|u1", "f16": "<f2", "i32": "<i4", "bool": "|b1"}
_CUDA = 2  # a kind of device in DLPack


class Error(RuntimeError):
    """With the library's sentence."""


def _struct(*fields):
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


_Device = _struct(("kind", c_int), ("index", c_int))
_Scope = _struct(("mark", ctypes.c_size_t), ("depth", ctypes.c_uint), ("line", c_int), ("file", c_char_p), ("thread", c_void_p))
_Shape = _struct(("ndim", c_int), ("dims", c_int64 * 8))
_Value = _struct(("kind", c_int), ("marks", c_uint8 * 4), ("tensor", c_void_p))
_Entry = _struct(("key", c_char_p), ("value", _Value))
_CPU = _Device(0, 0)

# The functions that are called, each with the codes of its result and of its arguments.
_CODES = {"-": None, "p": c_void_p, "s": c_char_p, "i": c_int, "l": c_int64, "f": c_double, "V": _Value, "D": _Device,
          "S": _Shape, "C": _Scope, "c": POINTER(_Scope), "e": POINTER(_Entry)}  # fmt: skip
_FUNCTIONS = """
error_status i, error_message s, error_clear -, scope_begin C, scope_end -c, keep pp, release -p,
archive_open ps, archive_new p, archive_free -p, archive_save ips, archive_put ipsV, archive_put_text ipss,
archive_name spi, archive_text_name spi, archive_get Vps, archive_get_text sps,
value_of_int Vl, value_of_float Vf, value_of_tensor Vp, value_tensor pV, value_dict Vei,
tensor_data pp, tensor_dtype ip, tensor_shape Sp, tensor_strides Sp,
to_dlpack ppp, to_dlpack_unversioned ppp, from_dlpack ppDp, from_dlpack_unversioned ppDp
"""


def _load():
    built = pathlib.Path(__file__).resolve().parents[2] / "build" / "libevenkeel.so"
    path = os.environ.get("EVENKEEL_LIBRARY") or (str(built) if built.exists() else ctypes.util.find_library("evenkeel"))
    library = ctypes.CDLL(path or "libevenkeel.so")
    if library.ek_abi() != 1:
        raise ImportError(f"{path or 'libevenkeel.so'} has the interface {library.ek_abi()}; this module knows 1")
    for name, types in (signature.split() for signature in _FUNCTIONS.split(",")):
        function = getattr(library, "ek_" + name)
        function.restype, *function.argtypes = (_CODES[code] for code in types)
    return library


lib = _load()


def _checked(result=None):
    """Returns the result of a call, or raises the thread's error."""
    if lib.ek_error_status() < 0:
        sentence = lib.ek_error_message().decode()
        lib.ek_error_clear()
        raise Error(sentence)
    return result


def _made(make):
    """A Tensor of what `make` returns, which the library's scope would release."""
    scope = lib.ek_scope_begin()
    try:
        return Tensor(lib.ek_keep(_checked(make())))
    finally:
        lib.ek_scope_end(scope)


# DLPack's structs, which travel in Python's capsules.
_LENT = (("data", c_void_p), ("kind", c_int32), ("number", c_int32), ("ndim", c_int32), ("code", c_uint8),
         ("bits", c_uint8), ("lanes", c_uint16), ("shape", c_void_p), ("strides", c_void_p), ("offset", c_uint64))  # fmt: skip
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_Old = _struct(*_LENT, ("context", c_void_p), ("deleter", _DELETER))
_New = _struct(("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _DELETER),
               ("flags", c_uint64), *_LENT)  # fmt: skip
# A capsule's name before and after the struct was taken. A capsule keeps the address of its name.
_KINDS = {_New: (b"dltensor_versioned", b"used_dltensor_versioned"), _Old: (b"dltensor", b"used_dltensor")}
# Capsules are passed by address: a destructor's capsule must not be referred to again.
_of_python, _type = ctypes.pythonapi, ctypes.PYFUNCTYPE
_capsule_new = _type(ctypes.py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _of_python))
_capsule_valid = _type(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _of_python))
_capsule_get = _type(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _of_python))
_capsule_rename = _type(c_int, c_void_p, c_char_p)(("PyCapsule_SetName", _of_python))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule):
    """A capsule's destructor: if nobody took the struct, nobody else calls its deleter."""
    for kind, (name, _) in _KINDS.items():
        if _capsule_valid(capsule, name):
            lent = _capsule_get(capsule, name)
            kind.from_address(lent).deleter(lent)


def _borrow(array):
    """The handle of a tensor over the array's memory, in the library's scope."""
    on_gpu = array.__dlpack_device__()[0] == _CUDA
    ready = {"stream": 1} if on_gpu else {}  # the default stream waits for the elements
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **ready)
    except TypeError:  # from before DLPack 1.0
        capsule = array.__dlpack__(**ready)
    kind = _New if _capsule_valid(id(capsule), _KINDS[_New][0]) else _Old
    lent = _capsule_get(id(capsule), _KINDS[kind][0])
    _capsule_rename(id(capsule), _KINDS[kind][1])
    return _checked((lib.ek_from_dlpack if kind is _New else lib.ek_from_dlpack_unversioned)(lent, _CPU, None))


def from_dlpack(array):
    """A Tensor over the memory of another library's array. A read-only array is copied."""
    return _made(lambda: _borrow(array))


def _sizes(shape):
    return tuple(shape.dims[: shape.ndim])


class Tensor:
    """A tensor of the library. NumPy, PyTorch and others take it without a copy: numpy(), from_dlpack."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self, release=lib.ek_release):
        release(self.handle)

    shape = property(lambda self: _sizes(lib.ek_tensor_shape(self.handle)))
    strides = property(lambda self: _sizes(lib.ek_tensor_strides(self.handle)), doc="In elements.")
    dtype = property(lambda self: _DTYPES[lib.ek_tensor_dtype(self.handle)])

    def __repr__(self):
        return f"<evenkeel.Tensor {self.dtype}{list(self.shape)}>"

    @property
    def __array_interface__(self):
        data = lib.ek_tensor_data(self.handle)
        if self.dtype not in _NUMPY or not data:
            raise TypeError(f"{self!r} is nothing for NumPy: torch.from_dlpack takes bf16 and GPUs' memory")
        size = int(_NUMPY[self.dtype][2])
        return {"version": 3, "shape": self.shape, "typestr": _NUMPY[self.dtype], "data": (data, False),
                "strides": tuple(size * stride for stride in self.strides)}  # fmt: skip

    def numpy(self):
        return __import__("numpy").asarray(self)

    def __dlpack_device__(self):
        address = _checked(lib.ek_to_dlpack_unversioned(self.handle, -1))
        lent = _Old.from_address(address)
        place = lent.kind, lent.number
        lent.deleter(address)
        return place

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} is lent where it lies, and not copied")
        new = max_version and max_version[0] >= 1
        lend = lib.ek_to_dlpack if new else lib.ek_to_dlpack_unversioned
        lent = _checked(lend(self.handle, stream))
        return _capsule_new(lent, _KINDS[_New if new else _Old][0], ctypes.cast(_drop, c_void_p))


class Archive(collections.abc.Mapping):
    """A checkpoint: tensors by their names, each read when it is asked for, and `texts`."""

    def __init__(self, path):
        self._file = _checked(lib.ek_archive_open(os.fsencode(path)))
        self._tensors = self._names(lib.ek_archive_name)
        self.texts = {key: lib.ek_archive_get_text(self._file, key.encode()).decode()
                      for key in self._names(lib.ek_archive_text_name)}  # fmt: skip

    def _names(self, get):
        named = (get(self._file, index) for index in itertools.count())
        return {name.decode(): None for name in iter(lambda: next(named), None)}

    def __del__(self, free=lib.ek_archive_free):
        free(getattr(self, "_file", None))

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def __contains__(self, name):
        return name in self._tensors

    def __getitem__(self, name):
        if name not in self._tensors:
            raise KeyError(name)
        return _made(lambda: lib.ek_value_tensor(lib.ek_archive_get(self._file, name.encode())))

    def below(self, name):
        """The tensors below `name` by the rest of their names: a state_dict for a module's name."""
        return {key[len(name) + 1 :]: self[key] for key in self if key.startswith(name + ".")}


def _value(archive, name, given):
    """The library's value of a dictionary, a number or an array, in its scope. Texts are put at once."""
    if not isinstance(given, collections.abc.Mapping):
        if isinstance(given, (int, float)):
            return lib.ek_value_of_int(given) if isinstance(given, int) else lib.ek_value_of_float(given)
        return lib.ek_value_of_tensor(given.handle if isinstance(given, Tensor) else _borrow(given))
    entries = []
    for key, below in given.items():
        path = f"{name}.{key}" if name else str(key)
        if isinstance(below, str):
            _checked(lib.ek_archive_put_text(archive, path.encode(), below.encode()))
        else:
            entries.append(_Entry(str(key).encode(), _value(archive, path, below)))
    return _checked(lib.ek_value_dict((_Entry * len(entries))(*entries), len(entries)))


def save(path, values):
    """Writes nested dictionaries of arrays, numbers and texts as a file of safetensors or, if its name ends in .pth
    or .pt, of torch.save."""
    scope, archive = lib.ek_scope_begin(), lib.ek_archive_new()
    try:
        _checked(lib.ek_archive_put(archive, b"", _value(archive, "", values)))
        _checked(lib.ek_archive_save(archive, os.fsencode(path)))
    finally:
        lib.ek_archive_free(archive)
        lib.ek_scope_end(scope)


def _number(text):
    try:
        return float(text) if text else None
    except ValueError:
        return text


def log(path):
    """The columns of a log: of lines of JSON, or of CSV with a line of names. A last line that is not complete yet, as
    while the run goes on, is left out."""
    lines = pathlib.Path(path).read_text().split("\n")[:-1]
    if lines and lines[0].startswith("{"):
        rows = [json.loads(line) for line in lines]
    else:
        rows = [{key: _number(text) for key, text in row.items()} for row in csv.DictReader(lines)]
    names = dict.fromkeys(key for row in rows for key in row)
    return {name: [row.get(name) for row in rows] for name in names}
