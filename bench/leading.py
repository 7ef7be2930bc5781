#!/usr/bin/env python3
"""What leading new directories gives and costs: mounts with `lease=off` and `lease=new`, in one run, in turns, alone and with somebody who looks.

Starts a manager, a meta and three data nodes on loopback, and two mounts for each measurement: one works, the other one looks. Times are medians
of ROUNDS with the shortest and the longest. Needs root and /dev/fuse.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/leading.py [ROUNDS [DIR]]
"""
import os, shutil, statistics, subprocess, sys, tempfile, threading, time
from cluster import CAIRN, Cluster

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
DIR = sys.argv[2] if len(sys.argv) > 2 else None
WAYS = ("lease=off", "lease=new")


class Mount:
    def __init__(self, cluster, name, options):
        self.dir, self.environment = f"{cluster.root}/{name}", dict(cluster.environment(), CAIRN_RUN_DIR=f"{cluster.root}/run")
        os.makedirs(self.dir)
        subprocess.run([CAIRN, "mount", "-o", options, "/", self.dir], env=self.environment, check=True)

    def end(self):
        subprocess.run([CAIRN, "umount", self.dir], env=self.environment, check=True)


def timed(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def make_tree(top, directories, files):
    os.mkdir(top)
    for d in range(directories):
        os.mkdir(f"{top}/d{d}")
        for f in range(files):
            with open(f"{top}/d{d}/f{f}", "w") as file:
                file.write("x" * 2000)


def sync_files(top):
    os.mkdir(top)
    for f in range(200):
        file = os.open(f"{top}/f{f}", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x" * 2000)
        os.fsync(file)
        os.close(file)


def build(top):
    """Makes directories and files, and says what it does in a log."""
    os.mkdir(top)
    for d in range(20):
        os.mkdir(f"{top}/d{d}")
        for f in range(10):
            with open(f"{top}/d{d}/f{f}", "w") as file:
                file.write("x" * 2000)
            with open(f"{top}/log", "a") as file:
                file.write(f"{d}/{f}\n")


def tail(top):
    with open(f"{top}/log") as file:
        file.read()


def walk(top):
    for root, _, files in os.walk(top):
        for name in files:
            os.stat(f"{root}/{name}")


def beside(work, look, top, every):
    """How long the work takes, and each look of somebody who looks again and again. He is there when there is something to see."""
    looks, done = [], threading.Event()

    def loop():
        while not done.wait(every):
            try:
                looks.append(timed(lambda: look(top[1])))
            except FileNotFoundError:
                pass

    looker = threading.Thread(target=loop)
    looker.start()
    took = timed(lambda: work(top[0]))
    done.set()
    looker.join()
    return took, statistics.median(looks) if looks else None


def first_looks(works, looks, name):
    """From the first look into a directory in which something was made a moment ago."""
    took = []
    for number in range(20):
        os.mkdir(f"{works.dir}/{name}{number}")
        open(f"{works.dir}/{name}{number}/f", "w").close()
        time.sleep(0.05)
        took.append(timed(lambda: os.stat(f"{looks.dir}/{name}{number}/f")))
    return statistics.median(took)


def measure(works, looks, name):
    path = lambda what: (f"{works.dir}/{name}-{what}", f"{looks.dir}/{name}-{what}")
    found = {"2,000 files of 2 kB in 50 directories made": timed(lambda: make_tree(path("tree")[0], 50, 40))}
    found["… and removed"] = timed(lambda: shutil.rmtree(path("tree")[0]))
    found["200 files made, each with fsync"] = timed(lambda: sync_files(path("synced")[0]))
    found["the first look into a directory"] = first_looks(works, looks, f"{name}-first")
    found["200 files and a log, while somebody reads the log"], found["… reading it"] = beside(build, tail, path("log"), 0.05)
    found["200 files and a log, while somebody walks over all of it"], found["… a walk"] = beside(build, walk, path("walk"), 0.2)
    return {what: seconds for what, seconds in found.items() if seconds is not None}


def figure(seconds):
    unit, scale = ("ms", 1000) if max(seconds) < 0.5 else ("s", 1)
    low, middle, high = (f"{scale * of(seconds):.3g}" for of in (min, statistics.median, max))
    return f"{middle} {unit} ({low} to {high})"


def main():
    root = tempfile.mkdtemp(prefix="cairn-leading-", dir=DIR)
    cluster, mounts, found = Cluster(root, datas=3), [], {way: {} for way in WAYS}
    try:
        cluster.wait("/ready", "r3")
        # A new partition gives nothing before all members are known to understand it.
        time.sleep(3)
        for number in range(ROUNDS):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                name = f"{way.removeprefix('lease=')}{number}"
                mounts = [Mount(cluster, f"{part}-{name}", way) for part in ("works", "looks")]
                for what, seconds in measure(*mounts, name).items():
                    found[way].setdefault(what, []).append(seconds)
                while mounts:
                    mounts.pop().end()
        print("| what | " + " | ".join(f"`{way}`" for way in WAYS) + " |\n|---|---|---|")
        for what in found[WAYS[0]]:
            print(f"| {what} | " + " | ".join(figure(found[way].get(what, [0])) for way in WAYS) + " |")
    finally:
        for mount in mounts:
            subprocess.run([CAIRN, "umount", "--lazy", mount.dir], env=mount.environment)
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
