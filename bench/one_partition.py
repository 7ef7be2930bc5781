#!/usr/bin/env python3
"""What one meta partition with one member costs: CPU a call, memory a file, a restart after kill -9, few files against many.

Starts a manager and a meta on loopback. Creates and lookups with 32 clients and 16 calls outstanding each, PAIRS times; then 10 thousand files
and FILES files in volumes of their own, names picked at random among all of a volume, and creates in both volumes in turns. Then the meta
is killed, and the time counts until a name is found again.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/one_partition.py [FILES [PAIRS [DIR]]]
"""
import shutil, signal, statistics, sys, tempfile, time
from cluster import Cluster

FILES = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
DIR = sys.argv[3] if len(sys.argv) > 3 else None
MARK = "many:/mark"


def row(what, *figures):
    print("| " + " | ".join([what, *figures]) + " |", flush=True)


def cost(runs, what):
    """Median of CPU µs and of calls a second."""
    rows = [row for rows in runs for row in rows if row["what"] == what]
    return f"{statistics.median(row['server_cpu'] for row in rows):.2f} µs", f"{statistics.median(row['per_second'] for row in rows):,.0f} a second"


def memory(cluster):
    return sum(cluster.sum_of("cairn_meta_memory_bytes").values()), cluster.resident_bytes("meta"), sum(cluster.sum_of("cairn_meta_inodes").values())


def few_and_many(cluster):
    lookups = ["--operations", "create,stat,stat,stat", "--random", "--keep", "--seconds", "2"]
    few = [cluster.bench_meta("few", 32, 16, "--files", "10000", *lookups)]
    before = memory(cluster)
    many = [cluster.bench_meta("many", 32, 16, "--files", str(FILES), "--extents", *lookups)]
    names, resident, inodes = (now - then for now, then in zip(memory(cluster), before))
    row("memory a file: names and extents, counted", f"{names / inodes:.0f} B", "")
    row(f"memory a file: growth of the process, {inodes:,.0f} files", f"{resident / inodes:.0f} B", "")
    few.append(cluster.bench_meta("few", 32, 16, "--files", "10000", *lookups))
    for name, runs in (("10,000", few), (f"{FILES:,}", many)):
        row(f"lookup at random among {name} files", *cost(runs, "stat"))
    runs = {"few": [], "many": []}
    for pair in range(PAIRS):
        for name in ("few", "many") if pair % 2 == 0 else ("many", "few"):
            runs[name].append(cluster.bench_meta(name, 32, 16, "--seconds", "2", "--operations", "create,unlink"))
    for name, files in (("few", 10_000), ("many", FILES)):
        for what in ("create", "unlink"):
            row(f"{what} beside {files:,} files", *cost(runs[name], what))


def restart(cluster):
    cluster.fs("mkdir", MARK)
    cluster.signal("meta", signal.SIGKILL)
    cluster.processes["meta"].wait()
    started = time.monotonic()
    cluster.restart("meta")
    while time.monotonic() - started < 120:
        try:
            cluster.fs("stat", MARK)
            break
        except RuntimeError:
            time.sleep(0.02)
    took = time.monotonic() - started
    cpu = sum(value for metric, _, value in cluster.metrics("meta") if metric == "cairn_process_cpu_seconds")
    row("kill -9, start to the first name found", f"{took:.1f} s", f"{cpu:.1f} s of CPU")


def main():
    root = tempfile.mkdtemp(prefix="cairn-one-", dir=DIR)
    cluster = Cluster(root, heads=1, datas=1)
    try:
        for name in ("few", "many"):
            cluster.volume(name, 1)
        # They stay what they are under load.
        cluster.admin("config", "set", "partition_load=0")
        runs = [cluster.bench_meta("few", 32, 16, "--seconds", "2") for _ in range(PAIRS)]
        row("32 × 16", "CPU of servers", "")
        row("---", "---", "---")
        for what in ("create", "stat", "readdir", "rename", "unlink"):
            row(what, *cost(runs, what))
        few_and_many(cluster)
        restart(cluster)
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
