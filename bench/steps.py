#!/usr/bin/env python3
"""What one operation through a mount costs in steps, of two binaries: system calls, context switches and CPU of the mount's and of the servers' processes.

Each binary gets a `cairn dev` of its own with three nodes, three copies of each file, and a mount. One program works, one operation after the
other: with many at a time threads find work without sleeping, and what a hop costs is not seen. Rounds alternate, in changing order; each figure is
the median of the rounds, with the ratio of B to A and its lowest and highest. A step is counted until the operation was acknowledged; "CPU in all" goes on for
two seconds, so that it has what was put off, less what the processes use when nothing is done. System calls are counted by perf where it is there,
else by strace in a round of its own. Ends by itself, ends only what it started.
Usage, as root: bench/steps.py A B [ROUNDS [OPERATIONS [PHASE,…]]]
A, B: binaries, as target/release/cairn; behind an @ options of their mounts, as target/release/cairn@lease=new
"""
import mmap, os, shutil, signal, statistics, subprocess, sys, tempfile, time

PHASES = ("create", "write 4 KiB", "read 4 KiB", "stat", "unlink", "mkdir", "rmdir", "untar", "rm -rf")
FIGURES = ("time ms", "system calls", "voluntary switches", "involuntary switches", "CPU ms", "CPU ms in all")
AFTERWARDS = 2
HAS_PERF = shutil.which("perf") and subprocess.run(["perf", "stat", "-e", "raw_syscalls:sys_enter", "true"], capture_output=True).returncode == 0


