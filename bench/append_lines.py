#!/usr/bin/env python3
"""Lines of 200 bytes that many machines append to one file with O_APPEND, each made durable (`fsync`) before the next: a mount and a program for each writer.

Starts a manager, a meta and three data processes on loopback, and mounts. Ends by itself, ends only what it started. Afterwards the file is read: each line
that was acknowledged has to be there once and whole, and nothing else.
Usage: CAIRN=target/release/cairn bench/append_lines.py [SECONDS] [WRITERS ...]
"""
import os, shutil, subprocess, sys, tempfile, time
from cluster import CAIRN, Cluster

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 5
WRITERS = [int(each) for each in sys.argv[2:]] or [1, 4, 16]
LINE = 200
WRITER = """
import os, sys, time
path, writer, until = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
file, count, longest, failed = os.open(path, os.O_WRONLY | os.O_APPEND), 0, 0.0, 0
while time.time() < until:
    begun = time.monotonic()
    line = f"{writer} {count} ".encode().ljust(%d, b"x") + b"\\n"
    assert os.write(file, line) == len(line)
    while True:
        try:
            os.fsync(file)
            break
        except OSError:
            failed += 1
    count, longest = count + 1, max(longest, time.monotonic() - begun)
print(count, longest, failed)
""" % (LINE - 1)


def appended(cluster):
    names = [name for name in cluster.processes if name.startswith("data")]
    return sum(value for name in names for metric, _, value in cluster.metrics(name) if metric == "cairn_data_append_bytes")


def run(cluster, mounts, count):
    subprocess.run([CAIRN, "fs", "touch", f"/lines{count}"], env=cluster.environment(), check=True)
    before, until = appended(cluster), time.time() + SECONDS + 1
    programs = [subprocess.Popen([sys.executable, "-c", WRITER, f"{at}/lines{count}", str(writer), str(until)], stdout=subprocess.PIPE, text=True) for writer, at in enumerate(mounts[:count])]
    results = [program.communicate()[0].split() for program in programs]
    if any(program.returncode != 0 for program in programs):
        sys.exit("a writer failed")
    written = appended(cluster) - before
    got = subprocess.run([CAIRN, "fs", "cat", f"/lines{count}"], env=cluster.environment(), check=True, capture_output=True).stdout
    expected = sorted((writer, number) for writer, (lines, _, _) in enumerate(results) for number in range(int(lines)))
    assert all(len(line) == LINE - 1 for line in got.splitlines()) and b"\0" not in got, "a line is torn"
    found = sorted(tuple(map(int, line.split()[:2])) for line in got.splitlines())
    assert found == expected, f"{len(found)} lines are there, {len(expected)} were acknowledged"
    lines, longest = len(found), max(float(longest) for _, longest, _ in results)
    each = [int(count) for count, _, _ in results]
    print(f"{count} writers: {lines / SECONDS:.0f} lines/s; bytes to data nodes for each: {written / lines:.0f}; the longest took {longest * 1000:.0f} ms; lines a writer {min(each)} to {max(each)}; fsync failed {sum(int(failed) for _, _, failed in results)} times", flush=True)


root = tempfile.mkdtemp(prefix="cairn-lines-")
cluster, mounted = Cluster(root, datas=3), []
try:
    cluster.wait("/ready", "r3")
    for number in range(max(WRITERS)):
        at = f"{root}/mount{number}"
        os.mkdir(at)
        log = open(f"{root}/mount{number}.log", "w")
        mounted.append((at, subprocess.Popen([CAIRN, "mount", "--foreground", "/", at], env=cluster.environment(), stdout=log, stderr=log)))
    for at, process in mounted:
        while not os.path.ismount(at):
            if process.poll() is not None:
                sys.exit(f"a mount ended: {open(at + '.log').read()}")
            time.sleep(0.1)
    for count in WRITERS:
        run(cluster, [at for at, _ in mounted], count)
finally:
    for at, process in mounted:
        if subprocess.run(["umount", at]).returncode != 0:
            process.terminate()
    for _, process in mounted:
        process.wait()
    cluster.stop()
    shutil.rmtree(root, ignore_errors=True)
