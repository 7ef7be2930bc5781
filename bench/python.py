#!/usr/bin/env python3
"""The Python package beside the Rust client: reads of a long file, and small files by one process.

Starts a manager, a meta and nine data processes on loopback. In turns a file is read whole by `cairn fs cat` into /dev/null and by a Python process with buffers
of 1 MiB; the time and the CPU are those of the whole process, less what the same process takes for an empty file (its start and its connection). Then one Python process makes small files, reads them and
removes them, with one thread and with eight. Prints medians, and ratios with the lowest and the highest round. Ends by itself, ends only what it started.
Usage: CAIRN=target/release/cairn CAIRN_SDK=target/sdk bench/python.py [ROUNDS] [MEGABYTES] [FILES]
"""
import os, resource, shutil, statistics, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
BYTES = (int(sys.argv[2]) if len(sys.argv) > 2 else 1024) << 20
FILES = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
SDK = os.path.realpath(os.environ.get("CAIRN_SDK", "target/sdk"))
LAYOUTS = ("r3", "rs-6-3")

READ = """
import cairn, sys
with cairn.connect() as volume, volume.open(sys.argv[1], "rb", buffering=0) as file:
    buffer, total = bytearray(1 << 20), 0
    while got := file.readinto(buffer):
        total += got
assert total == int(sys.argv[2]), total
"""

SMALL = """
import cairn, concurrent.futures, sys, time
directory, count, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = bytes(range(256)) * 16

def make(i):
    with volume.open(f"{directory}/{i}", "wb") as file:
        file.write(data)

def read(i):
    with volume.open(f"{directory}/{i}", "rb") as file:
        assert file.read() == data

with cairn.connect() as volume, concurrent.futures.ThreadPoolExecutor(threads) as pool:
    volume.mkdir(directory)
    for what, work in ("make", make), ("read", read), ("remove", lambda i: volume.remove(f"{directory}/{i}")):
        begin = time.perf_counter(), time.process_time()
        list(pool.map(work, range(count)))
        print(what, count / (time.perf_counter() - begin[0]), (time.process_time() - begin[1]) / count * 1e6)
    volume.rmdir(directory)
"""


def environment(cluster):
    library = os.path.join(SDK, "lib", "libcairn.so")
    return dict(cluster.environment(), PYTHONPATH=os.path.join(TOP, "python"), CAIRN_LIBRARY=library)


def timed(cluster, command):
    """Seconds and seconds of CPU of a process that has to succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment(cluster), stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reads(cluster, layout):
    path = f"/{layout}/long"
    cluster.wait(f"/{layout}", layout)
    put = subprocess.Popen([CAIRN, "fs", "put", "-", path], env=cluster.environment(), stdin=subprocess.PIPE)
    for _ in range(BYTES >> 20):
        put.stdin.write(os.urandom(1 << 20))
    put.stdin.close()
    if put.wait() != 0:
        sys.exit(f"{path} could not be written")
    empty = f"/{layout}/empty"
    cluster.fs("touch", empty)
    commands = {"Rust": lambda at, _: [CAIRN, "fs", "cat", at], "Python": lambda at, size: [sys.executable, "-c", READ, at, str(size)]}
    for command in commands.values():
        timed(cluster, command(path, BYTES))
    found, starts = {name: [] for name in commands}, {name: [] for name in commands}
    for turn in range(ROUNDS):
        for name in commands if turn % 2 == 0 else reversed(commands):
            start, whole = timed(cluster, commands[name](empty, 0)), timed(cluster, commands[name](path, BYTES))
            starts[name].append(start)
            found[name].append((whole[0] - start[0], whole[1] - start[1]))
    for name, rounds in starts.items():
        seconds, cpu = (statistics.median(each) * 1000 for each in zip(*rounds))
        print(f"{layout}, start and connection, {name}: {seconds:.0f} ms, {cpu:.0f} ms of CPU")
    for name, rounds in found.items():
        rate, cpu = (statistics.median(each) for each in zip(*((BYTES / 1e6 / s, c / (BYTES / 1e9)) for s, c in rounds)))
        print(f"{layout} read, {name}: {rate:.0f} MB/s, {cpu:.2f} s of the client's CPU for a GB")
    pairs = list(zip(found["Rust"], found["Python"]))
    for what, ratios in ("rate", [rust[0] / python[0] for rust, python in pairs]), ("CPU", [python[1] / rust[1] for rust, python in pairs]):
        print(f"{layout} read, Python to Rust, {what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def small(cluster, threads):
    found = {}
    for turn in range(ROUNDS):
        command = [sys.executable, "-c", SMALL, f"/r3/small{threads}-{turn}", str(FILES), str(threads)]
        done = subprocess.run(command, env=environment(cluster), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        for line in done.stdout.splitlines():
            what, rate, cpu = line.split()
            found.setdefault(what, []).append((float(rate), float(cpu)))
    for what, rounds in found.items():
        rates = [rate for rate, _ in rounds]
        cpu = statistics.median(cpu for _, cpu in rounds)
        print(f"files of 4 KiB, {threads} threads, {what}: {statistics.median(rates):.0f} a second ({min(rates):.0f} to {max(rates):.0f}), {cpu:.0f} us of the client's CPU", flush=True)


def main():
    root = tempfile.mkdtemp(prefix="cairn-python-")
    cluster = Cluster(root)
    try:
        for layout in LAYOUTS:
            reads(cluster, layout)
        for threads in 1, 8:
            small(cluster, threads)
    finally:
        cluster.stop()
        shutil.rmtree(root)


main()
