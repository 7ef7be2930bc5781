"""Files to be encoded: their bytes, which columns they are in, and whether they are all there and equal.

A client fills the columns of a stripe group alike, so what one of them writes into a directory is whole stripes. It need not take a group of its
own rack, or have enough of it: then its files are removed and written again. What many clients make of columns is measured by the experiment `columns`.
"""
import hashlib, os, random, shutil
from concurrent.futures import ThreadPoolExecutor

#: Clients at a time while files are written and compared.
CLIENTS = 12
#: Clients for one directory, at most.
TRIES_MAX = 12
#: What the poorest column has, at least, of what it would have if all had the same.
EVEN = 0.8
#: Files that one client writes where columns do not matter.
BATCH = 8


class Contents:
    """Random bytes by number, that are the same in each run."""

    def __init__(self, size):
        self.size = size
        self.base = random.Random(1).randbytes(size + (1 << 20))

    def of(self, number):
        at = number * 4099 % (1 << 20)
        return number.to_bytes(8, "little") + self.base[at + 8 : at + self.size]


class Load:
    def __init__(self, servers, volume, k, size, per_column):
        self.servers, self.volume, self.k, self.per_column = servers, volume, k, per_column
        self.contents, self.files, self.number, self.removed, self.columns, self.core_of = Contents(size), {}, 0, 0, {}, {}
        self.host_of = {f"{address}:7402": node for node, address in servers.network.address.items()}

    @property
    def bytes(self):
        return len(self.files) * self.contents.size

    def _put(self, writer, place, count):
        """Some files by one client; their paths."""
        source = f"{self.servers.root}/source{place}"
        os.makedirs(source)
        paths = {}
        for _ in range(count):
            self.number += 1
            number, name = self.number, f"f{self.number}"
            with open(f"{source}/{name}", "wb") as file:
                file.write(self.contents.of(number))
            paths[f"/d{place}/{name}"] = number
        names = [f"{source}/{path.rsplit('/', 1)[1]}" for path in paths]
        self.servers.cairn(writer, "fs", "put", *names, f"{self.volume}:/d{place}/")
        shutil.rmtree(source)
        return paths

    def _columns(self):
        """By group: its stripe group, column and core rack."""
        stripes = {pg["pg"]: pg["stripe"] for pg in self.servers.admin("pg", "ls") if pg["stripe"]}
        return {pg: (stripe["group"], stripe["column"], stripe["core_rack"]) for pg, stripe in stripes.items()}

    def random(self, writer, place, count):
        """Files wherever they happen to come."""
        while count > 0:
            self.files.update(self._put(writer, place, min(BATCH, count)))
            count -= BATCH

    def even(self, writer, place, own_rack):
        """Files of one client, which fills the columns of a stripe group alike; `own_rack`: of its own rack. Nothing else is kept."""
        label = self.servers.labels[writer]
        for _ in range(TRIES_MAX):
            paths = self._put(writer, place, self.k * self.per_column)
            told = self.servers.lines("fs", "stat", "-e", *[f"{self.volume}:{path}" for path in paths])
            filled, groups, core = {}, set(), None
            for extent in [extent for stat in told for extent in stat["extents"]]:
                if extent["pg"] not in self.columns:
                    self.columns.update(self._columns())
                group, column, core = self.columns.get(extent["pg"], (None, None, None))
                groups.add((group, core))
                filled[column] = filled.get(column, 0) + extent["length"]
            wanted = self.per_column * self.contents.size
            even = len(filled) == self.k and min(filled.values()) >= EVEN * wanted
            if len(groups) == 1 and even and (core == label or not own_rack):
                self.files.update(paths)
                self.core_of.update(dict.fromkeys(paths, core))
                return
            self.removed += len(paths)
            self.servers.cairn("head", "fs", "rm", "--skip-trash", *[f"{self.volume}:{path}" for path in paths])
        raise RuntimeError(f"what a client of {label} writes does not fill the columns of a stripe group of {label} alike; of {groups} the last one filled {filled}")

    def write(self, writers, even=True, own_rack=True):
        """`writers`: of each directory, which node writes."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            fill = (lambda writer, place: self.even(writer, place, own_rack)) if even else lambda writer, place: self.random(writer, place, self.k * self.per_column)
            work = [pool.submit(fill, writer, place) for place, writer in enumerate(writers)]
            try:
                for done in work:
                    done.result()
            except BaseException:
                # Threads that are at work end with their next command.
                self.servers.ending = True
                raise

    def compare(self, node="head", paths=None):
        """Paths of files that cannot be read, or are not what was written, as `node` reads them."""
        def wrong(item):
            path, number = item
            try:
                read = self.servers.cairn(node, "fs", "cat", f"{self.volume}:{path}", timeout=180)
            except Exception as error:
                return f"{path}: {error}"
            same = hashlib.sha256(read).digest() == hashlib.sha256(self.contents.of(number)).digest()
            return None if same else f"{path}: {len(read)} bytes that are not those that were written"
        with ThreadPoolExecutor(CLIENTS) as pool:
            items = [(path, number) for path, number in self.files.items() if paths is None or path in paths]
            try:
                return [why for why in pool.map(wrong, items) if why]
            except BaseException:
                self.servers.ending = True
                raise

    def stats(self):
        """What the cluster says of each file."""
        paths, told = [f"{self.volume}:{path}" for path in self.files], []
        for at in range(0, len(paths), 200):
            told += self.servers.lines("fs", "stat", "-e", *paths[at : at + 200])
        return told
