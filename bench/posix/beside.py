#!/usr/bin/env python3
"""Mounts side by side: Cairn, MooseFS where it is installed, and a local directory, in one run, in turns.

Both clusters have three data servers on this machine and three copies of each file. Each round does the same work on each, in changing order, and
what is printed is the median of the rounds and the ratio to Cairn's with its lowest and highest. CPU is that of the servers and the mount, without
the program that works; only processes that this script started are counted. Cairn stores what it acknowledges on three disks; MooseFS acknowledges from memory.
Ends by itself, ends only what it started.
Usage, as root, with rustc and git: CAIRN=target/release/cairn bench/posix/beside.py [ROUNDS [FILES_A_PROCESS [DIRECTORY]]]
CAIRN_MOUNT_OPTIONS: those of Cairn's mount, as lease=off. MooseFS of Debian: apt-get install moosefs-master moosefs-chunkserver moosefs-client. A phase is too short to count below 5 s: take more files.
"""
import os, shutil, socket, statistics, subprocess, sys, tempfile, time

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
PLACE = sys.argv[3] if len(sys.argv) > 3 else None
PROCESSES = 8
SOURCE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
CAIRN = os.path.realpath(os.environ.get("CAIRN", f"{SOURCE}/target/release/cairn"))
OPTIONS = os.environ.get("CAIRN_MOUNT_OPTIONS", "rw")
# MooseFS takes no chunk servers from 127.0.0.1, so all of it runs in a network of its own, where this is an address too.
ADDRESS = "10.77.0.1"
TICK = os.sysconf("SC_CLK_TCK")
sys.path.insert(0, f"{SOURCE}/bench")
from cluster import free_ports


def listens(port):
    with socket.socket() as client:
        return client.connect_ex((ADDRESS, port)) == 0


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    sys.exit(f"{what} did not come up in {seconds} s")


class Local:
    """A directory of the local file system."""

    name = "local"

    def __init__(self, work):
        self.work, self.mount, self.processes = work, f"{work}/{self.name}", []
        os.mkdir(self.mount)

    def run(self):
        """Starts what is needed. Apart from making it, so that what was started is ended if this fails."""

    def start(self, name, *command, **more):
        log = open(f"{self.work}/{self.name}-{name}.log", "w")
        process = subprocess.Popen(command, stderr=log, **({"stdout": log} | more))
        self.processes.append(process)
        return process

    def cpu(self):
        """Seconds of the processes and of their children, those that ended too."""
        total, parents, fields = 0, {}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    fields[int(pid)] = stat.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[int(pid)][1]), []).append(int(pid))
        left = [process.pid for process in self.processes]
        while left:
            pid = left.pop()
            left += parents.get(pid, [])
            total += sum(map(int, fields[pid][11:15])) if pid in fields else 0
        return total / TICK

    def stop(self):
        if os.path.ismount(self.mount):
            subprocess.run(["umount", "--lazy", self.mount])
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Cairn(Local):
    name = "Cairn"

    def run(self):
        work = self.work
        here = dict(os.environ, HOME=work, XDG_CONFIG_HOME=f"{work}/config", CAIRN_RUN_DIR=f"{work}/run")
        server = self.start("server", CAIRN, "dev", "--insecure", "--nodes", "3", "--racks", "3", "--listen", "127.0.0.1:0", "--data-dir", f"{work}/cluster",
                            stdout=subprocess.PIPE, text=True, env=here)
        words = next((line for line in server.stdout if line.startswith("ready ")), None)
        if words is None:
            sys.exit(f"cairn dev did not start; its log is {work}/Cairn-server.log")
        address = dict(word.split("=", 1) for word in words.split()[1:])["cluster"]
        self.start("mount", CAIRN, "mount", "--foreground", "-o", OPTIONS, f"cairn://{address}/default", self.mount, env=here)
        until("the mount of Cairn", lambda: os.path.ismount(self.mount))
        subprocess.run([CAIRN, "--cluster", address, "fs", "layout", "set", "r3", "/"], check=True, env=here, stdout=subprocess.DEVNULL)


