"""The experiments of the paper's testbed, on namespaces: encoding alone (A.1), beside writes (A.2) and UDP, and with fast and slow uplinks.

Each prints a table, and writes CSV and a chart. Runs of the policies take turns, so that what else the machine does meets all of them.
"""
import random, threading, time
from traffic import Udp
from encode import Bench, encode, left_the_core_rack, wait_encoded
from report import mean, shown, svg, table, write_csv

MIB = 1 << 20
#: The age at which files are encoded. They wait half as long again for others.
AFTER = 6
#: The paper's: k and two parities, on so many racks.
SCHEMES = {4: 2, 6: 2, 8: 2, 10: 2}
RACKS = 12


def one(options, policy, racks, scheme, copies, rates, size=None, per_column=None, each=1, udp=0.0, meanwhile=None, settings=()):
    """One run: a new cluster, files of whole stripes, all of them encoded."""
    k, m = scheme
    with Bench(options, policy, racks, settings) as bench:
        load = bench.load(f"r{copies}>rs-{k}-{m}@{AFTER}s", k, size or options.size, per_column or options.per_column, each)
        bench.rest(AFTER * 1.5 + 1)
        bench.network.shape(*rates)
        with Udp(bench.network, udp):
            found = encode(bench, load, meanwhile=meanwhile and meanwhile(bench))
        if meanwhile:
            found.update(bench.told)
        bench.network.shape(None)
        wait_encoded(bench, load)
        if policy == "ear":
            found["parity_crossed"] = left_the_core_rack(bench, load)
        stripes = load.bytes / k / (size or options.size)
        found |= {"k": k, "m": m, "stripes": stripes, "blocks_crossed": found["crossed"] / found["bytes"] * k,
                  "link_seconds": found["busiest_link"] * 8 / rates[0], "errors": len(bench.servers.errors()), "surplus_files": load.removed}
        for line in bench.servers.errors()[:5]:
            options.say(f"ERROR in a log: {line}")
    together = found["together"] / max(found["encoded"], 1)
    options.say(f"  {policy} rs-{k}-{m} {rates[0] / 1e6:g} Mb/s: {found['mb_per_second']:.1f} MB/s in {found['seconds']:.1f} s, "
                f"{found['blocks_crossed']:.2f} blocks a stripe crossed racks, {together:.0%} encoded together" + ("" if found["complete"] else ", NOT COMPLETE"))
    return found


def gain(rows, policy, against, key="mb_per_second"):
    """In percent, by run."""
    pick = lambda name: [row[key] for row in rows if row["policy"] == name]
    return [100 * (a / b - 1) for a, b in zip(pick(policy), pick(against))]


def links_gain(rows, against):
    """The gain that the bytes on the busiest uplinks alone would bring."""
    pick = lambda name: mean([row["link_seconds"] for row in rows if row["policy"] == name])
    return 100 * (pick(against) / pick("ear") - 1)


def sweep(options, name, title, axis, points, published, run):
    """A table with a line for each point; `run(policy, point)` measures once."""
    rows = []
    for number in range(options.runs):
        for point in points:
            for policy in options.policies:
                try:
                    rows.append({"point": point, "run": number, **run(policy, point)})
                except (RuntimeError, OSError) as error:
                    options.say(f"  {policy} at {point}, run {number}: {error}")
                write_csv(f"{options.out}/{name}.csv", rows)
    at = lambda point: [row for row in rows if row["point"] == point]
    of = lambda point, policy, key: [row[key] for row in at(point) if row["policy"] == policy]
    lines = []
    for point in points:
        share = mean([row["together"] / max(row["encoded"], 1) for row in at(point) if row["policy"] == "ear"])
        speeds = [shown(of(point, policy, "mb_per_second"), 2) for policy in options.policies]
        blocks = [shown(of(point, policy, "blocks_crossed"), 2) for policy in options.policies]
        gains = [shown(gain(at(point), "ear", policy), 0) for policy in options.policies if policy != "ear"]
        links = f"{links_gain(at(point), 'rr'):.0f}" if "rr" in options.policies and of(point, "rr", "seconds") and of(point, "ear", "seconds") else ""
        lines.append([point, *speeds, *blocks, f"{share:.0%}", *gains, links, published.get(point, "")])
    header = [axis, *[f"{policy} MB/s" for policy in options.policies], *[f"{policy} blocks across" for policy in options.policies], "EAR in its rack",
              *[f"gain over {policy} %" for policy in options.policies if policy != "ear"], "by bytes on links %", "published %"]
    text = f"### {title}\n\n{table(header, lines)}\n\n{options.runs} runs."
    options.tell(name, text)
    series = [(f"EAR over {policy}", [mean(gain(at(point), "ear", policy)) if gain(at(point), "ear", policy) else None for point in points])
              for policy in options.policies if policy != "ear"]
    if published:
        series.append(("published", [published.get(point) for point in points]))
    svg(f"{options.out}/{name}.svg", f"{title}: gain in %", axis, points, series)


