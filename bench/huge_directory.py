#!/usr/bin/env python3
"""A directory with very many entries, sharded over the meta partitions of its volume, beside one that is not.

Starts a manager, a meta and a data on loopback and a volume of PARTITIONS partitions. Creates, lookups and removals in a directory with shards and in one
without, PAIRS times in turns, as many calls outstanding in both; then ENTRIES files in the sharded one, which is listed whole and
looked up in at random.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/huge_directory.py [ENTRIES [PARTITIONS [PAIRS [DIR]]]]
"""
import os, shutil, statistics, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

ENTRIES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
PARTITIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
PAIRS = int(sys.argv[3]) if len(sys.argv) > 3 else 5
DIR = sys.argv[4] if len(sys.argv) > 4 else None


def side_by_side(cluster):
    runs = {"plain": [], "sharded": []}
    for pair in range(PAIRS):
        for kind in ("plain", "sharded") if pair % 2 == 0 else ("sharded", "plain"):
            path = f"/{kind}{pair}"
            cluster.fs("mkdir", f"huge:{path}")
            if kind == "sharded":
                cluster.fs("shard", f"huge:{path}")
            runs[kind].append(cluster.bench_meta("huge", 32, 16, "--directory", path, "--seconds", "2", "--operations", "create,stat,unlink"))
    print("| 32 × 16 in one directory | plain: server CPU µs | sharded | ratio | plain: a second | sharded |\n|---|---|---|---|---|---|")
    for i, what in enumerate(("create", "stat", "unlink")):
        of = lambda kind, key: statistics.median(rows[i][key] for rows in runs[kind])
        plain, sharded = of("plain", "server_cpu"), of("sharded", "server_cpu")
        rates = [of(kind, "per_second") for kind in ("plain", "sharded")]
        print(f"| {what} | {plain:.1f} | {sharded:.1f} | {sharded / plain:.2f} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)


def cpu_seconds(cluster):
    return sum(value for metric, _, value in cluster.metrics("meta") if metric == "cairn_process_cpu_seconds")


def whole(cluster):
    cluster.fs("mkdir", "huge:/whole")
    cluster.fs("shard", "huge:/whole")
    options = ["--directory", "/whole", "--files", str(ENTRIES), "--random", "--seconds", "5", "--operations", "create,stat"]
    create, stat = cluster.bench_meta("huge", 32, 16, *options)
    print("| | |\n|---|---|")
    print(f"| {create['operations']:,} files created | {create['per_second']:,.0f} a second, {create['server_cpu']:.1f} µs |")
    print(f"| lookups at random | {stat['per_second']:,.0f} a second, {stat['server_cpu']:.1f} µs |", flush=True)
    for what, options in (("names", ["ls"]), ("names with attributes", ["ls", "-l"])):
        began, started = cpu_seconds(cluster), time.monotonic()
        listing = subprocess.Popen([CAIRN, "fs", *options, "huge:/whole"], env=cluster.environment(), stdout=subprocess.PIPE)
        lines = sum(1 for _ in listing.stdout)
        _, status, used = os.wait4(listing.pid, 0)
        listing.returncode = os.waitstatus_to_exitcode(status)
        took, cpu = time.monotonic() - started, cpu_seconds(cluster) - began
        if listing.returncode != 0 or lines < create["operations"]:
            sys.exit(f"listing ended with {listing.returncode} after {lines} of {create['operations']} names")
        print(f"| `cairn fs {' '.join(options)}`, {lines:,} {what} | {took:.1f} s, CPU {(used.ru_utime + used.ru_stime) / lines * 1e6:.2f} µs a name and "
              f"{cpu / lines * 1e6:.2f} µs of the server; at most {used.ru_maxrss / 1024:,.0f} MiB |", flush=True)
    started = time.monotonic()
    cluster.fs("stat", "huge:/whole")
    print(f"| `cairn fs stat` of the directory | {(time.monotonic() - started) * 1000:.0f} ms |", flush=True)


def main():
    root = tempfile.mkdtemp(prefix="cairn-huge-", dir=DIR)
    cluster = Cluster(root, heads=1, datas=1)
    try:
        cluster.volume("huge", PARTITIONS)
        side_by_side(cluster)
        whole(cluster)
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
