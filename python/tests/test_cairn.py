"""The package against a real cluster, which $CAIRN_CLUSTER names: `crates/cairn/tests/process/python.rs` starts both."""

import asyncio
import errno
import io
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import unittest

import cairn
import cairn.aio
from cairn import _library

HEADER = pathlib.Path(__file__).resolve().parents[2] / "crates/libcairn/include/cairn.h"


def of_child(volume, path, text):
    """What a process made by fork or spawn does."""
    with volume.open(path, "w") as file:
        file.write(text)
    with volume.open(path) as file:
        assert file.read() == text
    volume.close()


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.volume = cairn.connect()
        cls.volume.makedirs("/py")

    @classmethod
    def tearDownClass(cls):
        cls.volume.close()

    def test_the_table_of_functions_is_that_of_the_header(self):
        """A call would have other arguments than the library expects."""
        kinds = {
            "c_void_p": r"(cairn_volume|cairn_file|cairn_dir|(const )?void|char) \*",
            "c_char_p": r"const (char|void) \*",
            "c_int": "int ",
            "c_uint": "(unsigned int|mode_t|uid_t|gid_t|uint32_t) ",
            "c_long": "(ssize_t|int64_t) ",
            "c_ulong": "(size_t|uint64_t) ",
            "LP_Options": r"const struct cairn_options \*",
            "LP_Stat": r"struct cairn_stat \*",
            "LP_SpaceStruct": r"struct cairn_space \*",
            "LP_Dirent": r"struct cairn_dirent \*",
            "LP_PlaceStruct": r"struct cairn_place \*",
            "LP_c_long": r"ssize_t \*",
            "LP_c_void_p": r"cairn_(volume|file|dir) \*\*",
        }
        header = HEADER.read_text()
        for name, answer, arguments in _library.FUNCTIONS:
            expected = ", ".join(kinds[argument.__name__] + r"\w+" for argument in arguments) or "void"
            self.assertRegex(header, rf"(?m)^{kinds[answer.__name__]}{name}\({expected}\);$")
        self.assertEqual(len(_library.FUNCTIONS), len(re.findall(r"(?m)^\w[^(]*cairn_\w+\(.*\);$", header)))

    def test_binary_text_and_append(self):
        path = "/py/binary"
        data = bytes(range(256)) * 5000
        with self.volume.open(path, "xb") as file:
            self.assertIsInstance(file, io.BufferedWriter)
            self.assertEqual(file.write(data), len(data))
        with self.volume.open(path, "rb") as file:
            self.assertEqual(file.read(10), data[:10])
            self.assertEqual(file.seek(-6, io.SEEK_END), len(data) - 6)
            self.assertEqual(file.read(), data[-6:])
            file.seek(0)
            self.assertEqual(file.read(), data)
        with self.volume.open(path, "r+b") as file:
            file.seek(3)
            file.write(b"XYZ")
            file.seek(0)
            self.assertEqual(file.read(8), data[:3] + b"XYZ" + data[6:8])
            self.assertEqual(file.truncate(5), 5)
        self.assertEqual(self.volume.stat(path).st_size, 5)
        with self.volume.open("/py/text", "w", encoding="utf-8") as file:
            print("grün", 1, file=file)
        with self.volume.open("/py/text", "a", encoding="utf-8") as file:
            file.write("more\n")
            self.assertEqual(file.tell(), len("grün 1\nmore\n".encode()))
        with self.volume.open("/py/text", encoding="utf-8") as file:
            self.assertEqual(list(file), ["grün 1\n", "more\n"])
        with self.assertRaises(io.UnsupportedOperation):
            self.volume.open("/py/text", "rb").write(b"x")
        for bad in ("", "z", "rw", "rbt", "r++"):
            with self.assertRaises(ValueError, msg=bad):
                self.volume.open("/py/text", bad)

    def test_buffers_are_used_as_they_are(self):
        """A view, an array or a part of a buffer would be written as something else."""
        with self.volume.open("/py/buffers", "w+b", buffering=0) as file:
            self.assertIsInstance(file, io.RawIOBase)
            whole = bytearray(b"0123456789")
            self.assertEqual(file.write(memoryview(whole)[2:6]), 4)
            self.assertEqual(file.write(b"ab"), 2)
            into = bytearray(b"----------")
            self.assertEqual(file.pread_into(memoryview(into)[1:], 0), 6)
            self.assertEqual(bytes(into), b"-2345ab---")
            self.assertEqual(file.pread(100, 4), b"ab")
            with self.assertRaises(BufferError):
                file.pread_into(b"not writable", 0)
            file.sync()
        with self.assertRaises(ValueError):
            file.read(1)

    def test_directories_and_names(self):
        self.volume.makedirs("/py/d/e/f")
        with self.assertRaises(FileExistsError):
            self.volume.makedirs("/py/d")
        self.volume.open("/py/d/file", "wb").close()
        self.volume.symlink("file", "/py/d/link")
        self.volume.symlink("nothing", "/py/d/dangling")
        entries = {entry.name: entry for entry in self.volume.scandir("/py/d")}
        self.assertEqual(sorted(entries), ["dangling", "e", "file", "link"])
        self.assertTrue(entries["e"].is_dir() and entries["file"].is_file() and entries["link"].is_symlink())
        self.assertTrue(entries["link"].is_file() and not entries["link"].is_file(follow_symlinks=False))
        self.assertFalse(entries["dangling"].is_file() or entries["dangling"].is_dir())
        self.assertEqual(self.volume.readlink("/py/d/link"), "file")
        self.assertEqual(entries["file"].stat().st_ino, self.volume.stat("/py/d/link").st_ino)
        self.volume.rename("/py/d/file", "/py/d/other")
        with self.assertRaises(FileExistsError):
            self.volume.rename_new("/py/d/other", "/py/d/e")
        self.volume.exchange("/py/d/other", "/py/d/e")
        self.assertTrue(self.volume.isdir("/py/d/other") and self.volume.isfile("/py/d/e"))
        odd = b"/py/d/\xff\xfe"
        self.volume.open(odd, "wb").close()
        self.assertIn(b"\xff\xfe", self.volume.listdir(b"/py/d"))
        self.volume.rmtree("/py/d")
        self.assertFalse(self.volume.exists("/py/d"))

    def test_attributes(self):
        path = pathlib.PurePosixPath("/py/attributes")
        self.volume.open(path, "wb").close()
        self.volume.chmod(path, 0o640)
        self.volume.utime(path, ns=(1, -5_000_000_000))
        found = self.volume.stat(path)
        self.assertEqual(stat.filemode(found.st_mode), "-rw-r-----")
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns, found.st_mtime), (1, -5_000_000_000, -5.0))
        self.volume.truncate(path, 1000)
        self.assertEqual(self.volume.stat(path).st_size, 1000)
        self.volume.setxattr(path, "user.k", b"v" * 300)
        self.assertEqual(self.volume.listxattr(path), ["user.k"])
        self.assertEqual(self.volume.getxattr(path, "user.k"), b"v" * 300)
        self.volume.removexattr(path, "user.k")
        with self.assertRaises(OSError) as caught:
            self.volume.getxattr(path, "user.k")
        self.assertEqual(caught.exception.errno, errno.ENODATA)
        self.volume.link(path, "/py/second")
        self.assertEqual(self.volume.stat(path).st_nlink, 2)
        self.assertGreater(self.volume.space().bytes_free, 0)

    def test_errors_are_those_of_os(self):
        """A program could not tell a missing file from a cluster that is away, nor a person what to do."""
        with self.assertRaises(FileNotFoundError) as caught:
            self.volume.open("/py/none")
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENOENT, "/py/none"))
        self.assertIn("; ", caught.exception.strerror)
        with self.assertRaises(IsADirectoryError):
            self.volume.open("/py", "rb")
        self.volume.open("/py/file", "wb").close()
        with self.assertRaises(NotADirectoryError):
            self.volume.listdir("/py/file")
        with self.assertRaises(FileNotFoundError) as caught:
            self.volume.rename("/py/none", "/py/other")
        self.assertEqual((caught.exception.filename, caught.exception.filename2), ("/py/none", "/py/other"))
        with self.assertRaises(OSError) as caught:
            cairn.connect("127.0.0.1:1", connect_timeout=0.2, timeout=0.5)
        self.assertIn("cluster 127.0.0.1:1", str(caught.exception))
        with self.assertRaises(TypeError):
            cairn.connect(tiemout=1)

    def test_threads_and_a_volume_that_is_closed_under_them(self):
        """Threads would mix up what they read, or crash when another one closes."""
        volume = cairn.connect()
        with volume.open("/py/threads", "wb") as file:
            file.write(b"".join(bytes([number]) * 1000 for number in range(100)))
        file, wrong, reads = volume.open("/py/threads", "rb", buffering=0), [], []
        begun = threading.Barrier(5)

        def read():
            begun.wait()
            try:
                while True:
                    for number in range(100):
                        if file.pread(1000, number * 1000) != bytes([number]) * 1000:
                            wrong.append(number)
                    reads.append(1)
            except (ValueError, OSError):
                pass

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        while len(reads) < 20:
            threads[0].join(0.01)
        volume.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        with self.assertRaises(ValueError):
            volume.stat("/")

    def test_processes_by_fork_and_spawn(self):
        """A worker of a data loader would hang, or write with the session of its parent."""
        held = self.volume.open("/py/held", "wb")
        held.write(b"of the parent")
        for method in ("fork", "spawn"):
            made = multiprocessing.get_context(method)
            children = [
                made.Process(target=of_child, args=(self.volume, f"/py/{method}{number}", f"{method} {number}"))
                for number in range(3)
            ]
            for child in children:
                child.start()
            for child in children:
                child.join(200)
                self.assertEqual(child.exitcode, 0, method)
            for number in range(3):
                with self.volume.open(f"/py/{method}{number}") as file:
                    self.assertEqual(file.read(), f"{method} {number}")
        held.close()
        with self.volume.open("/py/held", "rb") as file:
            self.assertEqual(file.read(), b"of the parent")

    def test_a_child_never_writes_what_its_parent_has_in_a_buffer(self):
        with self.volume.open("/py/buffered", "wb") as file:
            file.write(b"once")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    file.flush()
                except OSError as error:
                    code = 0 if error.errno == errno.EBADF else 2
                os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        with self.volume.open("/py/buffered", "rb") as file:
            self.assertEqual(file.read(), b"once")

    def test_what_is_open_at_exit_is_written(self):
        """A program that closes nothing would lose what it wrote last."""
        program = "import cairn; file = cairn.connect().open('/py/exit', 'w'); file.write('left open')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with self.volume.open("/py/exit") as file:
            self.assertEqual(file.read(), "left open")

    def test_a_child_by_fork_that_ends_writes_what_it_left_open(self):
        """What a child wrote to files of its own would be lost without a word."""
        program = """
import os, sys, cairn
volume = cairn.connect()
volume.open("/py/parent", "w").write("of the parent")
if os.fork() == 0:
    volume.open("/py/child", "w").write("of the child")
    sys.exit(0)
os.wait()
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in ("parent", "child"):
            with self.volume.open(f"/py/{name}") as file:
                self.assertEqual(file.read(), f"of the {name}")

    def test_a_file_that_is_detached_hides_no_other(self):
        """A volume that is closed would leave the others, and what was written to them, behind."""
        volume = cairn.connect()
        text = volume.open("/py/detached", "w")
        text.write("text")
        binary = text.detach()
        binary.write(b" and bytes")
        other = volume.open("/py/other", "wb")
        other.write(b"data")
        volume.close()
        self.assertTrue(binary.closed and other.closed and volume.closed)
        with self.volume.open("/py/detached") as file:
            self.assertEqual(file.read(), "text and bytes")
        self.assertEqual(self.volume.stat("/py/other").st_size, 4)

    def test_where_bytes_are(self):
        with self.volume.open("/py/places", "wb", buffering=0) as file:
            file.pwrite(b"x" * 5000, 0)
            file.pwrite(b"y" * 5000, 1 << 20)
        places = list(self.volume.places("/py/places"))
        self.assertEqual([(places[0].offset, places[-1].offset + places[-1].length)], [(0, (1 << 20) + 5000)])
        self.assertTrue(all(len(place.hosts) == 3 and place.hosts[0].address for place in places), places)
        self.assertEqual(sum(place.length for place in places), 10000)
        self.assertEqual([place.length for place in self.volume.places("/py/places", 1000, 2000)], [2000])
        self.assertEqual(list(self.volume.places("/py/places", 6000, 1000)), [])

    def test_offsets_before_the_beginning_are_refused(self):
        with self.volume.open("/py/offsets", "w+b", buffering=0) as file:
            for call in (lambda: file.pread(3, -1), lambda: file.pwrite(b"x", -1), lambda: file.seek(-1)):
                with self.assertRaises(OSError) as caught:
                    call()
                self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_a_name_does_not_end_at_a_nul_byte(self):
        """Another file than the named one would be emptied, replaced or removed."""
        volume = self.volume
        with volume.open("/py/nul", "wb") as file:
            file.write(b"precious")
        calls = [
            lambda: volume.open("/py/nul\0b", "wb"),
            lambda: volume.remove("/py/nul\0b"),
            lambda: volume.rename("/py/other", "/py/nul\0b"),
            lambda: volume.link("/py/nul\0b", "/py/more"),
            lambda: volume.symlink("a\0b", "/py/more"),
            lambda: list(volume.scandir("/py\0b")),
            lambda: volume.setxattr("/py/nul", "user.a\0b", b""),
            lambda: cairn.connect(volume="default\0b"),
        ]
        for call in calls:
            with self.assertRaisesRegex(ValueError, "null byte"):
                call()
        with volume.open("/py/nul", "rb") as file:
            self.assertEqual(file.read(), b"precious")

    def test_threads_that_share_a_file(self):
        """What was said to be written would be missing, as two writes got the same place."""
        piece = 64 << 10
        with self.volume.open("/py/shared", "wb", buffering=0) as file:
            def write(number):
                for _ in range(16):
                    self.assertEqual(file.write(bytes([number]) * piece), piece)

            threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with self.volume.open("/py/shared", "rb") as file:
            found = file.read()
        pieces = [found[at : at + piece] for at in range(0, len(found), piece)]
        self.assertEqual(len(found), 8 * 16 * piece)
        self.assertEqual(sorted(each[0] for each in pieces), sorted(list(range(1, 9)) * 16))
        self.assertTrue(all(len(set(each)) == 1 for each in pieces))

    def test_a_volume_is_pickled_by_how_it_was_connected(self):
        again = pickle.loads(pickle.dumps(cairn.connect(read_only=True)))
        with self.assertRaises(OSError) as caught:
            again.mkdir("/py/no")
        self.assertEqual(caught.exception.errno, errno.EROFS)


def tasks():
    return len(os.listdir("/proc/self/task"))


class Interrupted(Exception):
    pass


class Signals(unittest.TestCase):
    """Handlers of signals that raise: Ctrl-C, alarms."""

    def setUp(self):
        def handler(number, frame):
            raise Interrupted

        self.before = signal.signal(signal.SIGALRM, handler)
        self.volume = cairn.connect()
        self.volume.makedirs("/signals", exist_ok=True)

    def tearDown(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        self.volume.close()

    def interrupted(self, call, after):
        """True: the handler took the place of the answer."""
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            made = call()
            signal.setitimer(signal.ITIMER_REAL, 0)
            made.close()
            return False
        except Interrupted:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def settles(self, before, what):
        for _ in range(200):
            if tasks() <= before:
                return
            time.sleep(0.05)
        self.fail(f"{what}: {before} threads before, {tasks()} now")

    def test_connecting_leaves_nothing(self):
        """Each Ctrl-C would leave a session with its threads."""
        cairn.connect().close()
        time.sleep(0.5)
        before = tasks()
        hits = sum(self.interrupted(cairn.connect, 0.0015) for _ in range(20))
        self.assertGreater(hits, 0)
        self.settles(before, f"{hits} connections were interrupted")

    def test_opening_leaves_nothing(self):
        """A file that was being opened would be held until the process ends."""
        freed, real = [], _library.lib.cairn_close

        class Counting:
            def __getattr__(self, name):
                return getattr(_library.lib, name)

            @staticmethod
            def cairn_close(pointer):
                freed.append(1)
                return real(pointer)

            @staticmethod
            def cairn_open(*arguments):
                outcome = _library.lib.cairn_open(*arguments)
                # The handler's exception comes right behind the library's call.
                signal.raise_signal(signal.SIGALRM)
                return outcome

        module = sys.modules["cairn._file"]
        module.lib = Counting()
        try:
            for number in range(5):
                with self.assertRaises(Interrupted):
                    self.volume.open(f"/signals/{number}", "wb")
        finally:
            module.lib = _library.lib
        self.assertEqual(len(freed), 5)

    def test_what_was_appended_is_not_appended_again(self):
        """A buffer hands down again what a write took whose answer it did not get."""
        module, first = sys.modules["cairn._file"], []

        class Interrupting:
            def __getattr__(self, name):
                return getattr(_library.lib, name)

            @staticmethod
            def cairn_pwrite_noted(*arguments):
                outcome = _library.lib.cairn_pwrite_noted(*arguments)
                if not first:
                    first.append(1)
                    signal.raise_signal(signal.SIGALRM)
                return outcome

        lines = [b"line %02d\n" % number for number in range(20)]
        module.lib, written = Interrupting(), 0
        try:
            with self.assertRaises(Interrupted):
                with self.volume.open("/signals/log", "ab", buffering=64) as file:
                    for line in lines:
                        written += 1
                        file.write(line)
        finally:
            module.lib = _library.lib
        with self.volume.open("/signals/log", "rb") as file:
            found = file.read().splitlines(keepends=True)
        # The line that came with the exception may be there or not.
        self.assertIn(found, [lines[:written], lines[: written - 1]])


class Asyncio(unittest.TestCase):
    def test_tasks_side_by_side(self):
        """A call would stop all other tasks, or what one wrote not be what another reads."""

        async def work(volume, number):
            path = f"/aio/{number}"
            async with await volume.open(path, "xb") as file:
                self.assertEqual(await file.write(b"%d" % number * 1000), len(b"%d" % number) * 1000)
            async with await volume.open(path) as file:
                return await file.pread(len(b"%d" % number), 0)

        async def main():
            async with await cairn.aio.connect(threads=4) as volume:
                await volume.makedirs("/aio")
                found = await asyncio.gather(*(work(volume, number) for number in range(20)))
                self.assertEqual(found, [b"%d" % number for number in range(20)])
                names = [entry.name async for entry in volume.scandir("/aio")]
                self.assertEqual(sorted(names), sorted(await volume.listdir("/aio")))
                self.assertEqual(len(names), 20)
                with self.assertRaises(FileNotFoundError):
                    await volume.stat("/aio/none")
                with self.assertRaises(ValueError):
                    await volume.open("/aio/1", "r")
                self.assertEqual((await volume.places("/aio/7"))[0].length, 1000)
                await volume.rmtree("/aio")

        asyncio.run(main())

    def test_tasks_that_share_a_file(self):
        """What was said to be written would be missing, as two writes got the same place; or bytes be read twice and others not at all."""

        async def main():
            async with await cairn.aio.connect(threads=4) as volume:
                piece = 1 << 20
                async with await volume.open("/shared", "wb") as file:
                    done = await asyncio.gather(*(file.write(bytes([number]) * piece) for number in range(16)))
                self.assertEqual(done, [piece] * 16)
                async with await volume.open("/shared") as file:
                    parts = await asyncio.gather(*(file.read(piece) for _ in range(16)))
                self.assertEqual([part[0] for part in parts], list(range(16)), "in the order in which they were called")
                await volume.remove("/shared")

        asyncio.run(main())

    def test_who_closes_at_the_same_time_waits_as_well(self):
        """What was written would be said to be durable before it is, or not be stored where the task that closes is cancelled."""

        async def main():
            for number in range(10):
                volume = await cairn.aio.connect()
                file = await volume.open(f"/closing-{number}", "wb")
                await file.write(b"1" * 1_000_000)
                first = asyncio.ensure_future(volume.close())
                await asyncio.sleep(0)
                if number % 2:
                    first.cancel()
                await volume.close()
                async with await cairn.aio.connect() as again:
                    self.assertEqual((await again.stat(f"/closing-{number}")).st_size, 1_000_000)
                    await again.remove(f"/closing-{number}")

        asyncio.run(main())

    def test_what_came_of_a_close_is_told_to_whoever_closes(self):
        """Bytes that could not be stored would be lost without a word, where the task that closes first is cancelled."""
        goes_on = threading.Event()

        def fails():
            goes_on.wait(60)
            raise OSError(errno.EIO, "not stored")

        async def main():
            volume = await cairn.aio.connect()
            file = await volume.open("/told", "wb")
            for one in (file, volume):
                close, one._of.close = one._of.close, fails
                first = asyncio.ensure_future(one.close())
                await asyncio.sleep(0.05)
                first.cancel()
                second = asyncio.ensure_future(one.close())
                await asyncio.sleep(0.05)
                self.assertFalse(second.done(), "it is not closed yet")
                goes_on.set()
                for closing in (second, one.close()):
                    with self.assertRaisesRegex(OSError, "not stored"):
                        await closing
                one._of.close = close
                one._of.close()
                goes_on.clear()

        asyncio.run(main())

    def test_what_is_closed_says_so(self):
        """The exception that ended a block would be hidden by one of a pool of threads."""

        async def main():
            volume = await cairn.aio.connect()
            async with await volume.open("/closed", "wb") as file:
                await file.write(b"1")
                await volume.close()
            await volume.close()
            with self.assertRaisesRegex(ValueError, "closed volume"):
                await volume.stat("/closed")

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
