"""One measurement of encoding: a cluster in namespaces, files in it, and what is counted while they are encoded.

Policies:
- `ear`: stripe groups; the racks that Cairn is told of are those that there are.
- `rr`: the same code and random placement: Cairn is told of racks whose nodes are in fact in different racks. So what it takes for the core
  rack is anywhere, and so is whoever encodes.
- `file`: no stripe groups, as is the default: copies anywhere, each file encoded by itself on a node that has it.
"""
import os, shutil, signal, sys, tempfile, time
from load import Load
from network import Network
from servers import Servers

#: Uplink traffic that is more than messages, in bytes a second; encoding has begun.
BEGUN = 150_000
TICK = 0.2


def labels_of(network, policy):
    if policy != "rr":
        return None
    racks = network.racks
    if all(len(nodes) == 1 for nodes in racks):
        # k - 2k/R blocks come from elsewhere on average, as with the paper's random replication.
        return {node: f"label{rack % 2}" for node, rack in network.rack_of.items()}
    return {node: f"label{(rack + place) % len(racks)}" for rack, nodes in enumerate(racks) for place, node in enumerate(nodes)}


class Bench:
    """A cluster, and all that has to go at the end."""

    def __init__(self, options, policy, racks, settings=()):
        self.policy, self.servers, self.network, self.options = policy, None, None, options
        self.root = tempfile.mkdtemp(prefix="cairn-ear-", dir=options.dir)
        try:
            names = [[f"r{rack}n{node}" for node in range(count)] for rack, count in enumerate(racks)]
            self.network = Network(f"cairn{os.getpid()}-", names)
            self.network.enter()
            on = "off" if policy == "file" else "on"
            all_settings = {"stripe_groups": on, "stage_hours": "never", "stage_rate": "0"}
            if policy == "rr":
                # With few racks on its map the manager makes few stripe groups, which are filled sooner.
                all_settings["pgs_per_disk"] = "1"
            all_settings = [f"{key}={value}" for key, value in {**all_settings, **dict(each.split("=") for each in settings)}.items()]
            self.servers = Servers(self.root, self.network, options.cairn, labels_of(self.network, policy), all_settings, options.logs or "info")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        # Who is told to end meanwhile, ends when all is gone.
        told, numbers = [], (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, lambda *_: told.append(True)) for number in numbers]
        try:
            self._close()
        finally:
            for number, handler in zip(numbers, before):
                signal.signal(number, handler)
        if told:
            sys.exit("testbed: it was told to end")

    def _close(self):
        if self.servers:
            self.servers.stop()
        if self.network:
            self.network.close()
        if self.options.logs:
            kept = f"{self.options.out}/logs/{os.path.basename(self.root)}-{self.policy}"
            shutil.copytree(self.root, kept, ignore=lambda _, names: [name for name in names if not name.endswith(".log")])
        shutil.rmtree(self.root, ignore_errors=True)

    def writers(self, each=1):
        """The node that writes into each directory: all racks by turns, in each the nodes by turns."""
        racks = self.network.racks
        return [nodes[turn % len(nodes)] for turn in range(each) for nodes in racks]

    def load(self, layout, k, size, per_column, each=1, volume="t"):
        """Files for all racks, not encoded yet, whose time has come."""
        writers = self.writers(each)
        self.servers.volume(volume, layout, len(writers))
        load = Load(self.servers, volume, k, size, per_column)
        load.write(writers, even=self.policy != "file", own_rack=self.policy == "ear")
        self.written = time.monotonic()
        return load

    def rest(self, seconds):
        """Until so long after the last write."""
        time.sleep(max(0.0, self.written + seconds - time.monotonic()))


def crossed(network, before):
    """Bytes that left and entered each rack since."""
    return [(up - was_up, down - was_down) for (up, down), (was_up, was_down) in zip(network.counters(), before)]


def encode(bench, load, limit=900, meanwhile=None):
    """Lets all files be encoded, and counts. `meanwhile` is called often with the seconds since the beginning and the bytes that are encoded."""
    servers, network = bench.servers, bench.network
    idle_from, cpu_from, started = network.counters(), servers.cpu_seconds(), time.monotonic()
    time.sleep(3.0)
    idle = sum(up for up, _ in crossed(network, idle_from)) / (time.monotonic() - started)
    names = ("cairn_meta_encoded_bytes", "cairn_meta_encoded_together_bytes", "cairn_meta_encoding_left")
    was = [servers.metric(name) for name in names]
    idle_cpu = (servers.cpu_seconds() - cpu_from) / (time.monotonic() - started)
    raw, cpu, before = servers.disk_bytes(), servers.cpu_seconds(), network.counters()
    servers.admin("config", "set", "stage_hours=always")
    asked = time.monotonic()
    begun = done = None
    last, last_at = sum(up for up, _ in before), asked
    encoded = 0
    while time.monotonic() - asked < limit:
        time.sleep(TICK)
        now, total = time.monotonic(), sum(up for up, _ in network.counters())
        if begun is None and (total - last) / (now - last_at) > idle + BEGUN:
            begun = last_at
        last, last_at = total, now
        encoded = servers.metric(names[0]) - was[0]
        if meanwhile:
            meanwhile(now - (begun or asked), encoded)
        if encoded >= load.bytes:
            done = now
            break
    end = time.monotonic()
    moved, cpu = crossed(network, before), servers.cpu_seconds() - cpu
    seconds = (done or end) - (begun or asked)
    counts = [servers.metric(name) - before_it for name, before_it in zip(names, was)]
    return {
        "policy": bench.policy, "bytes": load.bytes, "encoded": counts[0], "together": counts[1], "left": counts[2], "complete": done is not None,
        "seconds": seconds, "mb_per_second": counts[0] / seconds / 1e6, "cpu_per_gb": (cpu - idle_cpu * (end - asked)) / max(counts[0], 1) * 1e9, "raw_before": raw,
        "crossed": sum(up for up, _ in moved) - idle * (end - asked), "idle_per_second": idle,
        "busiest_link": max(max(up, down) for up, down in moved),
    }


def left_the_core_rack(bench, load):
    """Bytes of parity that had to leave core racks, as the shards of all chunks lie; the rest of what crosses racks is data and messages."""
    pgs = {pg["pg"]: pg for pg in bench.servers.admin("pg", "ls")}
    label = lambda member: bench.servers.labels[load.host_of[member["address"]]]
    total = 0.0
    for stat in load.stats():
        for extent in stat["extents"]:
            if extent["unit"] == 64 << 20:
                parities = pgs[extent["pg"]]["members"][load.k :]
                total += sum(label(member) != load.core_of[stat["path"]] for member in parities) * extent["length"] / load.k
    return total


def wait_encoded(bench, load, limit=600):
    """Until every file says that it is encoded (or stays copies)."""
    ends = ("encoded", "kept")
    bench.servers.until("all files are encoded", lambda: all(stat["stage"] in ends for stat in load.stats()), limit, 1.0)
