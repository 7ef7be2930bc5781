#!/usr/bin/env python3
"""One directory with many entries, through a mount: listed, listed with attributes, looked over again, one renamed over another, removed.

Starts a manager, a meta and a data on loopback, makes FILES empty files in one directory without a mount, and mounts. `find -newermt` asks for the
attributes of each entry. The daemon's CPU is that of the mount's processes. Needs root and /dev/fuse.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/large_directory.py [FILES [DIR]]
"""
import os, shutil, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

FILES = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
DIR = sys.argv[2] if len(sys.argv) > 2 else None
TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(run):
    """Seconds of all processes of mounts in that run directory."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"CAIRN_RUN_DIR={run}".encode() not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.path.basename(file.read().split(b"\0")[0].decode()) != os.path.basename(CAIRN):
                    continue
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICK
        except OSError:
            continue
    return total


def main():
    root = tempfile.mkdtemp(prefix="cairn-large-", dir=DIR)
    cluster = Cluster(root, datas=1)
    run, top = f"{root}/run", f"{root}/mount"
    environment = dict(cluster.environment(), CAIRN_RUN_DIR=run)
    mounted = False
    try:
        cluster.volume("many", 1)
        cluster.fs("mkdir", "many:/large")
        cluster.bench_meta("many", 16, 16, "--operations", "create", "--directory", "/large", "--files", str(FILES), "--keep")
        os.makedirs(top)
        subprocess.run([CAIRN, "mount", "many:/", top], env=environment, check=True)
        mounted = True
        large = f"{top}/large"

        def measure(what, work):
            cpu, begun = cpu_of(run), time.monotonic()
            said = work()
            took = time.monotonic() - begun
            print(f"| {what} | {took:.2f} s | {cpu_of(run) - cpu:.2f} s | {said} |", flush=True)

        def counted(*command):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return f"{len(done.stdout.splitlines()):,} lines"

        print("| what | time | CPU of the mount | |\n|---|---|---|---|")
        measure("`ls -f`", lambda: counted("ls", "-f", large))
        measure("`find -newermt`", lambda: counted("find", large, "-newermt", "2000-01-01"))
        measure("the same again", lambda: counted("find", large, "-newermt", "2000-01-01"))
        measure("`ls -l`", lambda: counted("ls", "-l", large))
        names = sorted(os.listdir(large))

        def rename_over():
            for i in range(0, 2000, 2):
                os.rename(f"{large}/{names[i]}", f"{large}/{names[i + 1]}")
            return "1,000 renamed over others"

        measure("`rename` over another one", rename_over)
        measure("`rm -r`", lambda: counted("rm", "-r", large))
        assert not os.path.exists(large)
    finally:
        if mounted:
            subprocess.run([CAIRN, "umount", top], env=environment, check=True)
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
