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

One file, without a build: it needs Python 3.8 and the shared library, which is the one that the variable
EVENKEEL_LIBRARY names, else that of ./build beside the source, else that of the system. Arrays travel by DLPack
(include/evenkeel/dlpack.h), in both directions, and keep their memory alive on the other side.
"""

import collections.abc
import csv
import ctypes
import ctypes.util
import json
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

DTYPES = ("f32", "f64", "bf16", "i64", "u8", "f16", "i32", "bool")  # as ek_dtype
_NUMPY = {"f32": "<f4", "f64": "<f8", "i64": "<i8", "u8": "|u1", "f16": "<f2", "i32": "<i4", "bool": "|b1"}
_HOST, _CUDA = 1, 2  # kinds of devices in DLPack


class Error(RuntimeError):
    """An error of the library, with its sentence."""


# ---- the library ----


def _struct(*fields):
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


_Device = _struct(("kind", c_int), ("index", c_int))
_Scope = _struct(("mark", ctypes.c_size_t), ("depth", ctypes.c_uint))
_Shape = _struct(("ndim", c_int), ("dims", c_int64 * 8))
_Value = _struct(("kind", c_int), ("marks", c_uint8 * 4), ("tensor", c_void_p))
_CPU = _Device(0, 0)

_FUNCTIONS = {
    "ek_archive_free": (None, c_void_p),
    "ek_archive_get": (_Value, c_void_p, c_char_p),
    "ek_archive_get_text": (c_char_p, c_void_p, c_char_p),
    "ek_archive_has": (ctypes.c_bool, c_void_p, c_char_p),
    "ek_archive_name": (c_char_p, c_void_p, c_int),
    "ek_archive_new": (c_void_p,),
    "ek_archive_open": (c_void_p, c_char_p),
    "ek_archive_put": (c_int, c_void_p, c_char_p, _Value),
    "ek_archive_put_text": (c_int, c_void_p, c_char_p, c_char_p),
    "ek_archive_save": (c_int, c_void_p, c_char_p),
    "ek_archive_text_name": (c_char_p, c_void_p, c_int),
    "ek_device_name": (c_char_p, _Device, c_char_p),
    "ek_error_clear": (None,),
    "ek_error_message": (c_char_p,),
    "ek_error_status": (c_int,),
    "ek_from_dlpack": (c_void_p, c_void_p, _Device, c_void_p),
    "ek_from_dlpack_unversioned": (c_void_p, c_void_p, _Device, c_void_p),
    "ek_keep": (c_void_p, c_void_p),
    "ek_read_npy": (c_void_p, c_char_p),
    "ek_release": (None, c_void_p),
    "ek_save_npy": (c_int, c_char_p, c_void_p),
    "ek_scope_begin": (_Scope,),
    "ek_scope_end": (None, POINTER(_Scope)),
    "ek_tensor_data": (c_void_p, c_void_p),
    "ek_tensor_device": (_Device, c_void_p),
    "ek_tensor_dtype": (c_int, c_void_p),
    "ek_tensor_shape": (_Shape, c_void_p),
    "ek_tensor_strides": (_Shape, c_void_p),
    "ek_to_dlpack": (c_void_p, c_void_p, c_void_p),
    "ek_to_dlpack_unversioned": (c_void_p, c_void_p, c_void_p),
    "ek_value_of_float": (_Value, c_double),
    "ek_value_of_int": (_Value, c_int64),
    "ek_value_of_tensor": (_Value, c_void_p),
    "ek_value_tensor": (c_void_p, _Value),
}


def _load():
    built = pathlib.Path(__file__).resolve().parents[2] / "build" / "libevenkeel.so"
    path = os.environ.get("EVENKEEL_LIBRARY") or (str(built) if built.exists() else ctypes.util.find_library("evenkeel"))
    if not path:
        raise ImportError("libevenkeel.so is missing: build it, or name it in EVENKEEL_LIBRARY")
    library = ctypes.CDLL(path)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
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


# ---- DLPack's structs, in Python's capsules ----

_LENT = (("data", c_void_p), ("kind", c_int32), ("number", c_int32), ("ndim", c_int32), ("code", c_uint8),
         ("bits", c_uint8), ("lanes", c_uint16), ("shape", c_void_p), ("strides", c_void_p), ("offset", c_uint64))  # fmt: skip
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_Old = _struct(*_LENT, ("context", c_void_p), ("deleter", _DELETER))
_New = _struct(("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _DELETER),
               ("flags", c_uint64), *_LENT)  # fmt: skip
# A capsule's name before and after the struct was taken. A capsule keeps the address of its name.
_KINDS = {_New: (b"dltensor_versioned", b"used_dltensor_versioned"), _Old: (b"dltensor", b"used_dltensor")}


def _capsule_function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _capsule_function("PyCapsule_New", ctypes.py_object, c_void_p, c_char_p, c_void_p)
# Of addresses instead of objects: a destructor's capsule must not be referred to again.
_capsule_valid = _capsule_function("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
_capsule_get = _capsule_function("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)
_capsule_rename = _capsule_function("PyCapsule_SetName", c_int, c_void_p, c_char_p)


def _delete(address, kind):
    kind.from_address(address).deleter(address)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule):
    """A capsule's destructor: if nobody took the struct, nobody else calls its deleter."""
    for kind, (name, _) in _KINDS.items():
        if _capsule_valid(capsule, name):
            _delete(_capsule_get(capsule, name), kind)