class Side:
    """A cluster and a mount of one binary."""

    def __init__(self, binary, work):
        binary, _, self.options = binary.partition("@")
        self.binary, self.work, self.processes = os.path.realpath(binary), work, {}
        self.mount = f"{work}/mount"
        os.makedirs(self.mount)

    def run(self):
        here = dict(os.environ, HOME=self.work, XDG_CONFIG_HOME=f"{self.work}/config", CAIRN_RUN_DIR=f"{self.work}/run")
        servers = self.start("servers", here, "dev", "--insecure", "--nodes", "3", "--racks", "3", "--listen", "127.0.0.1:0", "--data-dir", f"{self.work}/cluster")
        words = next((line for line in servers.stdout if line.startswith("ready ")), None)
        if words is None:
            raise RuntimeError(f"cairn dev did not start; its log is {self.work}/servers.log")
        address = dict(word.split("=", 1) for word in words.split()[1:])["cluster"]
        options = ["-o", self.options] if self.options else []
        self.start("mount", here, "mount", "--foreground", *options, f"cairn://{address}/default", self.mount)
        end = time.monotonic() + 60
        while not os.path.ismount(self.mount):
            if time.monotonic() > end:
                raise RuntimeError(f"the mount did not come up; its log is {self.work}/mount.log")
            time.sleep(0.1)
        subprocess.run([self.binary, "--cluster", address, "fs", "layout", "set", "r3", "/"], check=True, env=here, stdout=subprocess.DEVNULL)

    def start(self, name, environment, *arguments):
        log = open(f"{self.work}/{name}.log", "w")
        self.processes[name] = subprocess.Popen([self.binary, *arguments], env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        return self.processes[name]

    def pids(self, who):
        """A process and what it started."""
        found, left = [], [self.processes[who].pid]
        while left:
            pid = left.pop()
            found.append(pid)
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    left += map(int, children.read().split())
        return found

    def stop(self):
        if os.path.ismount(self.mount):
            subprocess.run(["umount", "--lazy", self.mount])
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def counted(pids):
    """Of each thread: its voluntary and involuntary switches and its CPU seconds."""
    found = {}
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/status") as status, open(f"/proc/{pid}/task/{task}/schedstat") as ran:
                    found[task] = [int(line.split()[1]) for line in status if "ctxt_switches" in line] + [int(ran.read().split()[0]) / 1e9]
            except OSError:
                continue
    return found


def since(before, now):
    """Of threads that are there now: one that ended meanwhile is not counted."""
    return [sum(counts[i] - before.get(task, (0, 0, 0))[i] for task, counts in now.items()) for i in range(3)]


class Calls:
    """Counts the system calls of processes until it is asked."""

    def __init__(self, pids, path):
        self.path, listed = path, ",".join(map(str, pids))
        command = ["perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o", path, "-p", listed]
        if not HAS_PERF:
            command = ["strace", "-c", "-f", "-q", "-o", path, *(word for pid in pids for word in ("-p", str(pid)))]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)

    def so_far(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        with open(self.path) as file:
            lines = file.read().splitlines()
        if HAS_PERF:
            return int(next(line for line in lines if "sys_enter" in line and not line.startswith("#")).split(",")[0])
        return int(next(line for line in lines if line.endswith("total")).split()[2])


def work_of(phase, at, operations, tree):
    """What to do, and how many operations it is."""
    def each(names, work):
        return lambda: [work(f"{at}/{name}") for name in names]

    def create(path, content=b""):
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        if content:
            os.write(file, content)
        os.close(file)

    def read():
        buffer, file = mmap.mmap(-1, 4096), os.open(f"{at}/large", os.O_RDONLY | os.O_DIRECT)
        for i in range(operations):
            os.preadv(file, [buffer], i * 7919 % 1024 * 4096)
        os.close(file)

    if phase == "read 4 KiB":
        create(f"{at}/large", b"4 KiB..." * 512 * 1024)
    empty, full, directories = ([f"{kind}{i:05}" for i in range(operations)] for kind in "efd")
    files = 220
    return {
        "create": (each(empty, create), operations),
        "write 4 KiB": (each(full, lambda path: create(path, b"4 KiB..." * 512)), operations),
        "read 4 KiB": (read, operations),
        "stat": (each(empty, os.stat), operations),
        "unlink": (each(empty, os.unlink), operations),
        "mkdir": (each(directories, os.mkdir), operations),
        "rmdir": (each(directories, os.rmdir), operations),
        "untar": (lambda: subprocess.run(["tar", "-xf", tree, "-C", at], check=True), files),
        "rm -rf": (lambda: subprocess.run(["rm", "-rf", f"{at}/tree"], check=True), files),
    }[phase]


def measure(side, phase, at, operations, tree):
    """Of one phase: {(who, figure): of one operation}."""
    work, count = work_of(phase, at, operations, tree)
    pids = {who: side.pids(who) for who in side.processes}
    idle, begun = {who: counted(pids[who]) for who in pids}, time.monotonic()
    calls = {who: Calls(pids[who], f"{side.work}/calls-{who}") for who in pids}
    time.sleep(max(0, 1.5 - (time.monotonic() - begun)))
    before, idle_for, begun = {who: counted(pids[who]) for who in pids}, time.monotonic() - begun, time.monotonic()
    work()
    after, took = {who: counted(pids[who]) for who in pids}, time.monotonic() - begun
    found = {("both", "time ms"): took * 1000 / count}
    for who in pids:
        voluntary, involuntary, cpu = since(before[who], after[who])
        found |= {(who, "system calls"): calls[who].so_far() / count, (who, "voluntary switches"): voluntary / count,
                  (who, "involuntary switches"): involuntary / count, (who, "CPU ms"): cpu * 1000 / count}
    time.sleep(AFTERWARDS)
    for who in pids:
        cpu, rate = since(before[who], counted(pids[who]))[2], since(idle[who], before[who])[2] / idle_for
        found[who, "CPU ms in all"] = max(0, cpu - rate * (time.monotonic() - begun)) * 1000 / count
    return found


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rounds, operations = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 5), (4, 1000)))
    phases = sys.argv[5].split(",") if len(sys.argv) > 5 else PHASES
    work, sides = tempfile.mkdtemp(prefix="cairn-steps-"), []
    try:
        for i in range(20):
            os.makedirs(f"{work}/tree/{i}")
            for k in range(10):
                with open(f"{work}/tree/{i}/{k}", "wb") as file:
                    file.write(os.urandom(4096))
        subprocess.run(["tar", "-cf", f"{work}/tree.tar", "-C", work, "tree"], check=True)
        for name, binary in zip("AB", sys.argv[1:3]):
            sides.append(Side(binary, f"{work}/{name}"))
            sides[-1].run()
        found = [{}, {}]
        for number in range(rounds):
            for at in (number % 2, 1 - number % 2):
                place = f"{sides[at].mount}/{number}"
                os.mkdir(place)
                for phase in phases:
                    for figure, value in measure(sides[at], phase, place, operations, f"{work}/tree.tar").items():
                        found[at].setdefault((phase, *figure), []).append(value)
        print("| one operation | of | figure | A | B | B beside A |\n|---|---|---|---|---|---|")
        order = sorted(found[0], key=lambda row: (phases.index(row[0]), FIGURES.index(row[2]), row[1]))
        for row in order:
            a, b = found[0][row], found[1][row]
            ratios = sorted(theirs / ours for ours, theirs in zip(a, b) if ours > 0)
            beside = f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "–"
            print(f"| {' | '.join(row)} | {statistics.median(a):.3f} | {statistics.median(b):.3f} | {beside} |")
    finally:
        for side in reversed(sides):
            side.stop()
        shutil.rmtree(work, ignore_errors=True)


main()