class MooseFS(Local):
    name = "MooseFS"

    @staticmethod
    def is_there():
        return all(map(shutil.which, ("mfsmaster", "mfschunkserver", "mfsmount", "mfssetgoal")))

    def run(self):
        to_meta, to_chunks, to_clients, *chunks = free_ports(6)
        home = f"{self.work}/moosefs"
        os.makedirs(f"{home}/master")
        shutil.copy("/var/lib/mfs/metadata.mfs.empty", f"{home}/master/metadata.mfs")
        with open(f"{home}/exports.cfg", "w") as file:
            file.write("* / rw,alldirs,admin,maproot=0:0\n")
        user = "WORKING_USER = root\nWORKING_GROUP = root\nSYSLOG_MIN_LEVEL = WARNING\n"
        with open(f"{home}/master.cfg", "w") as file:
            file.write(f"{user}DATA_PATH = {home}/master\nEXPORTS_FILENAME = {home}/exports.cfg\nTOPOLOGY_FILENAME = {home}/topology.cfg\n"
                       f"MATOML_LISTEN_PORT = {to_meta}\nMATOCS_LISTEN_PORT = {to_chunks}\nMATOCL_LISTEN_PORT = {to_clients}\n")
        open(f"{home}/topology.cfg", "w").close()
        self.start("master", "mfsmaster", "-f", "-c", f"{home}/master.cfg", "start")
        for i, port in enumerate(chunks):
            os.makedirs(f"{home}/data{i}")
            os.makedirs(f"{home}/disk{i}")
            with open(f"{home}/hdd{i}.cfg", "w") as file:
                file.write(f"{home}/disk{i}\n")
            with open(f"{home}/chunk{i}.cfg", "w") as file:
                file.write(f"{user}DATA_PATH = {home}/data{i}\nHDD_CONF_FILENAME = {home}/hdd{i}.cfg\nMASTER_HOST = {ADDRESS}\n"
                           f"MASTER_PORT = {to_chunks}\nCSSERV_LISTEN_PORT = {port}\n")
            self.start(f"chunk{i}", "mfschunkserver", "-f", "-c", f"{home}/chunk{i}.cfg", "start")
        until("the master of MooseFS", lambda: listens(to_clients))
        self.start("mount", "mfsmount", "-f", "-H", ADDRESS, "-P", str(to_clients), self.mount)
        until("the mount of MooseFS", lambda: os.path.ismount(self.mount))
        subprocess.run(["mfssetgoal", "-r", "3", self.mount], check=True, stdout=subprocess.DEVNULL)
        until("three chunk servers of MooseFS", lambda: self.takes_three())

    def takes_three(self):
        path = f"{self.mount}/ready"
        try:
            with open(path, "w") as file:
                file.write("ready")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        told = subprocess.run(["mfsfileinfo", path], capture_output=True, text=True).stdout
        return told.count("copy ") == 3


def settle():
    """What was written is on the disk, and reads find nothing in the kernel's caches."""
    os.sync()
    time.sleep(1)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def names(system, mdops, shared):
    """Each phase: operations a second and CPU milliseconds of one."""
    root = f"{system.mount}/names"
    phases = "create,stat,readdir+stat,remove" if shared else "create,stat,readdir+stat,remove,mkdir,rmdir"
    environment = dict(os.environ, DROP_CACHES="echo 3 > /proc/sys/vm/drop_caches", PHASES=phases) | ({"SHARED": "1"} if shared else {})
    process = subprocess.Popen([mdops, root, str(PROCESSES), str(FILES)], stdout=subprocess.PIPE, text=True, env=environment)
    found, before = {}, system.cpu()
    for line in process.stdout:
        what, _, rate = line.split("\t")
        used, before = system.cpu() - before, system.cpu()
        found[f"{what}, {PROCESSES} processes" + (", one directory" if shared else "")] = (float(rate), used * 1000 / (FILES * PROCESSES))
    if process.wait() != 0:
        sys.exit(f"{system.name}: {mdops} failed")
    return found


