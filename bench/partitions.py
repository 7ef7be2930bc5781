#!/usr/bin/env python3
"""What a namespace operation costs in a volume of several meta partitions, beside one partition in the same run.

Starts three managers, three metas and three datas on loopback, makes volumes of 1 and PARTITIONS partitions, and runs
`cairn bench meta` on them in turns. Prints medians of server CPU an operation and their ratio, and rates. The same number of
calls is outstanding for each partition: PARTITIONS times as many clients on the second volume.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/partitions.py [PARTITIONS [PAIRS [DIR]]]
"""
import json, os, shutil, statistics, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

PARTITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
DIR = sys.argv[3] if len(sys.argv) > 3 else None
SECONDS = "2"


def until(what, holds):
    for _ in range(300):
        if holds():
            return
        time.sleep(0.2)
    sys.exit(f"{what} did not come about")


def volume(cluster, name, partitions):
    def made():
        try:
            return cluster.admin("volume", "create", name, "--layout", "r1", "--partitions", str(partitions)) is not None
        except RuntimeError as error:
            return "there is a volume" in str(error)
    until(f"volume {name}", made)
    led = lambda: [p["leader"] for p in cluster.admin("partition", "ls", name)]
    until(f"leaders of {name}", lambda: len(led()) == partitions and all(led()))


def bench(cluster, name, clients, in_flight):
    command = [CAIRN, "--json", "bench", "meta", "--volume", name, "--clients", str(clients), "--in-flight", str(in_flight), "--seconds", SECONDS]
    done = subprocess.run(command, env=cluster.environment(), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return {row["what"]: row for row in map(json.loads, done.stdout.splitlines())}


root = tempfile.mkdtemp(prefix="cairn-partitions-", dir=DIR)
cluster = None
try:
    cluster = Cluster(root, heads=3, datas=3)
    volume(cluster, "one", 1)
    volume(cluster, "many", PARTITIONS)
    print(f"| calls a partition | operation | 1 partition: server CPU µs | {PARTITIONS}: µs | ratio | 1: a second | {PARTITIONS}: a second |\n|---|---|---|---|---|---|---|")
    for clients, in_flight in ((16, 1), (32, 16)):
        runs = {"one": [], "many": []}
        for pair in range(PAIRS):
            for name in ("one", "many") if pair % 2 == 0 else ("many", "one"):
                many = PARTITIONS if name == "many" else 1
                runs[name].append(bench(cluster, name, clients * many, in_flight))
        for operation in runs["one"][0]:
            of = lambda name, key: statistics.median(run[operation][key] for run in runs[name])
            one, many = of("one", "server_cpu"), of("many", "server_cpu")
            rates = [of(name, "per_second") for name in ("one", "many")]
            print(f"| {clients} × {in_flight} | {operation} | {one:.1f} | {many:.1f} | {many / max(one, 1e-9):.2f} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)
finally:
    if cluster:
        cluster.stop()
    shutil.rmtree(root, ignore_errors=True)