def from_dlpack(array):
    """A Tensor over the memory of another library's array. A read-only array is copied."""
    on_gpu = array.__dlpack_device__()[0] == _CUDA
    ready = {"stream": 1} if on_gpu else {}  # the default stream waits for the elements
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **ready)
    except TypeError:  # from before DLPack 1.0
        capsule = array.__dlpack__(**ready)
    for kind, (name, used) in _KINDS.items():
        if _capsule_valid(id(capsule), name):
            take = lib.ek_from_dlpack if kind is _New else lib.ek_from_dlpack_unversioned
            lent = _capsule_get(id(capsule), name)
            _capsule_rename(id(capsule), used)
            return _made(lambda: take(lent, _CPU, None))
    raise BufferError(f"{type(array).__name__}.__dlpack__ gives no capsule that DLPack knows")


class Tensor:
    """A tensor of the library. NumPy, PyTorch and others take it without a copy: numpy(), from_dlpack."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        lib.ek_release(self.handle)

    shape = property(lambda self: self._sizes(lib.ek_tensor_shape))
    strides = property(lambda self: self._sizes(lib.ek_tensor_strides), doc="In elements.")
    dtype = property(lambda self: DTYPES[lib.ek_tensor_dtype(self.handle)])

    def _sizes(self, get):
        sizes = get(self.handle)
        return tuple(sizes.dims[: sizes.ndim])

    @property
    def device(self):
        return lib.ek_device_name(lib.ek_tensor_device(self.handle), ctypes.create_string_buffer(16)).decode()

    def __repr__(self):
        return f"<evenkeel.Tensor {self.dtype}{list(self.shape)} on {self.device}>"

    @property
    def __array_interface__(self):
        data = lib.ek_tensor_data(self.handle)
        if self.dtype not in _NUMPY or not data:
            raise TypeError(f"{self!r} is nothing for NumPy: torch.from_dlpack takes bf16 and GPUs' memory")
        size = int(_NUMPY[self.dtype][2])
        return {"version": 3, "shape": self.shape, "typestr": _NUMPY[self.dtype], "data": (data, False),
                "strides": tuple(size * stride for stride in self.strides)}  # fmt: skip

    def numpy(self):
        import numpy

        return numpy.asarray(self)

    def item(self):
        return self.numpy().item()

    def _lend(self, kind, stream):
        lend = lib.ek_to_dlpack if kind is _New else lib.ek_to_dlpack_unversioned
        return _checked(lend(self.handle, stream))

    def __dlpack_device__(self):
        address = self._lend(_Old, -1)
        lent = _Old.from_address(address)
        place = lent.kind, lent.number
        _delete(address, _Old)
        return place

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} is lent where it lies, and not copied")
        kind = _New if max_version and max_version[0] >= 1 else _Old
        return _capsule_new(self._lend(kind, stream), _KINDS[kind][0], ctypes.cast(_drop, c_void_p))


# ---- files ----


class Archive(collections.abc.Mapping):
    """A checkpoint: its tensors, by their names, on the CPU. A tensor is read when it is asked for."""

    def __init__(self, path):
        self._file = _checked(lib.ek_archive_open(os.fsencode(path)))

    def __del__(self):
        lib.ek_archive_free(getattr(self, "_file", None))

    def _names(self, get):
        count = 0
        while (name := get(self._file, count)) is not None:
            yield name.decode()
            count += 1

    def __iter__(self):
        return self._names(lib.ek_archive_name)

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, name):
        if name not in self:
            raise KeyError(name)
        return _made(lambda: lib.ek_value_tensor(lib.ek_archive_get(self._file, name.encode())))

    def __contains__(self, name):
        return name in iter(self)

    @property
    def texts(self):
        return {key: lib.ek_archive_get_text(self._file, key.encode()).decode()
                for key in self._names(lib.ek_archive_text_name)}  # fmt: skip

    def below(self, name):
        """The tensors below `name` by the rest of their names: a state_dict for a module's name."""
        return {key[len(name) + 1 :]: self[key] for key in self if key.startswith(name + ".")}


def _put(archive, name, value):
    if isinstance(value, collections.abc.Mapping):
        for key, below in value.items():
            _put(archive, f"{name}.{key}" if name else str(key), below)
    elif isinstance(value, str):
        _checked(lib.ek_archive_put_text(archive, name.encode(), value.encode()))
    elif isinstance(value, (int, float)):
        made = lib.ek_value_of_int(value) if isinstance(value, int) else lib.ek_value_of_float(value)
        _checked(lib.ek_archive_put(archive, name.encode(), made))
    else:
        tensor = value if isinstance(value, Tensor) else from_dlpack(value)
        _checked(lib.ek_archive_put(archive, name.encode(), lib.ek_value_of_tensor(tensor.handle)))


def save(path, values):
    """Writes nested dictionaries of arrays, numbers and texts as a file of safetensors or, if its name ends in .pth
    or .pt, of torch.save."""
    archive = lib.ek_archive_new()
    try:
        _put(archive, "", values)
        _checked(lib.ek_archive_save(archive, os.fsencode(path)))
    finally:
        lib.ek_archive_free(archive)


def read_npy(path):
    return _made(lambda: lib.ek_read_npy(os.fsencode(path)))


def save_npy(path, tensor):
    _checked(lib.ek_save_npy(os.fsencode(path), tensor.handle))


def _number(text):
    try:
        return float(text) if text else None
    except ValueError:
        return text


def log(path):
    """The columns of a log: of lines of JSON, or of CSV with a line of names. A last line that is not complete yet, as
    while the run goes on, is left out."""
    lines = pathlib.Path(path).read_text().split("\n")[:-1]
    if lines and not lines[0].startswith("{"):
        rows = [{key: _number(text) for key, text in row.items()} for row in csv.DictReader(lines)]
    else:
        rows = [json.loads(line) for line in lines if line.strip()]
    names = dict.fromkeys(key for row in rows for key in row)
    return {name: [row.get(name) for row in rows] for name in names}