def small_files(system, mdops):
    found = {}
    for size in 4096, 131072:
        process = subprocess.Popen([mdops, f"{system.mount}/small", str(PROCESSES), str(FILES), str(size)], stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, DROP_CACHES="echo 3 > /proc/sys/vm/drop_caches", PHASES="none"))
        before = system.cpu()
        for line in process.stdout:
            what, _, rate = line.split("\t")
            used, before = system.cpu() - before, system.cpu()
            if not what.startswith("remove"):
                found[f"{what}, {PROCESSES} processes"] = (float(rate), used * 1000 / (FILES // 4 * PROCESSES))
        if process.wait() != 0:
            sys.exit(f"{system.name}: {mdops} failed")
    return found


def commands(system, tree, repository):
    """Programs: runs a second, as more has to be better everywhere, and CPU milliseconds of one."""
    found = {}
    for what, *command in (
        ("untar", "tar", "-xf", tree, "-C", f"{system.mount}/tree"),
        ("find, the first", "find", f"{system.mount}/tree", "-newermt", "2030-01-01"),
        ("find, the second", "find", f"{system.mount}/tree", "-newermt", "2030-01-01"),
        ("rm -rf", "rm", "-rf", f"{system.mount}/tree"),
        ("git clone", "git", "clone", "--quiet", "--no-hardlinks", repository, f"{system.mount}/clone"),
        ("git status", "git", "-C", f"{system.mount}/clone", "status", "--short"),
        ("rm -rf of the clone", "rm", "-rf", f"{system.mount}/clone"),
    ):
        if what == "untar":
            os.mkdir(f"{system.mount}/tree")
        if not what.endswith("the second"):
            settle()
        before, begun = system.cpu(), time.monotonic()
        subprocess.run(command, check=True)
        found[what] = (1 / (time.monotonic() - begun), (system.cpu() - before) * 1000)
    return found


def main():
    if os.environ.get("CAIRN_BESIDE") != "inside":
        os.environ["CAIRN_BESIDE"] = "inside"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    for command in ("ip link set lo up", f"ip address add {ADDRESS}/32 dev lo"):
        subprocess.run(command.split(), check=True)
    if not os.access(CAIRN, os.X_OK):
        sys.exit(f"{CAIRN} is missing; run: make release")
    work = tempfile.mkdtemp(prefix="cairn-beside-", dir=PLACE)
    systems = []
    try:
        mdops, tree, repository = f"{work}/mdops", f"{work}/tree.tar", f"{work}/repository"
        subprocess.run(["rustc", "-O", "--edition", "2024", "-o", mdops, f"{SOURCE}/bench/posix/mdops.rs"], check=True)
        subprocess.run(["git", "clone", "--quiet", "--bare", SOURCE, repository], check=True)
        listed = subprocess.run("find . -type f | sort | head -n 5067", shell=True, capture_output=True, check=True,
                                cwd=os.environ.get("SOURCE_TREE", os.path.expanduser("~/.cargo/registry/src")))
        subprocess.run(["tar", "-cf", tree, "-T", "-"], input=listed.stdout, check=True,
                       cwd=os.environ.get("SOURCE_TREE", os.path.expanduser("~/.cargo/registry/src")))
        for kind in (Cairn, MooseFS, Local):
            if kind is MooseFS and not MooseFS.is_there():
                print("MooseFS is not installed: not measured")
                continue
            systems.append(kind(work))
            systems[-1].run()
        rounds = {system.name: {} for system in systems}
        works = [lambda system: names(system, mdops, False), lambda system: names(system, mdops, True), lambda system: small_files(system, mdops),
                 lambda system: commands(system, tree, repository)]
        for work_of in works:
            for number in range(ROUNDS):
                for at in range(len(systems)):
                    system = systems[(number + at) % len(systems)]
                    settle()
                    for what, figures in work_of(system).items():
                        rounds[system.name].setdefault(what, []).append(figures)
        others = [system.name for system in systems[1:]]
        print(f"| what | Cairn | {' | '.join(f'{name} | Cairn beside {name}' for name in others)} |")
        print("|---" * (2 + 2 * len(others)) + "|")
        for what, own in rounds["Cairn"].items():
            row = [what, figure(own)]
            for name in others:
                ratios = sorted(mine[0] / theirs[0] for mine, theirs in zip(own, rounds[name][what]))
                row += [figure(rounds[name][what]), f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f})"]
            print(f"| {' | '.join(row)} |")
    finally:
        for system in reversed(systems):
            system.stop()
        shutil.rmtree(work, ignore_errors=True)


def figure(rows):
    rate, cpu = (statistics.median(row[i] for row in rows) for i in (0, 1))
    return f"{1 / rate:.1f} s ({cpu / 1000:.1f} s CPU)" if rate < 20 else f"{rate:,.0f} a second ({cpu:.3f} ms)"


main()
