"""Cairn for fsspec: `cairn://host:port/volume/path`, and with it pandas, pyarrow, dask and others.

    import fsspec

    with fsspec.open("cairn://127.0.0.1:7400/default/notes/first.txt") as file:
        print(file.read())
"""

import contextlib
import errno
import io
import os
import shutil
import stat as modes
import threading
import uuid
import weakref

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path

from ._file import BUFFER_SIZE, File
from ._volume import connect

_SCHEME = "cairn://"
# What is copied within a volume is read and written in such pieces.
_PIECE = 4 << 20
# Symbolic links that lead on to others.
_LINKS_MAX = 40
_TYPES = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}


# Connections of this process, by what they were made with: fsspec makes a file system for each thread.
_shared = weakref.WeakValueDictionary()
_locks = {}


def _volume_of(cluster, volume, options):
    """A connection that all file systems of the process share."""
    key = (os.getpid(), cluster, volume, tuple(sorted(options.items())))
    with _locks.setdefault(key, threading.Lock()):
        shared = _shared.get(key)
        if shared is None or shared.closed:
            shared = _shared[key] = connect(cluster, volume, **options)
        return shared


class _AllOrNothing(Transaction):
    """Files get their names when it ends; after the first that cannot get its name none does, and nothing hidden stays."""

    def complete(self, commit=True):
        files, self.files = list(self.files), type(self.files)()
        first = None
        try:
            for file in files:
                try:
                    file.commit() if commit and first is None else file.discard()
                except BaseException as error:
                    # Also Ctrl-C: what is hidden would stay.
                    first = first or error
        finally:
            self.fs._intrans = False
            self.fs._transaction = None
            self.fs = None
        if first is not None:
            raise first


