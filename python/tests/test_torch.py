"""torch's DataLoader with worker processes on the cluster that $CAIRN_CLUSTER names. pytest runs it."""

import array
import os
import uuid

import pytest

import cairn

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

SHARDS, RECORDS, NUMBERS = 6, 40, 1024
SIZE = 4 * NUMBERS


def record(number):
    """Numbers of which a wrong one is seen."""
    return array.array("f", [(number * 31 + place) % 65_536 for place in range(NUMBERS)]).tobytes()


def tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def bytes_of(one):
    return array.array("f", one.tolist()).tobytes()


class Streamed(IterableDataset):
    """Each worker reads shards of its own from beginning to end."""

    def __init__(self, volume, directory):
        self.volume = volume
        self.paths = sorted(entry.path for entry in volume.scandir(directory))

    def __iter__(self):
        worker = get_worker_info()
        for path in self.paths[worker.id :: worker.num_workers] if worker else self.paths:
            with self.volume.open(path, "rb") as file:
                while data := file.read(SIZE):
                    yield tensor(data)


class Indexed(Dataset):
    """Records by their numbers, in any order, by files that each process opens once."""

    def __init__(self, volume, directory):
        self.volume = volume
        self.directory = directory
        self.opened = {}

    def __len__(self):
        return SHARDS * RECORDS

    def __getitem__(self, number):
        shard = number // RECORDS
        key = (os.getpid(), shard)
        if key not in self.opened:
            self.opened[key] = self.volume.open(f"{self.directory}/{shard:04}", "rb", buffering=0)
        return number, tensor(self.opened[key].pread(SIZE, number % RECORDS * SIZE))


@pytest.fixture(scope="module")
def shards():
    """A volume, and a directory with shards in it."""
    with cairn.connect() as volume:
        directory = f"/torch/{uuid.uuid4().hex}"
        volume.makedirs(directory)
        for shard in range(SHARDS):
            with volume.open(f"{directory}/{shard:04}", "wb") as file:
                for number in range(shard * RECORDS, (shard + 1) * RECORDS):
                    file.write(record(number))
        yield volume, directory


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_each_record_comes_once(shards, method):
    """A training would see records twice, not at all, or with other numbers; or hang where a worker begins."""
    options = {"multiprocessing_context": method, "num_workers": 3, "persistent_workers": True} if method else {}
    loader = DataLoader(Streamed(*shards), batch_size=7, **options)
    for _epoch in range(2):
        seen = sorted(bytes_of(one) for batch in loader for one in batch)
        assert seen == sorted(record(number) for number in range(SHARDS * RECORDS))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_records_in_any_order(shards, method):
    """The same where workers open files once and read them by offsets, after the parent has read some itself."""
    dataset = Indexed(*shards)
    if method == "fork":
        # Open in the parent when workers are forked.
        assert dataset[0][0] == 0
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=3, multiprocessing_context=method)
    seen = {}
    for numbers, batch in loader:
        for number, one in zip(numbers.tolist(), batch):
            assert number not in seen
            seen[number] = bytes_of(one)
    assert seen == {number: record(number) for number in range(SHARDS * RECORDS)}


def test_a_model_is_saved_and_loaded(shards):
    """What was trained would be lost."""
    volume, directory = shards
    model = torch.nn.Linear(300, 300)
    with volume.open(f"{directory}/model.pt.new", "wb") as file:
        torch.save(model.state_dict(), file)
    volume.replace(f"{directory}/model.pt.new", f"{directory}/model.pt")
    with volume.open(f"{directory}/model.pt", "rb") as file:
        read = torch.load(file)
    volume.remove(f"{directory}/model.pt")
    assert all(torch.equal(read[name], value) for name, value in model.state_dict().items())
