#!/usr/bin/env python3
"""Reads and writes of erasure-coded files while members are gone or stand still.

Starts a manager, a meta and nine data processes on loopback, stores a file with rs-6-3, and prints throughput and the
longest pause of a reader: healthy, without one and three data nodes, with one stopped by SIGSTOP; then a write with one
stopped. Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/degraded.py [MIB]
"""
import hashlib, os, shutil, signal, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
LAYOUT = os.environ.get("LAYOUT", "rs-6-3")


def read(cluster, path, want):
    """MB/s and the longest time between two parts of the file."""
    process = subprocess.Popen([CAIRN, "fs", "cat", path], env=cluster.environment(), stdout=subprocess.PIPE, bufsize=0)
    digest, total, longest, started = hashlib.blake2b(), 0, 0.0, time.monotonic()
    last = started
    parts = []
    while part := process.stdout.read(1 << 20):
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        parts.append(part)
        total += len(part)
    took = time.monotonic() - started
    for part in parts:
        digest.update(part)
    if process.wait() != 0 or digest.digest() != want:
        sys.exit(f"{path} came back wrong")
    return total / 1e6 / took, longest


def main():
    root = tempfile.mkdtemp(prefix="cairn-degraded.")
    cluster = Cluster(root)
    try:
        cluster.wait("/e", LAYOUT)
        local = f"{root}/local"
        digest = hashlib.blake2b()
        with open(local, "wb") as file:
            for _ in range(MIB):
                part = os.urandom(1 << 20)
                digest.update(part)
                file.write(part)
        want = digest.digest()
        cluster.fs("put", local, "/e/f")
        read(cluster, "/e/f", want)  # into the page cache
        healthy = 0.0
        steps = [("healthy", [], None), ("one stands still (SIGSTOP)", [], "data5"), ("one gone", ["data2"], None),
                 ("three gone", ["data4", "data7"], None)]
        for name, gone, stopped in steps:
            for victim in gone:
                cluster.signal(victim, signal.SIGKILL)
            if stopped:
                cluster.signal(stopped, signal.SIGSTOP)
            first, pause = read(cluster, "/e/f", want)
            rates = [first] + [read(cluster, "/e/f", want)[0] for _ in range(2)]
            if stopped:
                started = time.monotonic()
                cluster.fs("put", local, "/e/g")
                print(f"write, {name:28} {MIB * 1.048576 / (time.monotonic() - started):6.0f} MB/s")
                cluster.signal(stopped, signal.SIGCONT)
                time.sleep(15)
            best = max(rates)
            healthy = healthy or best
            print(f"read,  {name:28} first {first:6.0f} MB/s, longest pause {pause * 1000:5.0f} ms; "
                  f"best of 3 {best:6.0f} MB/s = {best / healthy:.2f} of healthy")
    finally:
        cluster.stop()
        shutil.rmtree(root)


main()
