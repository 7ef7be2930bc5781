#!/usr/bin/env python3
"""What keys cost: three clusters side by side, without keys, with keys and authenticated file data, and with private file data.

Each has a manager, a meta and nine data processes on loopback. They are measured in turns, so that what else the machine does falls on all
of them. Prints CPU of client and servers for each GB and for each metadata call, and what that is beside the cluster without keys: the median of
the rounds, with the lowest and the highest. Ends by itself, ends only what it started.
Usage: CAIRN=target/release/cairn bench/security.py [ROUNDS] [BYTES_OF_A_RUN] [DIRECTORY]
"""
import json, os, shutil, statistics, subprocess, sys, tempfile
from cluster import CAIRN, Cluster

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SIZE = sys.argv[2] if len(sys.argv) > 2 else "512m"
PLACE = sys.argv[3] if len(sys.argv) > 3 else None
KINDS = {"off": None, "authenticated": "authenticated", "private": "private"}


def bench(cluster, *arguments):
    command = [CAIRN, "--json", "bench", *map(str, arguments)]
    done = subprocess.run(command, env=cluster.environment(), capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows or any(row.get("errors") for row in rows):
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return rows


def contents(cluster):
    """CPU seconds for each GB."""
    rows = bench(cluster, "io", "--layouts", "r3,rs-6-3", "--streams", 4, "--size", SIZE)
    return {row["what"]: row["client_cpu"] + row["server_cpu"] for row in rows}


def names(cluster):
    """Microseconds of CPU for each call."""
    rows = bench(cluster, "meta", "--clients", 64, "--in-flight", 1, "--seconds", 3, "--operations", "create,stat,unlink")
    return {f"{row['what']}, 64 × 1": row["client_cpu"] + row["server_cpu"] for row in rows}


def main():
    root = tempfile.mkdtemp(prefix="cairn-bench-", dir=PLACE)
    clusters = {}
    try:
        for kind, protection in KINDS.items():
            os.mkdir(f"{root}/{kind}")
            clusters[kind] = Cluster(f"{root}/{kind}", protection=protection)
        for kind, cluster in clusters.items():
            cluster.wait("/ready-r3", "r3")
            cluster.wait("/ready-rs", "rs-6-3")
            contents(cluster)
        costs = {kind: {} for kind in KINDS}
        # Not one after the other in a round: what was written would still be on its way to the disk while names are measured.
        for measure in contents, names:
            for round_number in range(ROUNDS):
                order = list(KINDS)[round_number % 3:] + list(KINDS)[:round_number % 3]
                for kind in order:
                    for what, cost in measure(clusters[kind]).items():
                        costs[kind].setdefault(what, []).append(cost)
        print("| what | off | authenticated | beside off | private | beside off |\n|---|---|---|---|---|---|")
        for what, off in costs["off"].items():
            row = [what, f"{statistics.median(off):.2f}"]
            for kind in "authenticated", "private":
                ratios = sorted(cost / plain for cost, plain in zip(costs[kind][what], off))
                row += [f"{statistics.median(costs[kind][what]):.2f}", f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"]
            print(f"| {' | '.join(row)} |", flush=True)
    finally:
        for cluster in clusters.values():
            cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
