#!/usr/bin/env python3
"""What a meta partition without a quorum does to the rest of its volume. Needs root and /dev/fuse.

Starts a manager, six metas and a data on loopback, a volume of four partitions, and a mount of it. Kills two metas that are both members of one
partition only (not of the root's) for SECONDS, while programs make, write, rename, read and remove files in directories of each partition
of the mount, one partition each. Prints the slowest round and the errors in each, and how many sessions ended.
Ends by itself, ends only what it started. Usage: CAIRN=target/release/cairn bench/no_quorum.py [SECONDS [DIR]]
"""
import collections, itertools, os, shutil, signal, subprocess, sys, tempfile, threading, time
from cluster import CAIRN, Cluster

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60
DIR = sys.argv[2] if len(sys.argv) > 2 else None


def victim(cluster):
    """A partition, and two nodes that are both members of it and of no other one."""
    partitions = cluster.admin("partition", "ls", "many")
    of_root = min(each["id"] for each in partitions)
    both = collections.Counter(pair for each in partitions for pair in itertools.combinations(sorted(each["nodes"]), 2))
    for each in partitions:
        for pair in itertools.combinations(sorted(each["nodes"]), 2):
            if each["id"] != of_root and both[pair] == 1:
                host = {node["id"]: node["host"] for node in cluster.admin("node", "ls")}
                return each["id"], [host[node] for node in pair]
    sys.exit("each two meta nodes are members of several partitions")


class Program(threading.Thread):
    """Rounds in one directory until it is told to end."""
    def __init__(self, directory):
        super().__init__(daemon=True)
        self.directory, self.over, self.rounds, self.slowest, self.errors = directory, False, 0, 0.0, []

    def run(self):
        while not self.over:
            started = time.monotonic()
            try:
                self.round()
                self.rounds += 1
            except OSError as error:
                self.errors.append(f"{time.strftime('%T')} {error}")
                time.sleep(0.2)
            self.slowest = max(self.slowest, time.monotonic() - started)

    def round(self):
        path = f"{self.directory}/{self.rounds}"
        with open(path, "wb") as file:
            file.write(path.encode())
        os.rename(path, path + ".b")
        with open(path + ".b", "rb") as file:
            if file.read() != path.encode():
                raise OSError(f"{path} came back wrong")
        os.listdir(self.directory)
        os.unlink(path + ".b")


def outage(cluster, mounted):
    lost, hosts = victim(cluster)
    programs = {}
    for partition in (each["id"] for each in cluster.admin("partition", "ls", "many")):
        cluster.fs("mkdir", "--partition", str(partition), f"many:/{partition}")
        programs[partition] = Program(f"{mounted}/{partition}")
    held = open(f"{mounted}/{lost}/held", "wb")
    held.write(b"before ")
    for program in programs.values():
        program.start()
    time.sleep(3)
    for host in hosts:
        cluster.signal(host, signal.SIGKILL)
        cluster.processes[host].wait()
    # Leaders that went are replaced; that is another measurement.
    time.sleep(5)
    for program in programs.values():
        program.slowest = 0.0
    before = {partition: program.rounds for partition, program in programs.items()}
    errors = {partition: len(program.errors) for partition, program in programs.items()}
    time.sleep(SECONDS)
    print(f"p{lost} without {' and '.join(hosts)}, {SECONDS:.0f} s\n\n| partition | rounds | slowest | errors |\n|---|---|---|---|")
    for partition, program in programs.items():
        name = f"p{partition}, without quorum" if partition == lost else f"p{partition}"
        rounds, failed = program.rounds - before[partition], program.errors
        print(f"| {name} | {rounds:,} | {program.slowest * 1000:.0f} ms | {len(failed) - errors[partition]} in the time, {len(failed)} in all |", flush=True)
    for host in hosts:
        cluster.restart(host)
    again, rounds = time.monotonic(), programs[lost].rounds
    while programs[lost].rounds == rounds and time.monotonic() - again < 60:
        time.sleep(0.05)
    print(f"| p{lost}, members back | first round after {time.monotonic() - again:.1f} s | | {len(programs[lost].errors)} |")
    for program in programs.values():
        program.over = True
        program.join(30)
    held.write(b"and after")
    held.close()
    with open(f"{mounted}/{lost}/held", "rb") as file:
        if file.read() != b"before and after":
            sys.exit("a file that was open meanwhile lost something")
    print(f"sessions that ended: {sum(cluster.sum_of('cairn_meta_sessions_expired').values()):.0f}; a file that was open all the time is whole")
    for partition, program in programs.items():
        for error in program.errors[:5]:
            print(f"p{partition}: {error}")


def main():
    root = tempfile.mkdtemp(prefix="cairn-quorum-", dir=DIR)
    mounted = f"{root}/mounted"
    os.mkdir(mounted)
    cluster = Cluster(root, heads=1, datas=1, metas=6)
    mount = None
    try:
        cluster.volume("many", 4)
        mount = subprocess.Popen([CAIRN, "mount", "-f", "many:/", mounted], env=cluster.environment())
        for _ in range(100):
            if os.path.ismount(mounted):
                break
            time.sleep(0.1)
        outage(cluster, mounted)
    finally:
        if os.path.ismount(mounted):
            subprocess.run(["umount", "-l", mounted])
        if mount:
            try:
                mount.wait(20)
            except subprocess.TimeoutExpired:
                mount.kill()
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
