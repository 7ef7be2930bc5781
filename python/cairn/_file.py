"""Open files as `io` knows them."""

import contextlib
import errno
import io
import os
import threading

from ._library import Buffer, Handle, Stat, check, encoded, lib
from ._stat import stat_result
from ctypes import byref, c_ssize_t

# Of readers and writers by `Volume.open`: calls of the library are dearer than those of a kernel.
BUFFER_SIZE = 256 << 10


def flags_of(mode):
    """Flags of open(2) for the mode of an unbuffered file, such as "rb"."""
    kind = mode.replace("b", "").replace("+", "")
    if kind not in ("r", "w", "a", "x") or mode.count("+") > 1 or mode.count("b") > 1:
        raise ValueError(f"invalid mode: {mode!r}; it begins with one of r, w, a, x, and + and b or t may follow")
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if kind == "r" else os.O_WRONLY
    more = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL}
    return access | more[kind]


class File(io.RawIOBase):
    """An open file without a buffer. Threads may use it side by side; the position is one for all, and whoever reads or writes there has it
    for as long as that takes. `pread` and `pwrite` do not wait for each other."""

    def __init__(self, volume, path, mode="rb", permissions=0o666):
        super().__init__()
        self._handle = None
        # What was appended by a write that a signal's handler ended, and whose buffer will hand it down once more.
        self._repeats, self._buffered = None, 0
        self._lock = threading.RLock()
        flags = flags_of(mode)
        self.name, self.mode = path, mode
        self._appends = bool(flags & os.O_APPEND)
        self._readable = flags & os.O_ACCMODE != os.O_WRONLY
        self._writable = flags & os.O_ACCMODE != os.O_RDONLY
        self._position = 0
        # It is closed before the volume is.
        self._volume = volume
        self._pid = os.getpid()
        used, handle = volume._used(), Handle(lib.cairn_close)
        check(lib.cairn_open(used.pointer, encoded(path), flags, permissions, byref(handle.pointer)), path)
        self._handle = handle
        if self._appends:
            self._position = self._size()

    def _used(self):
        handle = self._handle
        if handle is None:
            raise ValueError("I/O operation on closed file")
        return handle

    def _turn(self):
        """The position is this thread's. In a forked child nothing works, and whoever had it does not exist."""
        return self._lock if self._pid == os.getpid() else contextlib.nullcontext()

    def _size(self):
        return self.stat().st_size

    def stat(self):
        """What is known of the file, with what was written to it here; as os.fstat."""
        handle, found = self._used(), Stat()
        check(lib.cairn_fstat(handle.pointer, byref(found)), self.name)
        return stat_result(found)

    def _check(self, offset):
        if offset < 0:
            raise OSError(errno.EINVAL, "an offset before the beginning of the file", self.name)

    def pread_into(self, buffer, offset):
        """Fills the buffer from an offset on, until the file ends; how many bytes."""
        handle = self._used()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        self._check(offset)
        with Buffer(buffer, True) as (address, length):
            return check(lib.cairn_pread(handle.pointer, address, length, offset), self.name)

    def pread(self, size, offset):
        """Up to so many bytes from an offset on; fewer only where the file ends."""
        # Memory for no more than the file has.
        size = max(0, min(size, self._size() - offset)) if size > BUFFER_SIZE else size
        buffer = bytearray(size)
        read = self.pread_into(buffer, offset)
        del buffer[read:]
        return bytes(buffer)

    def pwrite(self, data, offset):
        """Writes all of it at an offset; behind the end if the file was opened for appending."""
        handle = self._used()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        self._check(offset)
        with Buffer(data, False) as (address, length):
            return check(lib.cairn_pwrite(handle.pointer, address, length, offset), self.name)

    def readable(self):
        self._used()
        return self._readable

    def writable(self):
        self._used()
        return self._writable

    def seekable(self):
        self._used()
        return True

    def readinto(self, buffer):
        with self._turn():
            read = self.pread_into(buffer, self._position)
            self._position += read
            return read

    def readall(self):
        with self._turn():
            return self._read_on()

    def _read_on(self):
        parts = []
        while True:
            # At once, unless it grows meanwhile.
            size = max(self._size() - self._position, BUFFER_SIZE if parts else 1)
            part = bytearray(size)
            read = self.readinto(part)
            if read < size:
                del part[read:]
            parts.append(part)
            if read < size or self._position >= self._size():
                return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def write(self, data):
        with self._turn():
            if not self._appends:
                written = self.pwrite(data, self._position)
                self._position += written
                return written
            written = self._append(data)
            self._position = self._size()
            return written

    def _append(self, data):
        """Appends once, also where the exception of a signal's handler takes the place of the answer: a buffer around the file does not
        know that it was written, and hands it down again."""
        handle = self._used()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        repeats, self._repeats = self._repeats, None
        if repeats and bytes(memoryview(data).cast("B")[: len(repeats)]) == repeats:
            return len(repeats)
        outcome = c_ssize_t(0)
        try:
            with Buffer(data, False) as (address, length):
                call = lib.cairn_pwrite_noted(handle.pointer, address, length, 0, byref(outcome))
                return check(call, self.name)
        except BaseException:
            # What is longer than the buffer goes past it.
            if 0 < outcome.value <= self._buffered:
                self._repeats = bytes(memoryview(data).cast("B")[: outcome.value])
            raise

    def seek(self, offset, whence=io.SEEK_SET):
        self._used()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        with self._turn():
            if whence == io.SEEK_CUR:
                offset += self._position
            elif whence == io.SEEK_END:
                offset += self._size()
            if offset < 0:
                raise OSError(errno.EINVAL, "a position before the beginning of the file", self.name)
            self._position = offset
            return offset

    def tell(self):
        self._used()
        return self._position

    def truncate(self, size=None):
        handle = self._used()
        if not self._writable:
            raise io.UnsupportedOperation("truncate")
        size = self._position if size is None else size
        check(lib.cairn_ftruncate(handle.pointer, size), self.name)
        return size

    def publish(self):
        """What was written is seen by whoever reads from now on, and durable unless the volume has close_visible. A buffer around the
        file is flushed before."""
        check(lib.cairn_flush(self._used().pointer), self.name)

    def sync(self):
        """What was written is durable and seen by others. A buffer around the file is flushed before."""
        check(lib.cairn_fsync(self._used().pointer), self.name)

    def close(self):
        """What was written is durable, or at least seen by others with close_visible; an error of any write comes here at the latest."""
        handle, self._handle = self._handle, None
        try:
            # In a forked child there is nothing to flush: what the parent wrote is the parent's.
            if handle is not None and self._writable and self._pid == os.getpid():
                check(lib.cairn_flush(handle.pointer), self.name)
        finally:
            del handle
            super().close()
