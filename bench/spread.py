#!/usr/bin/env python3
"""How evenly the meta partitions of a volume work, and where the directories of a young volume are.

Starts three managers, three metas and a data on loopback and two volumes of PARTITIONS partitions. In the first one as many clients work in each
partition: prints the share of the busiest group's time of that of all. In the second one DIRECTORIES directories are made below one, and
it prints how many of them the servers put elsewhere.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/spread.py [PARTITIONS [DIRECTORIES [DIR]]]
"""
import shutil, sys, tempfile
from cluster import Cluster

PARTITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
DIRECTORIES = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
DIR = sys.argv[3] if len(sys.argv) > 3 else None


def busy(cluster, partitions):
    """Seconds of all members of each partition."""
    return {each: seconds for each, seconds in cluster.sum_of("cairn_meta_raft_busy_seconds").items() if each in partitions}


def directories(cluster, partitions):
    led = {each["id"]: each["leader"] for each in cluster.admin("partition", "ls", "young")}
    host = {each["id"]: each["host"] for each in cluster.admin("node", "ls")}
    return {each: cluster.sum_of("cairn_meta_directories", [host[led[each]]]).get(each, 0) for each in partitions}


def main():
    root = tempfile.mkdtemp(prefix="cairn-spread-", dir=DIR)
    cluster = Cluster(root, heads=3, datas=1)
    try:
        for name in ("busy", "young"):
            cluster.volume(name, PARTITIONS)
        of = {name: [each["id"] for each in cluster.admin("partition", "ls", name)] for name in ("busy", "young")}
        print("| | |\n|---|---|")
        before = busy(cluster, of["busy"])
        cluster.bench_meta("busy", 4 * PARTITIONS, 16, "--seconds", "10", "--operations", "create,stat,rename,unlink")
        used = {each: seconds - before.get(each, 0) for each, seconds in busy(cluster, of["busy"]).items()}
        if len(used) != PARTITIONS:
            sys.exit(f"only {len(used)} of {PARTITIONS} partitions say how busy they are")
        print(f"| busiest of {PARTITIONS} groups, share of the time of all | {max(used.values()) / sum(used.values()):.1%} (even: {1 / PARTITIONS:.1%}) |", flush=True)
        cluster.fs("mkdir", "young:/top")
        before = directories(cluster, of["young"])
        made = cluster.bench_meta("young", 8, 16, "--directory", "/top", "--files", str(DIRECTORIES), "--operations", "mkdir")[0]
        new = {each: count - before[each] for each, count in directories(cluster, of["young"]).items()}
        home = max(new, key=new.get)
        if sum(new.values()) < DIRECTORIES:
            sys.exit(f"{sum(new.values()):,.0f} directories are counted where {DIRECTORIES:,} were made")
        elsewhere = 1 - new[home] / sum(new.values())
        print(f"| {made['operations']:,} directories on a young volume, made elsewhere | {elsewhere:.1%}, {made['per_second']:,.0f} a second |")
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