class CairnFileSystem(AbstractFileSystem):
    """A volume for fsspec. Paths are absolute within it; URLs name cluster and volume, too.

    cluster, volume and further options are those of `cairn.connect`. auto_mkdir: directories that are missing are made for whoever writes.
    """

    protocol = "cairn"
    root_marker = "/"
    transaction_type = _AllOrNothing

    def __init__(self, cluster=None, volume="default", auto_mkdir=False, connect_options=None, **kwargs):
        super().__init__(**kwargs)
        self.auto_mkdir = auto_mkdir
        self._where = (cluster or os.environ.get("CAIRN_CLUSTER") or "127.0.0.1:7400", volume)
        self.volume = _volume_of(cluster, volume, connect_options or {})
        # fsspec asks the instance for the path of a URL: one of another volume is none of it.
        self._strip_protocol = self._path

    # ---- names

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith(_SCHEME):
            # host:port[,host:port]/volume/path
            path = "/" + "/".join(path[len(_SCHEME) :].split("/")[2:])
        return "/" + path.strip("/")

    def _path(self, path):
        if isinstance(path, list):
            return [self._path(one) for one in path]
        named, (cluster, volume) = self._get_kwargs_from_urls(path), self._where
        others = set(named.get("cluster", cluster).split(",")).isdisjoint(cluster.split(","))
        if others or named.get("volume", volume) != volume:
            raise ValueError(f"{path} is not of {self.fsid}; use fsspec.filesystem or url_to_fs with that URL")
        return type(self)._strip_protocol(path)

    @staticmethod
    def _get_kwargs_from_urls(path):
        path = stringify_path(path)
        if not path.startswith(_SCHEME):
            return {}
        parts = path[len(_SCHEME) :].split("/")
        named = {"cluster": parts[0]} if parts[0] else {}
        if len(parts) > 1 and parts[1]:
            named["volume"] = parts[1]
        return named

    def unstrip_protocol(self, name):
        cluster, volume = self._where
        return f"{_SCHEME}{cluster}/{volume}{type(self)._strip_protocol(name)}"

    @property
    def fsid(self):
        return self.unstrip_protocol("/")

    # ---- what is there

    def _info(self, path, found):
        return {
            "name": path,
            "size": found.st_size if modes.S_ISREG(found.st_mode) else 0,
            "type": _TYPES.get(modes.S_IFMT(found.st_mode), "other"),
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mtime": found.st_mtime,
            "created": found.st_ctime,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "islink": modes.S_ISLNK(found.st_mode),
        }

    def _look(self, path):
        """As most programs mean it: a link is what it leads to, if that is there."""
        found = self.volume.lstat(path)
        if not modes.S_ISLNK(found.st_mode):
            return self._info(path, found)
        try:
            info = self._info(path, self.volume.stat(path))
        except FileNotFoundError:
            info = self._info(path, found)
        return {**info, "islink": True, "destination": self.volume.readlink(path)}

    def info(self, path, **kwargs):
        return self._look(self._strip_protocol(path))

    def ls(self, path, detail=False, **kwargs):
        path = self._strip_protocol(path)
        own = self._look(path)
        if own["type"] != "directory":
            infos = [own]
        else:
            infos = [
                self._look(entry.path) if entry.is_symlink() else self._info(entry.path, entry.stat())
                for entry in self.volume.scandir(path)
            ]
            infos.sort(key=lambda info: info["name"])
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path, **kwargs):
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self.volume.islink(path) or self.volume.exists(path)

    def isdir(self, path):
        return self.volume.isdir(self._strip_protocol(path))

    def isfile(self, path):
        return self.volume.isfile(self._strip_protocol(path))

    def created(self, path):
        return self._time(path, lambda found: found.st_ctime)

    def modified(self, path):
        return self._time(path, lambda found: found.st_mtime)

    def _time(self, path, which):
        import datetime

        found = self.volume.stat(self._strip_protocol(path))
        return datetime.datetime.fromtimestamp(which(found), tz=datetime.timezone.utc)

    def ukey(self, path):
        found = self.volume.stat(self._strip_protocol(path))
        return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"

    # ---- changes

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if self.volume.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if create_parents:
            self.volume.makedirs(path, exist_ok=True)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.volume.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        if maxdepth is not None:
            return super().rm(path, recursive=recursive, maxdepth=maxdepth)
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            names = self.glob(one) if "*" in one and not self.lexists(one) else [one]
            if not names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), one)
            for name in names:
                if not self.volume.isdir(name) or self.volume.islink(name):
                    self.volume.remove(name)
                elif recursive:
                    self.volume.rmtree(name)
                else:
                    raise IsADirectoryError(errno.EISDIR, "it is a directory; say recursive=True to remove it", name)

    def mv_file(self, path1, path2, **kwargs):
        target = self._strip_protocol(path2)
        self._make_parent(target)
        self.volume.replace(self._strip_protocol(path1), target)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        if isinstance(path1, list) or "*" in stringify_path(path1) or maxdepth is not None:
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        # At once, whatever is in it. As of mv(1), a directory as the target takes what is moved.
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.volume.isdir(target):
            target = target.rstrip("/") + "/" + source.rsplit("/", 1)[-1]
        self.mv_file(source, target)

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(target)
        if self.volume.isdir(source):
            self.volume.makedirs(target, exist_ok=True)
            return
        with self.volume.open(source, "rb", buffering=0) as read:
            # A link may lead to it, or be another name of it.
            if self._inode(target) == read.stat().st_ino:
                raise shutil.SameFileError(errno.EINVAL, f"it is the same file as {source}", target)
            self._copy(read, target)

    def _inode(self, path):
        try:
            return self.volume.stat(path).st_ino
        except FileNotFoundError:
            return None

    def _copy(self, read, target):
        with self.open(target, "wb") if self._intrans else self.volume.open(target, "wb", buffering=0) as write:
            piece = bytearray(_PIECE)
            while length := read.readinto(piece):
                write.write(memoryview(piece)[:length])

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        self._make_parent(path)
        if self._intrans and (truncate or not self.volume.exists(path)):
            self.open(path, "wb").close()
            return
        self.volume.open(path, "wb" if truncate else "ab", buffering=0).close()
        self.volume.utime(path)

    def _make_parent(self, path):
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path), exist_ok=True)

    # ---- contents

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._make_parent(path)
        if not autocommit and mode != "rb":
            if mode not in ("wb", "xb"):
                raise ValueError(f"{path}: files of a transaction are written anew; mode {mode!r} changes what is there")
            return _Late(self.volume, path, mode)
        return self.volume.open(path, mode if "b" in mode else mode + "b")

    def cat_file(self, path, start=None, end=None, **kwargs):
        with self.volume.open(self._strip_protocol(path), "rb", buffering=0) as file:
            if start is None and end is None:
                return file.readall()
            size = file.stat().st_size
            return _part(file, size, start, end)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Parts of files; each file is opened once."""
        if max_gap is not None:
            raise NotImplementedError("max_gap; leave it out")
        starts = [starts] * len(paths) if starts is None or isinstance(starts, int) else list(starts)
        ends = [ends] * len(paths) if ends is None or isinstance(ends, int) else list(ends)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("as many starts and ends as paths are needed")
        parts, of_path = [None] * len(paths), {}
        for number, path in enumerate(paths):
            of_path.setdefault(path, []).append(number)
        for path, numbers in of_path.items():
            try:
                with self.volume.open(self._strip_protocol(path), "rb", buffering=0) as file:
                    size = file.stat().st_size
                    for number in numbers:
                        parts[number] = _part(file, size, starts[number], ends[number])
            except Exception as error:
                if on_error != "return":
                    raise
                for number in numbers:
                    parts[number] = error
        return parts

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
            return
        self._make_parent(path)
        with self.volume.open(path, "xb" if mode == "create" else "wb", buffering=0) as file:
            file.write(value)


def _part(file, size, start, end):
    """Bytes between two offsets; negative ones count from the end, as those of a slice."""
    start = 0 if start is None else max(0, start + size) if start < 0 else start
    end = size if end is None else end + size if end < 0 else min(end, size)
    return file.pread(max(0, end - start), start)


def _led_to(volume, path):
    """The name at the end of symbolic links, with none on the way to it: `..` in a link leads up from where that link is."""
    found, missing, links = [], False, 0
    parts = _parts(path)
    while parts:
        part = parts.pop()
        if part == "..":
            if missing:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            del found[-1:]
            continue
        found.append(part)
        try:
            target = volume.readlink("/" + "/".join(found))
        except OSError as error:
            # It is no link, or not there yet.
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            missing = error.errno == errno.ENOENT
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        del found[0 if target.startswith("/") else -1 :]
        parts += _parts(target)
    return "/" + "/".join(found)


def _parts(path):
    """Names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _mode_of(volume, path):
    """Permissions of what is there, without the bits that every write takes away; None if nothing is."""
    try:
        return volume.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None


