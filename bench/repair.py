#!/usr/bin/env python3
"""How fast redundancy comes back after a data node is gone for good, and what readers and writers notice meanwhile.

Starts a manager, a meta and nine data processes on loopback. For each layout: files until a data node holds GIB, then that
node gets SIGKILL. Prints the time until the managers called it down, and the time from the first copied byte until everything
has its redundancy again with throttles off. Then a second node is lost beside a reader and a
writer: their throughput before, after the loss without repair, and during repair with the default throttles.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/repair.py [GIB [LAYOUTS]]
"""
import json, os, shutil, signal, subprocess, sys, tempfile, threading, time
from cluster import CAIRN, Cluster

GIB = float(sys.argv[1]) if len(sys.argv) > 1 else 4
LAYOUTS = sys.argv[2].split(",") if len(sys.argv) > 2 else ["r3", "rs-3-2"]
FILE_MIB = 256
DOWN_AFTER_S = 10


def admin(cluster, *args):
    done = subprocess.run([CAIRN, "admin", "--json", *args], env=cluster.environment(), capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def repairs(cluster):
    return (admin(cluster, "repair") or [{}])[0]


def setting(cluster, name, value):
    subprocess.run([CAIRN, "admin", "config", "set", f"{name}={value}"], env=cluster.environment(), check=True, capture_output=True)


def held(cluster, name):
    """Bytes of chunk files of a node."""
    number = name.removeprefix("data")
    out = subprocess.run(["du", "-s", "--block-size=1", f"{cluster.root}/disks/{number}"], capture_output=True, text=True)
    return int(out.stdout.split()[0])


def cpu(cluster):
    ticks = 0
    for process in cluster.processes.values():
        try:
            with open(f"/proc/{process.pid}/stat") as file:
                ticks += sum(int(word) for word in file.read().rsplit(")", 1)[1].split()[11:13])
        except OSError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_filled(cluster, began):
    """Follows repair to its end: seconds from its first byte."""
    first = None
    while True:
        now = time.monotonic()
        told = repairs(cluster)
        busy = bool(told.get("repairs")) or told.get("queued", 0) > 0
        if first is None and told.get("done_bytes", 0) > 0:
            first = now
        if first is not None and not busy:
            return now - first
        if now - began > 900:
            sys.exit("repair does not end; see the logs of the processes")
        time.sleep(0.1)


class Load:
    """A reader and a writer, each over and over; bytes a second of both together."""

    def __init__(self, cluster, layout):
        self.cluster, self.layout, self.ending = cluster, layout, False
        self.has_read, self.has_written = 0, 0
        self.threads = [threading.Thread(target=self.read), threading.Thread(target=self.write)]
        for thread in self.threads:
            thread.start()

    def read(self):
        while not self.ending:
            process = subprocess.Popen([CAIRN, "fs", "cat", f"/{self.layout}/f0"], env=self.cluster.environment(), stdout=subprocess.PIPE)
            while part := process.stdout.read(1 << 20):
                self.has_read += len(part)
            process.wait()

    def write(self):
        i = 0
        while not self.ending:
            self.cluster.fs("put", f"{self.cluster.root}/local", f"/{self.layout}/w{i}")
            self.has_written += FILE_MIB << 20
            self.cluster.fs("rm", "--skip-trash", f"/{self.layout}/w{i}")
            i += 1

    def rate(self, seconds):
        read, written, began = self.has_read, self.has_written, time.monotonic()
        time.sleep(seconds)
        took = 1e6 * (time.monotonic() - began)
        return (self.has_read - read) / took, (self.has_written - written) / took

    def end(self):
        self.ending = True
        for thread in self.threads:
            thread.join()


def lose(cluster, victim):
    cluster.signal(victim, signal.SIGKILL)
    cluster.processes.pop(victim).wait()
    began = time.monotonic()
    while True:
        nodes = admin(cluster, "node", "ls")
        if any(node["host"] == victim and not node["up"] for node in nodes):
            return time.monotonic() - began
        if time.monotonic() - began > 120:
            sys.exit(f"{victim} is not called down")
        time.sleep(0.05)


def main():
    for layout in LAYOUTS:
        root = tempfile.mkdtemp(prefix="cairn-repair.")
        cluster = Cluster(root)
        try:
            cluster.wait(f"/{layout}", layout)
            with open(f"{root}/local", "wb") as file:
                for _ in range(FILE_MIB):
                    file.write(os.urandom(1 << 20))
            count = 0
            while held(cluster, "data2") < GIB * (1 << 30):
                cluster.fs("put", f"{root}/local", f"/{layout}/f{count}")
                count += 1
            size = held(cluster, "data2")
            for name, value in [("repair_delay", "1s"), ("repair_delay_urgent", "1s"), ("repair_rate_per_disk", "0"), ("repair_rate", "0")]:
                setting(cluster, name, value)
            before = cpu(cluster)
            down = lose(cluster, "data2")
            began = time.monotonic()
            took = wait_filled(cluster, began)
            spent = cpu(cluster) - before
            print(f"{layout:7} {count * FILE_MIB / 1024:5.1f} GiB of files, the node had {size / 1e9:.2f} GB; down after {down:4.1f} s "
                  f"(timeout {DOWN_AFTER_S}); restored in {took:5.1f} s = {size / 1e6 / took:5.0f} MB/s, {spent / (size / 1e9):4.1f} CPU s/GB", flush=True)
            for name, value in [("repair_rate_per_disk", "100m"), ("repair_rate", "0"), ("repair_in_flight", "0")]:
                setting(cluster, name, value)
            load = Load(cluster, layout)
            time.sleep(2)
            alone = load.rate(15)
            lose(cluster, "data4")
            time.sleep(2)
            lacking = load.rate(10)
            setting(cluster, "repair_in_flight", "256")
            while not repairs(cluster).get("done_bytes", 0):
                time.sleep(0.1)
            copied, spent = repairs(cluster).get("done_bytes", 0), cpu(cluster)
            beside = load.rate(10)
            copied, spent = repairs(cluster).get("done_bytes", 0) - copied, cpu(cluster) - spent
            load.end()
            phases = [("before", alone), ("after the loss without repair", lacking), ("during repair with default throttles", beside)]
            told = ", ".join(f"{sum(rates):5.0f} MB/s ({rates[0]:.0f} and {rates[1]:.0f}) {phase}" for phase, rates in phases)
            alone, lacking, beside = sum(alone), sum(lacking), sum(beside)
            print(f"{layout:7} reader and writer: {told} = {beside / alone:.2f} of before, {beside / lacking:.2f} of without repair; repair {copied / 1e7:.0f} MB/s, servers {spent / 10:.1f} processors", flush=True)
        finally:
            cluster.stop()
            shutil.rmtree(root)


main()
