"""What people do with tables and tensors, on the cluster that $CAIRN_CLUSTER names. pytest runs it; what is not installed is skipped.

Each test compares what came back with what was made in memory.
"""

import os
import uuid

import fsspec
import pytest

CLUSTER = os.environ["CAIRN_CLUSTER"]
ROWS = 20_000


@pytest.fixture
def fs():
    return fsspec.filesystem("cairn", cluster=CLUSTER, auto_mkdir=True)


@pytest.fixture
def place():
    """A directory that nobody else uses: its path in the volume."""
    return f"/applications/{uuid.uuid4().hex}"


def url(path):
    return f"cairn://{CLUSTER}/default{path}"


def frame():
    pandas = pytest.importorskip("pandas")
    names = [f"näme {number % 97}" for number in range(ROWS)]
    times = pandas.date_range("2026-01-01", periods=ROWS, freq="min").astype("datetime64[us]")
    return pandas.DataFrame({"id": range(ROWS), "name": names, "part": [number % 5 for number in range(ROWS)], "time": times})


MAKE = {"auto_mkdir": True}


def test_pandas_reads_what_it_wrote(place):
    """A notebook would get another table than the one that was saved."""
    pandas = pytest.importorskip("pandas")
    table = frame()
    for name in ("plain.csv", "packed.csv.gz", "packed.csv.xz"):
        table.to_csv(url(f"{place}/{name}"), index=False, storage_options=MAKE)
        read = pandas.read_csv(url(f"{place}/{name}"), parse_dates=["time"])
        pandas.testing.assert_frame_equal(read.astype(table.dtypes), table)
    # More lines behind those that are there, and in parts.
    table.to_csv(url(f"{place}/plain.csv"), index=False, header=False, mode="a")
    parts = [len(part) for part in pandas.read_csv(url(f"{place}/plain.csv"), chunksize=7000)]
    assert sum(parts) == 2 * ROWS and max(parts) == 7000
    table.drop(columns="time").to_json(url(f"{place}/lines.jsonl"), orient="records", lines=True)
    assert pandas.read_json(url(f"{place}/lines.jsonl"), lines=True)["id"].tolist() == list(range(ROWS))
    table.to_pickle(url(f"{place}/table.pickle"))
    pandas.testing.assert_frame_equal(pandas.read_pickle(url(f"{place}/table.pickle")), table)


