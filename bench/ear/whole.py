"""What has to hold besides speed: space, bytes across racks, racks that are lost at any stage, and what encoding costs."""
import os, threading, time
from encode import Bench, crossed, encode, left_the_core_rack, wait_encoded
from experiments import AFTER, Writers
from load import Load
from report import shown, table, write_csv

MIB = 1 << 20


def racks(options):
    """Six racks of two nodes, r3>rs-6-3. A rack is cut off before, while and after files are encoded, and everything is read."""
    k, m, rows = 6, 3, []
    with Bench(options, "ear", [2] * 6, ("repair_delay=1h", "repair_delay_urgent=1h")) as bench:
        load = bench.load(f"r3>rs-{k}-{m}@{AFTER}s", k, options.size, 1 if options.quick else options.per_column)
        def with_out(rack, when):
            bench.network.cut(rack)
            started = time.monotonic()
            wrong = load.compare()
            rows.append({"when": when, "rack": rack, "files": len(load.files), "wrong": len(wrong), "seconds": time.monotonic() - started, "first": (wrong or [""])[0][:160]})
            options.say(f"  rack {rack} is away {when}: {len(load.files) - len(wrong)} of {len(load.files)} files are equal" + (f"; {wrong[0][:300]}" if wrong else ""))
            bench.network.join(rack)
            healthy = lambda: all(pg["health"] == "complete" for pg in bench.servers.admin("pg", "ls"))
            bench.servers.until("all groups are complete again", healthy, 180, 1.0)
        for rack in range(0, 6, 3 if options.quick else 1):
            with_out(rack, "before encoding")
        bench.network.shape(options.rate)
        bench.rest(AFTER * 1.5 + 1)
        state = {}
        def cut_once(seconds, encoded):
            # In the middle of the work of most racks.
            if "thread" not in state and seconds > 1.5:
                state["thread"] = threading.Thread(target=with_out, args=(2, "while files are encoded"))
                state["thread"].start()
        found = encode(bench, load, meanwhile=cut_once)
        if "thread" in state:
            state["thread"].join()
        bench.network.shape(None)
        wait_encoded(bench, load)
        for rack in range(0, 6, 3 if options.quick else 1):
            with_out(rack, "after encoding")
        fsck = bench.servers.cairn("head", "admin", "fsck", load.volume).decode()
        stats = load.stats()
        survived = min(stat["losses_survived"] for stat in stats)
        errors = bench.servers.errors()
    lines = [[row["when"], row["rack"], f"{row['files'] - row['wrong']} of {row['files']}", f"{row['seconds']:.1f}"] for row in rows]
    text = "### A rack is cut off\n\n" + table(["when", "rack", "files equal", "all read in s"], lines)
    text += f"\n\n{found['together'] / found['encoded']:.0%} was encoded together. After it every file survives {survived} losses; fsck: {fsck.strip().splitlines()[-1]}. ERROR lines in logs: {len(errors)}."
    options.tell("testbed-racks", text)
    for line in errors[:10]:
        options.say(f"ERROR in a log: {line}")
    write_csv(f"{options.out}/testbed-racks.csv", rows)
    return sum(row["wrong"] for row in rows)


