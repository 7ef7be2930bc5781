#!/usr/bin/env python3
"""What it costs that an operation reaches into another meta partition.

Starts three managers, three metas and a data on loopback and a volume of PARTITIONS partitions. One client with one call outstanding makes directories
and moves files between two directories, within a partition and across two, PAIRS times in turns. Prints medians and their ratios.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/across.py [PARTITIONS [PAIRS [DIR]]]
"""
import shutil, statistics, sys, tempfile, time
from cluster import Cluster

PARTITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
DIR = sys.argv[3] if len(sys.argv) > 3 else None


def run(cluster, operations, options):
    """Again if the managers gave the leadership to another member meanwhile, as they do a minute after the start; of that run nothing counts."""
    for _ in range(5):
        try:
            return cluster.bench_meta("many", 1, 1, "--operations", operations, *options)
        except RuntimeError as error:
            if "does not lead" not in str(error):
                raise
            print(f"once more: {str(error).splitlines()[0].split(': ', 1)[1]}", file=sys.stderr)
            # Until the map names the new leader.
            time.sleep(5)
    sys.exit("leaders change all the time")


def main():
    root = tempfile.mkdtemp(prefix="cairn-across-", dir=DIR)
    cluster = Cluster(root, heads=3, datas=1)
    try:
        cluster.volume("many", PARTITIONS)
        runs = {"local": [], "across": []}
        for pair in range(PAIRS):
            for kind in ("local", "across") if pair % 2 == 0 else ("across", "local"):
                options = ["--files", "1000"] + (["--across"] if kind == "across" else [])
                runs[kind].append(run(cluster, "mkdir", options) + run(cluster, "create,move", options))
        print("| 1 × 1 | local: p50 µs | across | ratio | local: p99 µs | across | local: server CPU µs | across | ratio |\n|---|---|---|---|---|---|---|---|---|")
        for i, what in enumerate(("mkdir", "create", "move")):
            of = lambda key: [statistics.median(rows[i][key] for rows in runs[kind]) for kind in ("local", "across")]
            p50, p99, cpu = of("p50_us"), of("p99_us"), of("server_cpu")
            print(f"| {what} | {p50[0]:.0f} | {p50[1]:.0f} | {p50[1] / p50[0]:.2f} | {p99[0]:.0f} | {p99[1]:.0f} | {cpu[0]:.0f} | {cpu[1]:.0f} | {cpu[1] / cpu[0]:.2f} |")
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
