"""Volumes and files for asyncio: the calls of `cairn`, each of which lets other tasks run while it works.

    import asyncio

    import cairn.aio

    async def main():
        async with await cairn.aio.connect("127.0.0.1:7400") as volume:
            async with await volume.open("/notes", "wb") as file:
                await file.write(b"hello")
            print(await volume.listdir("/"))

    asyncio.run(main())

Calls are made by threads of the volume's own, as many as `threads` says. A task that is cancelled does not end a call that has begun:
that goes on, and what it opens is closed. Calls of a file that come after it may then be done before it.
"""

import asyncio
import concurrent.futures
import functools
import itertools

from ._volume import connect as _connect

_THREADS = 16
# Entries that are asked for at a time.
_ENTRIES = 1024
_CALLS = (
    "sync space truncate stat lstat exists isdir isfile islink listdir readlink mkdir makedirs remove unlink rmdir rmtree replace rename"
    " rename_new exchange symlink link chmod chown utime getxattr listxattr setxattr removexattr"
).split()
_FILE_CALLS = "stat pread_into pread pwrite publish sync flush".split()
# These use the position: one after the other, in the order in which they are called.
_IN_TURN = "read readall readinto write seek tell truncate".split()


class _Threads:
    """Whose calls are made by threads."""

    def __init__(self, of, pool):
        self._of, self._pool = of, pool

    async def _call(self, function, *arguments, **named):
        call = functools.partial(function, *arguments, **named)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        except RuntimeError:
            # The pool takes nothing more.
            raise ValueError("operation on a closed volume; connect again") from None
        return await running

    _closing = None

    async def _close_once(self, then=None):
        """Whoever closes it waits for the one call that does, also later, and is told what came of that; one who is cancelled does not end it."""
        if self._closing is None:
            self._closing = self._pool.submit(self._of.close)
            if then is not None:
                self._closing.add_done_callback(then)
        done = asyncio.wrap_future(self._closing)
        # Of one who is cancelled nobody reads it.
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(done)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


class AsyncFile(_Threads):
    """An open file without a buffer: `cairn.File`, of which each call is awaited."""

    @property
    def name(self):
        return self._of.name

    def __init__(self, of, pool):
        super().__init__(of, pool)
        self._turn = None

    async def _in_turn(self, function, *arguments, **named):
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            return await self._call(function, *arguments, **named)

    async def close(self):
        if self._turn is None:
            self._turn = asyncio.Lock()
        # The volume closes its files before itself.
        if self._closing is not None or not self._of.closed:
            async with self._turn:
                await self._close_once()


class AsyncVolume(_Threads):
    """A connected volume: `cairn.Volume`, of which each call is awaited."""

    @property
    def name(self):
        return self._of.name

    async def open(self, path, mode="rb", *, permissions=0o666):
        """Opens a file without a buffer; modes are those of binary files."""
        if "b" not in mode:
            raise ValueError("files for asyncio are binary: say rb, wb, ab or xb, and + for both")
        opening = self._call(self._of.open, path, mode, buffering=0, permissions=permissions)
        return AsyncFile(await opening, self._pool)

    async def scandir(self, path="/"):
        """Entries of a directory, as they come."""
        entries = await self._call(self._of.scandir, path)
        while part := await self._call(lambda: list(itertools.islice(entries, _ENTRIES))):
            for entry in part:
                yield entry

    async def places(self, path, offset=0, length=None):
        return await self._call(lambda: list(self._of.places(path, offset, length)))

    async def close(self):
        # What is under way goes on.
        await self._close_once(lambda _: self._pool.shutdown(wait=False))


def _awaited(name, way="_call"):
    async def call(self, *arguments, **named):
        return await getattr(self, way)(getattr(self._of, name), *arguments, **named)

    call.__name__ = name
    call.__doc__ = f"As the call of {name!r} that is not awaited."
    return call


for _name in _CALLS:
    setattr(AsyncVolume, _name, _awaited(_name))
for _name in _FILE_CALLS:
    setattr(AsyncFile, _name, _awaited(_name))
for _name in _IN_TURN:
    setattr(AsyncFile, _name, _awaited(_name, "_in_turn"))


async def connect(cluster=None, volume="default", *, threads=_THREADS, **options):
    """Connects as `cairn.connect` does."""
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="cairn")
    connecting = asyncio.get_running_loop().run_in_executor(pool, functools.partial(_connect, cluster, volume, **options))
    try:
        return AsyncVolume(await connecting, pool)
    except BaseException:
        pool.shutdown(wait=False)
        raise