def raw_rate(directory, size=512 * MIB):
    """MB/s that the disk takes, durable at the end."""
    path, block = f"{directory}/cairn-ear-raw-{os.getpid()}", os.urandom(MIB)
    try:
        started = time.monotonic()
        with open(path, "wb") as file:
            for _ in range(size // MIB):
                file.write(block)
            os.fsync(file.fileno())
        return size / 1e6 / (time.monotonic() - started)
    finally:
        os.unlink(path)


def cost(options):
    """Six racks of two nodes, r3>rs-6-3, links without limits: space, bytes across racks, throughput beside that of the disk, processor time."""
    k, m, rows = 6, 3, []
    for policy in [policy for policy in options.policies if policy != "rr"]:
        # Copies of r3 are one and two in two racks, so racks have to have two nodes.
        with Bench(options, policy, [2] * 6) as bench:
            raw = raw_rate(options.dir)
            load = bench.load(f"r3>rs-{k}-{m}@{AFTER}s", k, 2 * options.size, 2 * options.per_column)
            bench.rest(AFTER * 1.5 + 1)
            before = bench.servers.disk_bytes()
            found = encode(bench, load)
            wait_encoded(bench, load)
            parity = left_the_core_rack(bench, load) if policy == "ear" else None
            try:
                bench.servers.until("copies are freed", lambda: bench.servers.disk_bytes() <= 1.55 * load.bytes, 90, 1.0)
            except RuntimeError:
                # What is left is told below.
                pass
            after = bench.servers.disk_bytes()
            stats = load.stats()
            found |= {"disk_mb_per_second": raw, "bound": raw / (1 + (k + m) / k), "raw_named": sum(stat["raw_bytes"] for stat in stats) / load.bytes,
                      "raw_on_disks_before": before / load.bytes, "raw_on_disks": after / load.bytes, "parity_crossed": parity, "wrong": len(load.compare())}
            rows.append(found)
            write_csv(f"{options.out}/testbed-cost.csv", rows)
    lines = []
    for row in rows:
        data = "" if row["parity_crossed"] is None else f"{max(0.0, row['crossed'] - row['parity_crossed']) / row['bytes']:.2%}"
        parity = "" if row["parity_crossed"] is None else f"{row['parity_crossed'] / row['bytes']:.1%}"
        lines.append([row["policy"], f"{row['bytes'] / 1e6:.0f}", f"{row['together'] / row['encoded']:.0%}", f"{row['raw_on_disks_before']:.2f}", f"{row['raw_named']:.3f}",
                      f"{row['raw_on_disks']:.3f}", f"{row['crossed'] / row['bytes']:.1%}", parity, data, f"{row['mb_per_second']:.0f}",
                      f"{row['disk_mb_per_second']:.0f}", f"{row['mb_per_second'] / row['bound']:.2f}", f"{row['cpu_per_gb']:.1f}"])
    header = ["policy", "MB", "in the core rack", "raw before", "raw by fs stat", "raw on disks", "across racks / data", "parity of it", "the rest: headers, messages, data", "MB/s",
              "raw disk MB/s", "of disk ÷ (1 + n/k)", "CPU s/GB"]
    options.tell("testbed-cost", f"### Space, bytes and cost\n\n{table(header, lines)}")


def columns(options):
    """What chance makes of columns: 5 racks of 4 nodes, clients that write as they like, r3>rs-6-3."""
    k, m, rows = 6, 3, []
    # As users have it: all columns of a class, and files of any clients.
    for clients, name in ((60, "many clients everywhere"), (8, "few clients"), (30, "clients of one node")):
        with Bench(options, "ear", [4] * 5, ("pgs_per_disk=4",)) as bench:
            bench.servers.volume("t", f"r3>rs-{k}-{m}@{AFTER}s", 1)
            load = Load(bench.servers, "t", k, options.size // 2, 1)
            nodes = sorted(bench.network.rack_of)
            per_client = max(1, 120 // clients)
            for number in range(clients):
                load.random(nodes[number % len(nodes)] if name != "clients of one node" else nodes[0], 0, per_client)
            found = {}
            for stat in load.stats():
                for extent in stat["extents"]:
                    found[extent["pg"]] = found.get(extent["pg"], 0) + extent["length"]
            of = load._columns()
            groups = {}
            for pg, (group, column, *_rest) in of.items():
                groups.setdefault(group, {})[column] = found.get(pg, 0)
            even = sum(min(each.values()) * k for each in groups.values())
            bench.written = time.monotonic()
            bench.rest(AFTER * 1.5 + 1)
            result = encode(bench, load, limit=300)
            rows.append({"writers": name, "files": len(load.files), "stripe_groups": len(groups), "could_be_together": even / load.bytes, **result})
            write_csv(f"{options.out}/testbed-columns.csv", rows)
    lines = [[row["writers"], row["files"], row["stripe_groups"], f"{row['could_be_together']:.0%}", f"{row['together'] / max(row['encoded'], 1):.0%}"] for row in rows]
    options.tell("testbed-columns", "### Columns as clients fill them\n\n" + table(["who writes", "files", "stripe groups", "in whole stripes", "encoded together"], lines))


def beside(options):
    """What a stream of writes loses beside encoding at the default rate, without slow links."""
    k, m, rows = 6, 3, []
    with Bench(options, "ear", [2] * 6, (f"stage_rate={options.stage_rate}",)) as bench:
        bench.told = {}
        load = bench.load(f"r3>rs-{k}-{m}@{AFTER}s", k, 2 * options.size, 2 * options.per_column)
        bench.servers.volume("fg", f"r3>rs-{k}-{m}@4095d", 1)
        bench.rest(AFTER * 1.5 + 1)
        def stream(until, counted):
            number = 0
            while not until():
                number += 1
                bench.servers.cairn(bench.network.racks[number % 6][0], "fs", "put", "-", f"fg:/d0/s{number}-{time.monotonic_ns()}", stdin=bytes(4 * MIB))
                counted.append(time.monotonic())
        def rate(seconds):
            end, counted, started = time.monotonic() + seconds, [], time.monotonic()
            stream(lambda: time.monotonic() > end, counted)
            return len(counted) * 4 * MIB / 1e6 / (time.monotonic() - started)
        alone = rate(10)
        done, counted = threading.Event(), []
        def work():
            rows.append(encode(bench, load))
            done.set()
        thread = threading.Thread(target=work)
        started = time.monotonic()
        thread.start()
        stream(done.is_set, counted)
        thread.join()
        together = [at for at in counted if at - started > 3]
        beside_it = len(together) * 4 * MIB / 1e6 / max(time.monotonic() - started - 3, 0.1)
        after = rate(10)
    row = {**rows[0], "alone": alone, "beside": beside_it, "after": after}
    write_csv(f"{options.out}/testbed-beside.csv", [row])
    base = (alone + after) / 2
    header = ["stage_rate a partition", "writes alone MB/s", "beside encoding", "again alone", "lost", "encoding MB/s"]
    line = [options.stage_rate, f"{alone:.1f}", f"{beside_it:.1f}", f"{after:.1f}", f"{100 * (1 - beside_it / base):.0f} %", f"{row['mb_per_second']:.1f}"]
    options.tell("testbed-beside", "### Writers beside encoding\n\n" + table(header, [line]))
