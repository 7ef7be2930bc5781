"""A connected volume: what `os` does with paths."""

import atexit
import io
import os
import stat as modes
import sys
import threading
import weakref
from ctypes import byref, create_string_buffer
from typing import NamedTuple

from . import _library
from ._file import BUFFER_SIZE, File
from ._library import Dirent, Handle, Options, PlaceStruct, SpaceStruct, Stat, check, encoded, lib
from ._stat import stat_result

_SCHEME = "cairn://"
_volumes = weakref.WeakSet()
# Files that are closed at a time.
_CLOSED_AT_ONCE = 32


class Space(NamedTuple):
    """What files of a volume can have, after redundancy."""

    bytes: int
    bytes_free: int
    files: int
    files_free: int


class Host(NamedTuple):
    """A machine that has a part of a file."""

    name: str
    address: str
    rack: str


class Place(NamedTuple):
    """A part of a file and the machines that have it, nearest to its writer first."""

    offset: int
    length: int
    hosts: list


class DirEntry:
    """An entry of a directory, as of os.scandir."""

    __slots__ = ("name", "path", "_volume", "_ino", "_type", "_stat")

    def __init__(self, volume, directory, entry, as_bytes):
        name = bytes(entry.name)
        self.name = name if as_bytes else os.fsdecode(name)
        self.path = os.path.join(directory, self.name)
        self._volume, self._ino, self._type = volume, entry.ino, entry.type
        self._stat = stat_result(entry.stat) if entry.has_stat else None

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def __fspath__(self):
        return self.path

    def inode(self):
        return self._ino

    def is_symlink(self):
        return modes.S_ISLNK(self._type)

    def is_dir(self, *, follow_symlinks=True):
        return modes.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks=True):
        return modes.S_ISREG(self._mode(follow_symlinks))

    def _mode(self, follow):
        if not (follow and self.is_symlink()):
            return self._type
        try:
            return self._volume.stat(self.path).st_mode
        except FileNotFoundError:
            return 0

    def stat(self, *, follow_symlinks=True):
        if follow_symlinks and self.is_symlink():
            return self._volume.stat(self.path)
        if self._stat is None:
            self._stat = self._volume.stat(self.path, follow_symlinks=False)
        return self._stat


def _milliseconds(seconds):
    if seconds is None:
        return 0
    if seconds <= 0:
        raise ValueError(f"a time of {seconds!r} seconds; it has to be more than 0")
    return min(max(1, int(seconds * 1000)), 2**32 - 1)


