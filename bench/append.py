#!/usr/bin/env python3
"""Records that many writers append to one file (`cairn bench append`, which reads the file afterwards and counts each record).

Starts a manager, a meta and three data processes on loopback. Ends by itself, ends only what it started.
`rates`: eight writers of 4 KiB records at each level, in turns with a plain r3 write of the same bytes; what a record takes of all processors above that.
`many`: ten thousand writers; operations of the metadata for each chunk, and the memory of the data processes before and at the most.
`kill`: a member of the file's chunk is ended with SIGKILL in the middle (six data processes), with `all` one after the other; the longest time that a
record took, to be compared with `none`, where nothing is ended. Eight writers of 4 KiB, 16 under way; or more than 64 of 100 bytes, one under way.
Usage: CAIRN=target/release/cairn bench/append.py [rates|many|kill] [RECORDS] [WRITERS] [one|all|none]
"""
import json, os, shutil, signal, subprocess, sys, tempfile, threading, time
from cluster import CAIRN, Cluster

WHAT = sys.argv[1] if len(sys.argv) > 1 else "rates"
RECORDS = int(sys.argv[2]) if len(sys.argv) > 2 else {"rates": 60_000, "many": 1_000_000, "kill": 400_000}[WHAT]
WRITERS = int(sys.argv[3]) if len(sys.argv) > 3 else {"many": 10_000}.get(WHAT, 8)
ENDED = sys.argv[4] if len(sys.argv) > 4 else "one"


def bench(cluster, *arguments):
    command = [CAIRN, "--json", "bench", *map(str, arguments)]
    done = subprocess.run(command, env=cluster.environment(), capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return rows


def cpu_us(row, size):
    """Of one record: client and servers; the row has seconds for each GB."""
    return (row["client_cpu"] + row["server_cpu"]) * size / 1000


def rates(cluster):
    size = 4096
    for _ in range(3):
        plain = next(row for row in bench(cluster, "io", "--layouts", "r3", "--streams", 8, "--size", RECORDS * size) if "write" in row["what"])
        print(f"plain r3 write: {plain['mb_per_second']:.0f} MB/s, {cpu_us(plain, size):.1f} us of CPU for 4 KiB")
        for level in "memory", "durable", "visible":
            row = bench(cluster, "append", "--writers", 8, "--size", "4k", "--records", RECORDS, "--level", level)[0]
            above = cpu_us(row, size) - cpu_us(plain, size)
            print(f"{level}: {row['per_second']:.0f} records/s, p99 {row['p99_us'] / 1000:.1f} ms, CPU {cpu_us(row, size):.1f} us a record, {above:.1f} above the plain write", flush=True)


def operations(cluster):
    found = {}
    for name in cluster.metas:
        for metric, labels, value in cluster.metrics(name):
            if metric == "cairn_meta_operations":
                found[labels["op"]] = found.get(labels["op"], 0) + value
    return found


def many(cluster):
    size, datas = 100, [name for name in cluster.processes if name.startswith("data")]
    bench(cluster, "append", "--writers", 8, "--size", size, "--records", RECORDS // 4)
    before, most, over = {name: cluster.resident_bytes(name) for name in datas}, {}, threading.Event()

    def watch():
        while not over.wait(0.05):
            for name in datas:
                most[name] = max(most.get(name, 0), cluster.resident_bytes(name))

    thread, earlier = threading.Thread(target=watch), operations(cluster)
    thread.start()
    row = bench(cluster, "append", "--writers", WRITERS, "--size", size, "--records", RECORDS, "--depth", 4)[0]
    over.set()
    thread.join()
    did = {op: int(count - earlier.get(op, 0)) for op, count in operations(cluster).items() if count > earlier.get(op, 0)}
    chunks = did.get("OpenAppend", 0) or did.get("open_append", 0)
    print(f"{WRITERS} writers, {RECORDS} records of {size} bytes, each there once: {row['per_second']:.0f} records/s, p99 {row['p99_us'] / 1000:.0f} ms")
    print(f"chunks {chunks}; operations of the metadata: {did}")
    print("memory of the data processes, MiB more at the most:", {name: round((most[name] - before[name]) / 2**20, 1) for name in datas})


def kill(cluster):
    done, how = [], ("--size", "4k", "--depth", 16) if WRITERS <= 64 else ("--size", 100, "--depth", 1, "--warm-up", 4)
    run = threading.Thread(target=lambda: done.extend(bench(cluster, "append", "--writers", WRITERS, "--records", RECORDS, *how)))
    run.start()

    def appended(name):
        return sum(value for metric, _, value in cluster.metrics(name) if metric == "cairn_data_append_bytes")

    datas = [name for name in cluster.processes if name.startswith("data")]
    first = {name: appended(name) for name in datas}
    while run.is_alive() and not any(appended(name) > first[name] + (1 << 20) for name in datas):
        time.sleep(0.2)
    time.sleep(3)
    before = {name: appended(name) for name in datas}
    time.sleep(0.5)
    # All members of the chunk's group take its bytes; one after the other is ended, and one of them is the primary.
    members = [name for name in datas if appended(name) > before[name] + (1 << 18)]
    for name in {"none": [], "one": members[:1], "all": members}[ENDED]:
        if run.is_alive():
            cluster.signal(name, signal.SIGKILL)
            print("ended:", name, "of", members, flush=True)
            time.sleep(3)
    run.join()
    for row in done:
        print(f"{WRITERS} writers: {row['per_second']:.0f} records/s; p50 {row['p50_us'] / 1000:.0f}, p99 {row['p99_us'] / 1000:.0f} ms; the longest took {row['max_us'] / 1e6:.2f} s; each record is there once")


root = tempfile.mkdtemp(prefix="cairn-append-")
cluster = Cluster(root, datas=6 if WHAT == "kill" else 3)
try:
    cluster.wait("/ready", "r3")
    {"rates": rates, "many": many, "kill": kill}[WHAT](cluster)
finally:
    cluster.stop()
    shutil.rmtree(root, ignore_errors=True)