def a1(options):
    """Encoding throughput by k."""
    points = [4] if options.quick else sorted(SCHEMES)
    points = [options.k] if options.k else points
    racks = lambda k: [1] * (k + SCHEMES[k] if options.quick else RACKS)
    run = lambda policy, k: one(options, policy, racks(k), (k, SCHEMES[k]), 2, (options.rate, None))
    sweep(options, "testbed-k", "Encoding by k", "k", points, {4: 19.9, 10: 59.7}, run)


def udp(options):
    """Encoding throughput with cross traffic: pairs of racks send UDP."""
    points = [0, 40, 80]
    run = lambda policy, percent: one(options, policy, [1] * RACKS, (8, 2), 2, (options.rate, None), udp=percent / 100 * options.rate)
    sweep(options, "testbed-udp", "Encoding beside UDP", "UDP, % of a link", points, {0: 57.5, 80: 119.7}, run)


def oversubscription(options):
    """5 racks of 4 nodes, r3>rs-6-3."""
    points = [2, 20] if options.quick else [2, 5, 10, 20]
    node = options.rate
    run = lambda policy, over: one(options, policy, [4] * 5, (6, 3), 3, (4 * node / over, node), each=2)
    sweep(options, "testbed-oversubscription", "5 racks of 4 nodes, r3>rs-6-3", "oversubscription", points, {2: 31.0, 20: 63.6}, run)


class Writers:
    """Single blocks that are written at random moments, the same ones in each run, by nodes of the cluster."""

    def __init__(self, bench, size, per_second, seed=7):
        self.bench, self.size, self.times = bench, size, []
        self.random, self.per_second, self.ended = random.Random(seed), per_second, threading.Event()
        self.nodes, self.threads, self.number = sorted(bench.network.rack_of), [], 0
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.ended.wait(self.random.expovariate(self.per_second)):
            self.number += 1
            write = threading.Thread(target=self._write, args=(self.random.choice(self.nodes), self.number))
            write.start()
            self.threads.append(write)

    def _write(self, node, number):
        started = time.monotonic()
        try:
            self.bench.servers.cairn(node, "fs", "put", "-", f"fg:/d0/w{number}", stdin=bytes(self.size))
            self.times.append((started, time.monotonic() - started))
        except RuntimeError as error:
            self.bench.told["write_errors"] = self.bench.told.get("write_errors", 0) + 1
            self.bench.told["write_error"] = str(error)[:200]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for thread in self.threads:
            thread.join()

    def mean(self, since, until):
        return mean([took for started, took in self.times if since <= started < until])


def a2(options):
    """Writes before and beside encoding: their response times, and the time of encoding."""
    k, m, rows = 6, SCHEMES[6], []
    for number in range(options.runs):
        for policy in options.policies:
            with Bench(options, policy, [1] * RACKS, (f"stage_rate={options.stage_rate}",)) as bench:
                bench.told = {}
                load = bench.load(f"r2>rs-{k}-{m}@{AFTER}s", k, options.size, 2 * options.per_column)
                bench.servers.volume("fg", f"r2>rs-{k}-{m}@4095d", 1)
                bench.rest(AFTER * 1.5 + 1)
                bench.network.shape(options.rate)
                with Writers(bench, options.size, 0.8, seed=7 + number) as writers:
                    begun = time.monotonic()
                    time.sleep(30 if not options.quick else 10)
                    encoding = time.monotonic()
                    found = encode(bench, load)
                    ended = time.monotonic()
                found |= {"run": number, "alone_s": writers.mean(begun, encoding), "beside_s": writers.mean(encoding, ended), "writes": len(writers.times), **bench.told}
                rows.append(found)
                options.say(f"  {policy}: a write takes {found['alone_s']:.2f} s alone, {found['beside_s']:.2f} s beside encoding, which takes {found['seconds']:.1f} s")
            write_csv(f"{options.out}/testbed-writes.csv", rows)
    of = lambda policy, key: [row[key] for row in rows if row["policy"] == policy]
    lines = [[policy, *[shown(of(policy, key), 2) for key in ("alone_s", "beside_s", "seconds", "mb_per_second")]] for policy in options.policies]
    text = "### Writes beside encoding\n\n" + table(["policy", "write alone s", "write beside encoding s", "encoding s", "MB/s"], lines)
    for policy in [policy for policy in options.policies if policy != "ear"]:
        writes = shown([-value for value in gain(rows, "ear", policy, "beside_s")], 1)
        text += f"\n\nEAR against {policy}: writes {writes} % shorter (published 12.4), encoding {shown([-value for value in gain(rows, 'ear', policy, 'seconds')], 1)} % shorter (published 31.6)."
    options.tell("testbed-writes", text)
