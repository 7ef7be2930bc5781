"""fsspec's own suite for file systems, and what people do with it, against the cluster that $CAIRN_CLUSTER names. pytest runs it."""

import os
import pickle
import shutil
import threading
import uuid

import fsspec
import pytest
from fsspec.tests import abstract

from cairn.fs import CairnFileSystem

CLUSTER = os.environ["CAIRN_CLUSTER"]


class CairnFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self):
        return CairnFileSystem(CLUSTER, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self):
        return f"/fsspec/{uuid.uuid4().hex}"


class TestCopy(abstract.AbstractCopyTests, CairnFixtures):
    pass


class TestGet(abstract.AbstractGetTests, CairnFixtures):
    pass


class TestPut(abstract.AbstractPutTests, CairnFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, CairnFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, CairnFixtures):
    pass


def url(name):
    return f"cairn://{CLUSTER}/default/urls/{name}"


def test_urls_and_the_entry_point():
    fs, path = fsspec.core.url_to_fs(url("a/b.txt"))
    assert (type(fs), path) == (CairnFileSystem, "/urls/a/b.txt")
    assert fs.unstrip_protocol(path) == url("a/b.txt")
    fs.makedirs("/urls/a", exist_ok=True)
    with fsspec.open(url("a/b.txt"), "w") as file:
        file.write("text")
    with fsspec.open(url("a/b.txt")) as file:
        assert file.read() == b"text"
    assert fs.cat_file(path, -3, -1) == b"ex"
    assert [info["type"] for info in fs.ls("/urls", detail=True)] == ["directory"]
    assert pickle.loads(pickle.dumps(fs)).cat(path) == b"text"
    assert fs.find("/urls") == [path]
    fs.mv("/urls/a", "/urls/c")
    assert fs.glob("/urls/*/*.txt") == ["/urls/c/b.txt"]
    with pytest.raises(IsADirectoryError):
        fs.rm("/urls/c")
    fs.rm("/urls", recursive=True)
    assert not fs.exists("/urls")


def test_transactions_are_seen_whole_or_not():
    fs = CairnFileSystem(CLUSTER, auto_mkdir=True)
    with fs.transaction:
        with fs.open("/late/one", "wb") as file:
            file.write(b"1")
        assert not fs.exists("/late/one")
    assert fs.cat("/late/one") == b"1"
    with pytest.raises(ZeroDivisionError):
        with fs.transaction:
            with fs.open("/late/two", "wb") as file:
                file.write(b"2")
            raise ZeroDivisionError
    assert fs.ls("/late", detail=False) == ["/late/one"]


def test_a_transaction_keeps_modes_and_links():
    """What is private would be readable by all, or a link be replaced and what it leads to stay as it was."""
    fs = CairnFileSystem(CLUSTER, auto_mkdir=True)
    fs.pipe_file("/kept/private", b"old")
    fs.volume.chmod("/kept/private", 0o4600)
    fs.volume.symlink("private", "/kept/link")
    fs.volume.symlink("/kept/nothing", "/kept/dangling")
    with fs.transaction:
        fs.pipe_file("/kept/link", b"new")
        fs.pipe_file("/kept/dangling", b"made")
    assert (fs.cat("/kept/private"), fs.cat("/kept/nothing")) == (b"new", b"made")
    assert fs.volume.islink("/kept/link") and fs.volume.islink("/kept/dangling")
    # `..` of a link is above the directory that the link is in, whatever led there.
    fs.pipe({"/kept/x": b"another", "/kept/b/x": b"old", "/kept/b/c/y": b"y"})
    fs.volume.symlink("b/c", "/kept/a")
    fs.volume.symlink("../x", "/kept/b/c/up")
    fs.volume.symlink("loop", "/kept/loop")
    with fs.transaction:
        fs.pipe_file("/kept/a/up", b"new")
        with pytest.raises(FileNotFoundError):
            fs.open("/kept/none/../x", "wb")
        with pytest.raises(OSError):
            fs.open("/kept/loop", "wb")
    assert (fs.cat("/kept/x"), fs.cat("/kept/b/x"), fs.cat("/kept/a/up")) == (b"another", b"new", b"new")
    assert fs.volume.stat("/kept/private").st_mode & 0o7777 == 0o600


