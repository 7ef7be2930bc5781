"""A DataLoader and processes that write, while somebody kills servers: `crates/cairn/tests/process/python.rs` does.

    loader_under_kills.py DIRECTORY fork|spawn

reads shards of a directory of the volume again and again with worker processes, and writes files beside them with others, until there is a file
`stop` in the current directory. Each byte is compared with what it has to be. A line `epochs N written M` follows each epoch, and `done` the last.
"""

import hashlib
import multiprocessing
import os
import sys

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import cairn

SHARDS, RECORDS, SIZE = 6, 64, 16 << 10
LENGTH = 600_000
KEPT = 40


def bytes_of(*what, size=SIZE):
    """Bytes that anybody can make again who knows what they are of."""
    return hashlib.shake_128(repr(what).encode()).digest(size)


class Shards(IterableDataset):
    def __init__(self, volume, directory):
        self.volume, self.directory = volume, directory

    def __iter__(self):
        worker = get_worker_info()
        for shard in range(worker.id, SHARDS, worker.num_workers):
            with self.volume.open(f"{self.directory}/shard{shard}", "rb") as file:
                for record in range(RECORDS):
                    yield shard, record, torch.frombuffer(bytearray(file.read(SIZE)), dtype=torch.uint8)
                assert file.read() == b"", "the shard has become longer"


def write(volume, directory, writer, written):
    """Files of a writer: made, appended to, read again. `written` counts those that are durable."""
    while not os.path.exists("stop"):
        number = written.value
        path, first, more = path_of(directory, writer, number), *contents(writer, number)
        with volume.open(path + ".new", "wb") as file:
            file.write(first)
        with volume.open(path + ".new", "ab") as file:
            file.write(more)
        volume.replace(path + ".new", path)
        with volume.open(path, "rb") as file:
            assert file.read() == first + more, f"{path} is not what was written"
        written.value += 1
    volume.close()


def path_of(directory, writer, number):
    return f"{directory}/written{writer}-{number % KEPT}"


def contents(writer, number):
    return bytes_of(writer, number, size=LENGTH + number), bytes_of(writer, number, "more", size=7000)


def main(directory, method):
    processes = multiprocessing.get_context(method)
    volume = cairn.connect()
    volume.makedirs(directory)
    for shard in range(SHARDS):
        with volume.open(f"{directory}/shard{shard}", "wb") as file:
            for record in range(RECORDS):
                file.write(bytes_of(shard, record))
    counts = [processes.Value("q", 0, lock=False) for _ in range(2)]
    writers = [processes.Process(target=write, args=(volume, directory, *one)) for one in enumerate(counts)]
    for one in writers:
        one.start()
    dataset = Shards(volume, directory)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    epochs = 0
    while not os.path.exists("stop"):
        seen = set()
        for shard, record, data in loader:
            assert bytes(data.tolist()) == bytes_of(shard, record), f"record {record} of shard {shard} is another"
            seen.add((shard, record))
        assert len(seen) == SHARDS * RECORDS, f"{len(seen)} records came"
        epochs += 1
        assert all(one.is_alive() or os.path.exists("stop") for one in writers), "a writer has ended"
        print("epochs", epochs, "written", sum(count.value for count in counts), flush=True)
    for one in writers:
        one.join()
        assert one.exitcode == 0, f"a writer ended with {one.exitcode}"
    for writer, count in enumerate(counts):
        for number in range(max(0, count.value - KEPT), count.value):
            with volume.open(path_of(directory, writer, number), "rb") as file:
                assert file.read() == b"".join(contents(writer, number)), f"file {number} of writer {writer} is another"
    assert not [name for name in volume.listdir(directory) if name.endswith(".new")]
    volume.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