class Volume:
    """A connected volume; made by `cairn.connect`. Paths are absolute within it."""

    def __init__(self, cluster, volume, options):
        self._arguments = (cluster, volume, options)
        self._handle = None
        # Files, with whatever is around them.
        self._files = weakref.WeakKeyDictionary()
        given = dict(options)
        flags = _library.READ_ONLY * bool(given.pop("read_only", False))
        flags |= _library.CLOSE_VISIBLE * bool(given.pop("close_visible", False))
        made = Options()
        made.size, made.flags = _library.ctypes.sizeof(Options), flags
        made.timeout_ms = _milliseconds(given.pop("timeout", None))
        made.connect_timeout_ms = _milliseconds(given.pop("connect_timeout", None))
        made.memory_max = given.pop("memory_max", None) or 0
        rack = given.pop("rack", None)
        made.rack = encoded(rack) if rack else None
        if given:
            raise TypeError(f"connect() got an unexpected keyword argument {next(iter(given))!r}")
        self.name = volume
        self._pid = self._opened_in = os.getpid()
        where, handle = encoded(cluster) if cluster else None, Handle(lib.cairn_disconnect)
        check(lib.cairn_connect(where, encoded(volume), byref(made), byref(handle.pointer)))
        self._handle = handle
        _volumes.add(self)

    def __reduce__(self):
        return Volume, self._arguments

    def __repr__(self):
        return f"<cairn.Volume {self.name!r}{' (closed)' if self._handle is None else ''}>"

    @property
    def closed(self):
        return self._handle is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _used(self):
        handle = self._handle
        if handle is None:
            raise ValueError("operation on a closed volume; connect again")
        return handle

    def _call(self, function, path, *more):
        handle = self._used()
        return check(function(handle.pointer, encoded(path), *more), path)

    def close(self):
        """Closes all files that are open, makes everything durable and ends the session."""
        if self._handle is None:
            return
        first = self._close_files()
        handle, self._handle = self._handle, None
        try:
            # In a child that opened nothing there is nothing to sync; one that did syncs its own.
            check(lib.cairn_sync(handle.pointer) if os.getpid() in (self._pid, self._opened_in) else 0)
        except OSError as error:
            first = first or error
        del handle
        if first is not None:
            raise first

    def _close_files(self):
        """Closes what this process has open; the first error, with notes of the others. Side by side: where no server answers each takes as long
        as a call may."""
        # What is around one file goes down in order.
        waiting = {}
        for file, raw in list(self._files.items()):
            if raw._pid == os.getpid():
                waiting.setdefault(id(raw), []).append(file)
        waiting = list(waiting.values())
        errors = []

        def close():
            while True:
                try:
                    files = waiting.pop()
                except IndexError:
                    return
                for file in files:
                    try:
                        file.close()
                    except Exception as error:
                        # One that was detached from its buffer has nothing any more; what it was around is closed by itself.
                        if not (isinstance(error, ValueError) and "detached" in str(error)):
                            errors.append(error)

        threads = [threading.Thread(target=close, daemon=True) for _ in waiting[1:_CLOSED_AT_ONCE]]
        started = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:
                # No new ones at the end of the process: this one closes them all.
                break
            started.append(thread)
        close()
        for thread in started:
            thread.join()
        for error in errors[1:]:
            errors[0].add_note(str(error))
        return errors[0] if errors else None

    def sync(self):
        """Makes everything that was written durable and visible."""
        check(lib.cairn_sync(self._used().pointer))

    def space(self):
        handle, found = self._used(), SpaceStruct()
        check(lib.cairn_statfs(handle.pointer, byref(found)))
        return Space(found.bytes, found.bytes_free, found.files, found.files_free)

    # ---- files

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, permissions=0o666):
        """Opens a file as the built-in open does. Modes are r, w, a and x, with + and b or t."""
        path = os.fspath(path)
        text = "b" not in mode
        if "t" in mode and not text:
            raise ValueError("can't have text and binary mode at once")
        if not text and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline argument")
        if text and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        raw = File(self, path, mode.replace("t", "").replace("b", "") + "b", permissions)
        try:
            file = self._wrapped(raw, mode, buffering, text, (encoding, errors, newline))
        except BaseException:
            raw.close()
            raise
        raw._buffered = 0 if file is raw else buffering if buffering > 1 else BUFFER_SIZE
        self._opened_in = raw._pid
        self._files[file] = raw
        if text:
            # It may be detached from what is around it.
            self._files[file.buffer] = raw
        return file

    @staticmethod
    def _wrapped(raw, mode, buffering, text, more):
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else BUFFER_SIZE
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if raw.readable() else io.BufferedWriter
        file = kind(raw, size)
        if text:
            file = io.TextIOWrapper(file, *more, line_buffering=buffering == 1)
            file.mode = mode
        return file

    def truncate(self, path, size):
        self._call(lib.cairn_truncate, path, size)

    def places(self, path, offset=0, length=None):
        """Where the bytes of a range are, part by part, for programs that run their work near them; holes are nowhere. A hint."""
        end = float("inf") if length is None else offset + length
        found = PlaceStruct()
        while offset < end and self._call(lib.cairn_locate, path, offset, byref(found)):
            begin, offset = found.offset, found.offset + found.length
            if begin >= end:
                return
            fields = [(host.name, host.address, host.rack) for host in found.hosts[: found.host_count]]
            hosts = [Host(*(field.decode() for field in host)) for host in fields]
            yield Place(begin, min(offset, end) - begin, hosts)

    # ---- what is there

    def stat(self, path, *, follow_symlinks=True):
        found = Stat()
        self._call(lib.cairn_stat if follow_symlinks else lib.cairn_lstat, path, byref(found))
        return stat_result(found)

    def lstat(self, path):
        return self.stat(path, follow_symlinks=False)

    def exists(self, path):
        return self._mode(path) != 0

    def isdir(self, path):
        return modes.S_ISDIR(self._mode(path))

    def isfile(self, path):
        return modes.S_ISREG(self._mode(path))

    def islink(self, path):
        try:
            return modes.S_ISLNK(self.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _mode(self, path):
        try:
            return self.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def scandir(self, path="/"):
        """Entries of a directory, as they come; memory does not grow with their number."""
        path = os.fspath(path)
        as_bytes = isinstance(path, bytes)
        volume, directory = self._used(), Handle(lib.cairn_closedir)
        check(lib.cairn_opendir(volume.pointer, encoded(path), byref(directory.pointer)), path)
        return self._entries(directory, path, as_bytes)

    def _entries(self, directory, path, as_bytes):
        entry = Dirent()
        while check(lib.cairn_readdir(directory.pointer, byref(entry)), path):
            yield DirEntry(self, path, entry, as_bytes)

    def listdir(self, path="/"):
        return [entry.name for entry in self.scandir(path)]

    def readlink(self, path):
        room = create_string_buffer(4096)
        length = self._call(lib.cairn_readlink, path, room, len(room))
        text = room.raw[:length]
        return text if isinstance(os.fspath(path), bytes) else os.fsdecode(text)

    # ---- changes

    def mkdir(self, path, mode=0o777):
        self._call(lib.cairn_mkdir, path, mode)

    def makedirs(self, path, mode=0o777, exist_ok=False):
        if not exist_ok and self.exists(path):
            raise FileExistsError(17, "File exists; choose another name, or say exist_ok=True", os.fspath(path))
        self._call(lib.cairn_mkdirs, path, mode)

    def remove(self, path):
        """Removes a file or a symbolic link."""
        self._call(lib.cairn_unlink, path)

    unlink = remove

    def rmdir(self, path):
        """Removes an empty directory."""
        self._call(lib.cairn_rmdir, path)

    def rmtree(self, path):
        """Removes a directory with all that is in it. What somebody else removes meanwhile is no error."""
        for entry in list(self.scandir(path)):
            try:
                if entry.is_dir(follow_symlinks=False):
                    self.rmtree(entry.path)
                else:
                    self.remove(entry.path)
            except FileNotFoundError:
                pass
        self.rmdir(path)

    def replace(self, source, target):
        """Moves an entry, in the place of what is there; atomic."""
        self._rename(source, target, 0)

    rename = replace

    def rename_new(self, source, target):
        """The same; FileExistsError if the target is there."""
        self._rename(source, target, _library.RENAME_NOREPLACE)

    def exchange(self, source, target):
        """Swaps two entries; atomic."""
        self._rename(source, target, _library.RENAME_EXCHANGE)

    def _rename(self, source, target, flags):
        handle = self._used()
        check(lib.cairn_rename(handle.pointer, encoded(source), encoded(target), flags), source, target)

    def symlink(self, target, path):
        handle = self._used()
        check(lib.cairn_symlink(handle.pointer, encoded(target), encoded(path)), path)

    def link(self, existing, path):
        handle = self._used()
        check(lib.cairn_link(handle.pointer, encoded(existing), encoded(path)), existing, path)

    def chmod(self, path, mode):
        self._call(lib.cairn_chmod, path, mode)

    def chown(self, path, uid=-1, gid=-1):
        self._call(lib.cairn_chown, path, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF)

    def utime(self, path, times=None, *, ns=None):
        """Sets times of access and modification: seconds, or nanoseconds with `ns`; None is now."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = tuple(round(seconds * 1_000_000_000) for seconds in times)
        accessed, modified = ns or (_library.TIME_NOW, _library.TIME_NOW)
        self._call(lib.cairn_utimens, path, accessed, modified)

    # ---- extended attributes

    def getxattr(self, path, name):
        return self._filled(path, lambda room, size: self._call(lib.cairn_getxattr, path, encoded(name), room, size))

    def listxattr(self, path):
        names = self._filled(path, lambda room, size: self._call(lib.cairn_listxattr, path, room, size))
        return [os.fsdecode(name) for name in names.split(b"\0") if name]

    def setxattr(self, path, name, value, flags=0):
        value = bytes(value)
        self._call(lib.cairn_setxattr, path, encoded(name), value, len(value), flags)

    def removexattr(self, path, name):
        self._call(lib.cairn_removexattr, path, encoded(name))

    @staticmethod
    def _filled(path, call):
        while True:
            size = call(None, 0)
            room = create_string_buffer(size + 1)
            try:
                length = call(room, size + 1)
                return room.raw[:length]
            except OSError as error:
                # ERANGE: it has grown since.
                if error.errno != 34:
                    raise


def connect(cluster=None, volume="default", **options):
    """Connects to a volume.

    cluster: managers, "host:port[,host:port]"; None is $CAIRN_CLUSTER, or else 127.0.0.1:7400. "cairn://host:port/volume" names both.
    Options: timeout (60) and connect_timeout (30) in seconds, read_only, close_visible (closing a file makes it visible at once and durable
    behind), memory_max (256 MiB of data on its way), rack (of this process).
    """
    if cluster is not None and cluster.startswith(_SCHEME):
        cluster, _, rest = cluster[len(_SCHEME) :].partition("/")
        volume = rest.strip("/") or volume
    return Volume(cluster, volume, options)


@atexit.register
def _close_all():
    for volume in list(_volumes):
        # A child by fork closes what it opened itself; the volume and the rest are its parent's.
        if os.getpid() in (volume._pid, volume._opened_in):
            try:
                volume.close()
            except Exception as error:
                # The process ends, and nobody else says it.
                for told in (error, *getattr(error, "__notes__", ())):
                    print(f"cairn: closing {volume!r} at exit: {told}", file=sys.stderr)