def test_files_of_a_transaction_come_all_or_not_at_all():
    fs = CairnFileSystem(CLUSTER, auto_mkdir=True)
    fs.pipe_file("/all/there", b"old")
    long = "\u0436" * 120
    with fs.transaction:
        with fs.open("/all/new", "xb") as file:
            file.write(b"new")
        fs.pipe_file("/all/piped", b"piped")
        fs.touch("/all/touched")
        fs.cp_file("/all/there", "/all/copied")
        fs.pipe_file(f"/all/{long}", b"long")
        with pytest.raises(ValueError, match="written anew"):
            fs.open("/all/there", "ab")
        with pytest.raises(FileExistsError):
            fs.open("/all/there", "xb")
        assert [info for info in fs.ls("/all", detail=False) if "/." not in info] == ["/all/there"]
    names = ["copied", "new", "piped", "there", "touched", long]
    assert fs.ls("/all", detail=False) == sorted(f"/all/{name}" for name in names)
    assert (fs.cat("/all/copied"), fs.cat("/all/new"), fs.cat("/all/piped")) == (b"old", b"new", b"piped")
    # One that cannot get its name keeps the ones behind it from theirs, and hides nothing.
    with pytest.raises(FileExistsError):
        with fs.transaction:
            fs.open("/all/late", "xb").close()
            fs.open("/all/behind", "xb").close()
            fs.volume.open("/all/late", "wb").close()
    assert not fs.exists("/all/behind")
    assert len(fs.ls("/all", detail=False)) == len(names) + 1
    fs.pipe_file("/all/at-once", b"x")
    assert fs.exists("/all/at-once")


def test_a_file_is_not_copied_onto_itself():
    fs = CairnFileSystem(CLUSTER, auto_mkdir=True)
    fs.pipe_file("/same/file", b"precious")
    fs.volume.symlink("file", "/same/link")
    fs.volume.link("/same/file", "/same/other")
    for target in ("file", "link", "other"):
        with pytest.raises(shutil.SameFileError):
            fs.cp_file("/same/file", f"/same/{target}")
        assert fs.cat("/same/file") == b"precious"


def test_ranges_are_those_of_slices():
    fs = CairnFileSystem(CLUSTER, auto_mkdir=True)
    data = b"01234"
    fs.pipe_file("/ranges/five", data)
    for start in (None, -10, -5, -2, 0, 3, 5, 9):
        for end in (None, -10, -3, 0, 3, 5, 9):
            assert fs.cat_file("/ranges/five", start, end) == data[start:end], (start, end)
    fs.pipe_file("/ranges/other", b"abc")
    paths = ["/ranges/five", "/ranges/other", "/ranges/five", "/ranges/none"]
    parts = fs.cat_ranges(paths, [0, 1, -2, 0], [2, 9, None, 1])
    assert parts[:3] == [b"01", b"bc", b"34"]
    assert isinstance(parts[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 1, on_error="raise")


def test_threads_share_a_connection():
    """Each thread of a program would be a client of its own, with its session, threads and memory."""
    made, begun = [], threading.Barrier(16)

    def make():
        begun.wait()
        made.append(fsspec.filesystem("cairn", cluster=CLUSTER).volume)

    threads = [threading.Thread(target=make) for _ in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len({id(volume) for volume in made}) == 1
    assert CairnFileSystem(CLUSTER, connect_options={"timeout": 30}).volume is not made[0]
    # One that somebody closed is not handed out again.
    made[0].close()
    assert CairnFileSystem(CLUSTER, skip_instance_cache=True).exists("/")


def test_urls_of_another_volume_are_refused():
    """What is written for another volume would be written over a file of this one."""
    fs = CairnFileSystem(CLUSTER)
    for other in (f"cairn://{CLUSTER}/other/where", "cairn://127.0.0.1:1/default/where"):
        with pytest.raises(ValueError, match="is not of"):
            fs.pipe_file(other, b"x")
        with pytest.raises(ValueError, match="is not of"):
            fs.open(other, "wb")
    fs.pipe_file(f"cairn://127.0.0.1:1,{CLUSTER}/default/where", b"x")
    assert fs.cat("/where") == b"x"
