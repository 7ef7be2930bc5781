"""libcairn by ctypes: its functions as cairn.h has them, errors as OSError, buffers without copies.

ctypes lets other threads run while a function of the library works. Handles are freed when the last thread that uses them is done:
each call holds the handle's object, so that nothing is freed under it.
"""

import ctypes
import ctypes.util
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_uint32, c_uint64, c_void_p

READ_ONLY = 1
CLOSE_VISIBLE = 2
TIME_OMIT = -(2**63)
TIME_NOW = 2**63 - 1
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def encoded(path):
    """A path or a name for the library, which takes it to end at the first NUL byte."""
    path = os.fsencode(path)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    return path


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64),
        ("flags", c_uint32),
        ("timeout_ms", c_uint32),
        ("connect_timeout_ms", c_uint32),
        ("reserved", c_uint32),
        ("memory_max", c_uint64),
        ("rack", c_char_p),
    ]


class Stat(ctypes.Structure):
    _fields_ = [
        ("ino", c_uint64),
        ("size", c_uint64),
        ("blocks", c_uint64),
        ("version", c_uint64),
        ("atime_ns", c_int64),
        ("mtime_ns", c_int64),
        ("ctime_ns", c_int64),
        ("btime_ns", c_int64),
        ("mode", c_uint32),
        ("nlink", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
    ]


class Dirent(ctypes.Structure):
    _fields_ = [
        ("stat", Stat),
        ("ino", c_uint64),
        ("type", c_uint32),
        ("has_stat", c_uint32),
        ("name", c_char * 256),
    ]


class SpaceStruct(ctypes.Structure):
    _fields_ = [("bytes", c_uint64), ("bytes_free", c_uint64), ("files", c_uint64), ("files_free", c_uint64)]


class HostStruct(ctypes.Structure):
    _fields_ = [("name", c_char * 256), ("address", c_char * 256), ("rack", c_char * 256)]


class PlaceStruct(ctypes.Structure):
    _fields_ = [
        ("offset", c_uint64),
        ("length", c_uint64),
        ("host_count", c_uint32),
        ("reserved", c_uint32),
        ("hosts", HostStruct * 16),
    ]


# As in cairn.h: name, answer, arguments.
FUNCTIONS = [
    ("cairn_version", c_char_p, []),
    ("cairn_last_error", c_char_p, []),
    ("cairn_connect", c_int, [c_char_p, c_char_p, POINTER(Options), POINTER(c_void_p)]),
    ("cairn_disconnect", c_int, [c_void_p]),
    ("cairn_sync", c_int, [c_void_p]),
    ("cairn_statfs", c_int, [c_void_p, POINTER(SpaceStruct)]),
    ("cairn_stat", c_int, [c_void_p, c_char_p, POINTER(Stat)]),
    ("cairn_lstat", c_int, [c_void_p, c_char_p, POINTER(Stat)]),
    ("cairn_mkdir", c_int, [c_void_p, c_char_p, c_uint32]),
    ("cairn_mkdirs", c_int, [c_void_p, c_char_p, c_uint32]),
    ("cairn_unlink", c_int, [c_void_p, c_char_p]),
    ("cairn_rmdir", c_int, [c_void_p, c_char_p]),
    ("cairn_rename", c_int, [c_void_p, c_char_p, c_char_p, c_uint]),
    ("cairn_symlink", c_int, [c_void_p, c_char_p, c_char_p]),
    ("cairn_link", c_int, [c_void_p, c_char_p, c_char_p]),
    ("cairn_readlink", c_ssize_t, [c_void_p, c_char_p, c_void_p, c_size_t]),
    ("cairn_chmod", c_int, [c_void_p, c_char_p, c_uint32]),
    ("cairn_chown", c_int, [c_void_p, c_char_p, c_uint32, c_uint32]),
    ("cairn_utimens", c_int, [c_void_p, c_char_p, c_int64, c_int64]),
    ("cairn_truncate", c_int, [c_void_p, c_char_p, c_uint64]),
    ("cairn_locate", c_int, [c_void_p, c_char_p, c_uint64, POINTER(PlaceStruct)]),
    ("cairn_getxattr", c_ssize_t, [c_void_p, c_char_p, c_char_p, c_void_p, c_size_t]),
    ("cairn_listxattr", c_ssize_t, [c_void_p, c_char_p, c_void_p, c_size_t]),
    ("cairn_setxattr", c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, c_int]),
    ("cairn_removexattr", c_int, [c_void_p, c_char_p, c_char_p]),
    ("cairn_open", c_int, [c_void_p, c_char_p, c_int, c_uint32, POINTER(c_void_p)]),
    ("cairn_pread", c_ssize_t, [c_void_p, c_void_p, c_size_t, c_uint64]),
    ("cairn_pwrite", c_ssize_t, [c_void_p, c_void_p, c_size_t, c_uint64]),
    ("cairn_pwrite_noted", c_ssize_t, [c_void_p, c_void_p, c_size_t, c_uint64, POINTER(c_ssize_t)]),
    ("cairn_flush", c_int, [c_void_p]),
    ("cairn_fsync", c_int, [c_void_p]),
    ("cairn_fstat", c_int, [c_void_p, POINTER(Stat)]),
    ("cairn_ftruncate", c_int, [c_void_p, c_uint64]),
    ("cairn_close", c_int, [c_void_p]),
    ("cairn_opendir", c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    ("cairn_readdir", c_int, [c_void_p, POINTER(Dirent)]),
    ("cairn_rewinddir", c_int, [c_void_p]),
    ("cairn_closedir", c_int, [c_void_p]),
]


def _find():
    """The library: named by the environment, in the wheel, or of the system."""
    named = os.environ.get("CAIRN_LIBRARY")
    if named:
        return named
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libcairn.so")
    return beside if os.path.exists(beside) else ctypes.util.find_library("cairn")


def _load():
    path = _find()
    if not path:
        raise ImportError("libcairn.so is not found: install the wheel that `make sdk` builds, or name the library in $CAIRN_LIBRARY")
    library = ctypes.CDLL(path)
    for name, answer, arguments in FUNCTIONS:
        function = getattr(library, name)
        function.restype, function.argtypes = answer, arguments
    return library


lib = _load()


def version():
    return lib.cairn_version().decode()


def error(code, path=None, other=None):
    """The OSError of a negative outcome."""
    text = os.fsdecode(lib.cairn_last_error())
    filename = None if path is None else os.fspath(path)
    prefix = f"{os.fsdecode(filename)}: " if filename is not None else None
    if prefix and text.startswith(prefix):
        text = text[len(prefix) :]
    if other is not None:
        return OSError(-code, text, filename, None, os.fspath(other))
    return OSError(-code, text, filename) if filename is not None else OSError(-code, text)


def check(outcome, path=None, other=None):
    if outcome < 0:
        raise error(outcome, path, other)
    return outcome


class Handle:
    """Something of the library's. It is freed with the last reference, which a call that uses it has, too.

    It is there before the call that fills it: an exception of a signal's handler comes right behind that call, and would leave what was
    opened to nobody.
    """

    __slots__ = ("pointer", "_free", "__weakref__")

    def __init__(self, free):
        self._free = free
        self.pointer = c_void_p()

    def __del__(self):
        # Whoever wants to know whether it is written has asked before.
        if getattr(self, "pointer", None):
            self._free(self.pointer)


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_void_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, POINTER(_PyBuffer), c_int], c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [POINTER(_PyBuffer)], None


class Buffer:
    """The memory of an object, such as bytes, a bytearray or an array, without a copy."""

    __slots__ = ("_view",)

    def __init__(self, source, writable):
        self._view = _PyBuffer()
        # PyBUF_SIMPLE, PyBUF_WRITABLE. An object that has no such memory raises.
        _get_buffer(source, ctypes.byref(self._view), 1 if writable else 0)

    def __enter__(self):
        return self._view.buf, self._view.len

    def __exit__(self, *_):
        _release_buffer(ctypes.byref(self._view))
