"""Files to be encoded: their bytes, which columns they are in, and whether they are all there and equal.

Writers choose a column by chance, as any client does. A measurement of encoding wants whole stripes, so as many files of each column: files of
columns that have enough are removed again, and others written, until all columns of one stripe group have the same. What chance would do
is measured by the experiment `columns`.
"""
import hashlib, os, random, shutil
from concurrent.futures import ThreadPoolExecutor

#: Clients at a time while files are written and compared.
CLIENTS = 12
#: Clients for one directory, at most.
TRIES_MAX = 300
#: Of these, those that look for a column whose primary is on the writer: a rack may have nodes without any.
FIRST_TRIES = 4
#: Files that are not wanted, before they are removed.
SURPLUS_MAX = 32
#: Files that one client writes; it has four streams, so they come into up to four columns.
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
        """By group: its stripe group, column, core rack and primary's node."""
        found = {}
        for pg in self.servers.admin("pg", "ls"):
            stripe, first = pg["stripe"], pg["members"][0]
            if stripe:
                found[pg["pg"]] = (stripe["group"], stripe["column"], stripe["core_rack"], self.host_of.get(first["address"]))
        return found

    def random(self, writer, place, count):
        """Files wherever they happen to come."""
        while count > 0:
            self.files.update(self._put(writer, place, min(BATCH, count)))
            count -= BATCH

    def even(self, writer, place):
        """As many files in each column of one stripe group of the writer's rack, the first of them with its primary on the writer: it encodes."""
        label, group, need, tries = self.servers.labels[writer], None, {}, 0
        surplus = []
        others = [node for node, of in self.servers.labels.items() if of == label and node != writer]
        while group is None or any(need.values()):
            if tries > TRIES_MAX:
                raise RuntimeError(f"clients of {label} never come into all columns of one stripe group: {need} are missing")
            # Each writes to columns near it, so all nodes of the rack take turns, the encoding one first.
            by = writer if group is None else ([writer] + others)[tries % (1 + len(others))]
            tries += 1
            paths = self._put(by, place, min(BATCH, sum(need.values()) or self.k))
            told = self.servers.lines("fs", "stat", "-e", *[f"{self.volume}:{path}" for path in paths])
            if not self.columns and tries > 3:
                raise RuntimeError("files do not come into columns: the manager makes no stripe groups with these racks and nodes")
            for stat in sorted(told, key=lambda stat: stat["inode"]):
                groups = {extent["pg"] for extent in stat["extents"]}
                if not groups <= self.columns.keys():
                    self.columns.update(self._columns())
                column = self.columns.get(next(iter(groups))) if len(groups) == 1 else None
                if group is None and column and column[2] == label and (column[3] == writer or tries > FIRST_TRIES):
                    group, need = column[0], {number: self.per_column for number in range(self.k)}
                if column and column[0] == group and need[column[1]] > 0:
                    need[column[1]] -= 1
                    self.files[stat["path"]] = paths[stat["path"]]
                    self.core_of[stat["path"]] = column[2]
                else:
                    surplus.append(stat["path"])
            if len(surplus) >= SURPLUS_MAX:
                self._remove(surplus)
        self._remove(surplus)

    def _remove(self, surplus):
        if surplus:
            self.removed += len(surplus)
            self.servers.cairn("head", "fs", "rm", "--skip-trash", *[f"{self.volume}:{path}" for path in surplus])
            surplus.clear()

    def write(self, writers, even=True):
        """`writers`: of each directory, which node writes."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            fill = self.even if even else lambda writer, place: self.random(writer, place, self.k * self.per_column)
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