def test_pandas_and_parquet(place):
    """The columns and rows of a parquet file that a query leaves out would be missing from it, or from others."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = frame()
    table.to_parquet(url(f"{place}/one.parquet"), row_group_size=3000, storage_options=MAKE)
    pandas.testing.assert_frame_equal(pandas.read_parquet(url(f"{place}/one.parquet")), table)
    some = pandas.read_parquet(url(f"{place}/one.parquet"), columns=["id"], filters=[("part", "==", 3), ("id", ">=", 15_000)])
    assert some["id"].tolist() == list(range(15_003, ROWS, 5))
    table.to_parquet(url(f"{place}/many"), partition_cols=["part"])
    many = pandas.read_parquet(url(f"{place}/many"), filters=[("part", "in", [1, 2])])
    assert sorted(many["id"]) == [number for number in range(ROWS) if number % 5 in (1, 2)]
    table.to_feather(url(f"{place}/one.feather"))
    pandas.testing.assert_frame_equal(pandas.read_feather(url(f"{place}/one.feather")), table)
    with pytest.raises(FileNotFoundError):
        pandas.read_parquet(url(f"{place}/none.parquet"))


def test_a_dataset_of_arrow_in_partitions(fs, place):
    """A dataset would miss files, read others than its filter names, or leave old ones behind when it is written anew."""
    pyarrow = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    table = pyarrow.Table.from_pandas(frame())
    options = {"format": "parquet", "filesystem": fs, "partitioning": ["part"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, place, max_rows_per_file=1000, max_rows_per_group=500, **options)
    found = dataset.dataset(place, format="parquet", partitioning="hive", filesystem=fs)
    assert len(found.files) == 20 and found.count_rows() == ROWS
    read = found.to_table(filter=(dataset.field("part") == 4) & (dataset.field("id") < 1000), columns=["id", "name"])
    assert sorted(read["id"].to_pylist()) == list(range(4, 1000, 5))
    dataset.write_dataset(table.slice(0, 100), place, existing_data_behavior="delete_matching", **options)
    found = dataset.dataset(place, format="parquet", partitioning="hive", filesystem=fs)
    assert found.to_table().sort_by("id")["id"].to_pylist() == list(range(100))


def test_files_of_arrow(place):
    """What is above Arrow's own interface of file systems would meet one that behaves like no other."""
    pyarrow = pytest.importorskip("pyarrow")
    fs = pytest.importorskip("pyarrow.fs")
    csv = pytest.importorskip("pyarrow.csv")
    cairn = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("cairn", cluster=CLUSTER)))
    cairn.create_dir(f"{place}/a/b", recursive=True)
    data = os.urandom(3_000_000)
    with cairn.open_output_stream(f"{place}/a/b/bytes") as stream:
        stream.write(data[:1_000_000])
        stream.write(data[1_000_000:])
    with cairn.open_append_stream(f"{place}/a/b/bytes") as stream:
        stream.write(b"end")
    with cairn.open_input_file(f"{place}/a/b/bytes") as file:
        assert file.size() == 3_000_003
        assert file.read_at(1000, 1_999_990) == data[1_999_990:2_000_990]
        # Reads by offsets move what Arrow has as the position of a Python file.
        file.seek(0)
        assert file.read() == data + b"end"
    with cairn.open_input_stream(f"{place}/a/b/bytes") as stream:
        assert stream.read(5) == data[:5]
    infos = cairn.get_file_info(fs.FileSelector(place, recursive=True))
    assert sorted((info.base_name, info.type) for info in infos) == [
        ("a", fs.FileType.Directory), ("b", fs.FileType.Directory), ("bytes", fs.FileType.File)]
    assert cairn.get_file_info(f"{place}/none").type == fs.FileType.NotFound
    cairn.copy_file(f"{place}/a/b/bytes", f"{place}/copy")
    cairn.move(f"{place}/copy", f"{place}/moved")
    cairn.delete_dir_contents(f"{place}/a")
    assert [info.base_name for info in cairn.get_file_info(fs.FileSelector(place, recursive=True))] == ["a", "moved"]
    table = pyarrow.table({"number": range(1000)})
    with cairn.open_output_stream(f"{place}/table.csv") as stream:
        csv.write_csv(table, stream)
    with cairn.open_input_stream(f"{place}/table.csv") as stream:
        assert csv.read_csv(stream).equals(table)
    with cairn.open_output_stream(f"{place}/table.arrow") as stream, pyarrow.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    with cairn.open_input_file(f"{place}/table.arrow") as file:
        assert pyarrow.ipc.open_file(file).read_all().equals(table)
    cairn.delete_dir(place)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask_over_many_files(fs, place, scheduler):
    """A job of many workers would lose parts of its table, or take them twice."""
    pytest.importorskip("dask.dataframe")
    import dask.dataframe

    table = frame()
    wide = dask.dataframe.from_pandas(table, npartitions=25)
    wide.to_csv(url(f"{place}/csv/*.csv"), index=False, storage_options=MAKE, compute_kwargs={"scheduler": scheduler})
    assert len(fs.ls(f"{place}/csv")) == 25
    read = dask.dataframe.read_csv(url(f"{place}/csv/*.csv"), blocksize=5_000)
    assert read.npartitions > 50
    sums = read.groupby("part")["id"].sum().compute(scheduler=scheduler)
    assert sums.to_dict() == table.groupby("part")["id"].sum().to_dict()
    if scheduler == "threads":
        wide.to_parquet(url(f"{place}/parquet"), compute_kwargs={"scheduler": scheduler})
        read = dask.dataframe.read_parquet(url(f"{place}/parquet"), columns=["id"], filters=[("part", "==", 2)])
        assert sorted(read["id"].compute(scheduler=scheduler)) == list(range(2, ROWS, 5))
    import dask.bag

    lines = dask.bag.read_text(url(f"{place}/csv/*.csv")).count().compute(scheduler=scheduler)
    assert lines == ROWS + 25
