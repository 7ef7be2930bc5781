"""fsspec's own suite for file systems, and what people do with it, against the cluster that $CAIRN_CLUSTER names. pytest runs it."""

import os
import pickle
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
