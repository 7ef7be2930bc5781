#!/usr/bin/env python3
"""One file read by many clients at once: striped over many chunks beside plain copies.

Prints the aggregate throughput and the share of the busiest data process. Ends by itself.
Usage: CAIRN=target/release/cairn bench/broadcast.py [MIB] [CLIENTS] [LAYOUT...]
"""
import os, shutil, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 64
CLIENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 64
LAYOUTS = sys.argv[3:] or ["r3", "r2x128/64k"]


def main():
    root = tempfile.mkdtemp(prefix="cairn-broadcast.")
    cluster = Cluster(root)
    try:
        for i in range(1, 10):
            cluster.ready(f"data{i}")
        local = f"{root}/local"
        with open(local, "wb") as file:
            for _ in range(MIB):
                file.write(os.urandom(1 << 20))
        for number, layout in enumerate(LAYOUTS):
            cluster.wait(f"/d{number}", layout)
            cluster.fs("put", local, f"/d{number}/f")
            for label in ["first", "again"]:
                before = cluster.read_bytes()
                started = time.monotonic()
                command = [CAIRN, "fs", "cat", f"/d{number}/f"]
                readers = [subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.DEVNULL)
                           for _ in range(CLIENTS)]
                if any(reader.wait() != 0 for reader in readers):
                    sys.exit("a reader failed")
                took = time.monotonic() - started
                after = cluster.read_bytes()
                served = {name: after[name] - before[name] for name in after}
                total = sum(served.values())
                print(f"{layout:12} {label}: {CLIENTS} clients, {CLIENTS * MIB * 1.048576 / took:6.0f} MB/s in all; busiest "
                      f"data process {max(served.values()) / total * 100:4.1f} % of the bytes (even would be {100 / 9:.1f} %)")
    finally:
        cluster.stop()
        shutil.rmtree(root)


main()