class _Late(io.BufferedWriter):
    """A file of a transaction: it gets its name when that is committed."""

    def __init__(self, volume, path, mode):
        self._volume, self._new = volume, "x" in mode
        if self._new and volume.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        # Where a link leads, as whoever writes through it expects.
        self.path = path = path if self._new else _led_to(volume, path)
        directory, name = path.rsplit("/", 1)
        mode = None if self._new else _mode_of(volume, path)
        # A name has 255 bytes at most.
        start = os.fsdecode(os.fsencode(name)[:200])
        self._hidden = f"{directory}/.{start}.{uuid.uuid4().hex}"
        super().__init__(File(volume, self._hidden, "xb", 0o666 if mode is None else mode & 0o600), BUFFER_SIZE)
        if mode is not None:
            try:
                volume.chmod(self._hidden, mode)
            except BaseException:
                self.discard()
                raise

    def commit(self):
        try:
            self.close()
            (self._volume.rename_new if self._new else self._volume.replace)(self._hidden, self.path)
        except BaseException:
            # It may have its name, although the answer was lost.
            with contextlib.suppress(OSError):
                self._volume.remove(self._hidden)
            raise

    def discard(self):
        # Nobody wants what is in it, so it does not matter where it has no room.
        with contextlib.suppress(OSError):
            self.close()
        self._volume.remove(self._hidden)
