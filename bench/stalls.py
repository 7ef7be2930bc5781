#!/usr/bin/env python3
"""How long a writer stands still when a member is stopped (SIGSTOP) while it writes.

Starts a manager, a meta and nine data processes on loopback, writes a file of each layout through a pipe with a pause after each
MiB, stops one data process in the middle (or just before the end, `end`), and prints the longest time for which the pipe took nothing and what
the end took. With `leader` instead of layouts: three managers and three metas; the leader of the partition, then that of the managers, is
stopped while a program stores and reads small files and commands are run, and what the longest file and the longest command took is printed.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/stalls.py [MIB] [LAYOUT,…|leader]
"""
import hashlib, json, os, shutil, signal, subprocess, sys, tempfile, threading, time
from cluster import CAIRN, Cluster

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 128
LAYOUTS = (sys.argv[2] if len(sys.argv) > 2 else "rs-6-3,r3,r2x4/64k").split(",")
PACE = 0.003


def write(cluster, path, layout, victim, at):
    """Longest pause of the pipe, and of the end."""
    process = subprocess.Popen([CAIRN, "fs", "put", "--layout", layout, "-", path], env=cluster.environment(), stdin=subprocess.PIPE, bufsize=0)
    digest, longest = hashlib.blake2b(), 0.0
    for i in range(MIB):
        if i == at:
            cluster.signal(victim, signal.SIGSTOP)
        part = os.urandom(1 << 20)
        digest.update(part)
        view, started = memoryview(part), time.monotonic()
        while view:
            view = view[process.stdin.write(view):]
        longest = max(longest, time.monotonic() - started)
        time.sleep(PACE)
    if at == MIB:
        cluster.signal(victim, signal.SIGSTOP)
    started = time.monotonic()
    process.stdin.close()
    if process.wait() != 0:
        sys.exit(f"{path} was not written")
    return longest, time.monotonic() - started, digest.digest()


def leader(cluster, of_managers):
    """The process that leads."""
    status = cluster.admin("status")[0]
    node = status["leader_node"] if of_managers else status["leaders"][0]["node"]
    return next(each["host"] for each in cluster.admin("node", "ls") if each["id"] == node)


def under_load(cluster, victim):
    """Longest file and longest command, in milliseconds; the victim is stopped in the middle. Errors end the measurement."""
    commands, files, failed, ends = [], [], [], time.monotonic() + 12
    load = [CAIRN, "--json", "bench", "files", "--size", "4096", "--count", "2000", "--parallel", "4"]

    def run(once):
        try:
            while time.monotonic() < ends:
                once()
        except Exception as error:
            failed.append(error)

    def command():
        started = time.monotonic()
        cluster.fs("stat", "/")
        commands.append((time.monotonic() - started) * 1000)

    def many_files():
        done = subprocess.run(load, env=cluster.environment(), capture_output=True, text=True, check=True)
        files.extend(json.loads(line)["max_us"] / 1000 for line in done.stdout.splitlines())

    threads = [threading.Thread(target=run, args=[once]) for once in (command, many_files)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    if victim:
        cluster.signal(victim, signal.SIGSTOP)
    for thread in threads:
        thread.join()
    if victim:
        cluster.signal(victim, signal.SIGCONT)
    if failed:
        sys.exit(f"with {victim} stopped: {failed[0]}")
    return max(files), max(commands)


def leaders(root):
    cluster = Cluster(root, heads=3, datas=3)
    try:
        cluster.wait("/e", "r3")
        for who, of_managers in [("nobody", None), ("the partition's leader", False), ("the managers' leader", True)]:
            victim = None if of_managers is None else leader(cluster, of_managers)
            file, command = under_load(cluster, victim)
            print(f"{who:24} stopped: longest file {file:5.0f} ms, longest command {command:5.0f} ms", flush=True)
            time.sleep(12)
    finally:
        cluster.stop()


def main():
    root = tempfile.mkdtemp(prefix="cairn-stalls.")
    if LAYOUTS == ["leader"]:
        try:
            return leaders(root)
        finally:
            shutil.rmtree(root)
    cluster = Cluster(root)
    try:
        cluster.wait("/e", LAYOUTS[0])
        for n, layout in enumerate(LAYOUTS):
            for m, (when, at) in enumerate([("healthy", None), ("middle", MIB // 2), ("end", MIB)]):
                path, victim = f"/e/f{n}-{m}", f"data{2 + (n + m) % 7}"
                longest, end, want = write(cluster, path, layout, victim, at)
                back = subprocess.run([CAIRN, "fs", "cat", path], env=cluster.environment(), stdout=subprocess.PIPE).stdout
                if hashlib.blake2b(back).digest() != want:
                    sys.exit(f"{path} came back wrong")
                print(f"{layout:12} {when:8} longest pause {longest * 1000:5.0f} ms, end {end * 1000:5.0f} ms", flush=True)
                if at is not None:
                    cluster.signal(victim, signal.SIGCONT)
                    time.sleep(12)
    finally:
        cluster.stop()
        shutil.rmtree(root)


main()
