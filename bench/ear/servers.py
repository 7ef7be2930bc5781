"""A cluster of real processes in the namespaces of `network`: a manager and a meta beside the core switch, where no link is slow, and a
data node in each namespace. What racks Cairn is told of, and what racks there are, may differ (`labels`): so the same code works with copies
that lie where they happen to, which is random replication.
"""
import json, os, re, subprocess, time, urllib.request


class Servers:
    def __init__(self, root, network, binary, labels=None, settings=(), filter="info"):
        """`labels`: the rack that each node says it is in; without it the one that it is in."""
        self.root, self.network, self.binary = root, network, binary
        self.labels = labels or {node: f"rack{rack}" for node, rack in network.rack_of.items()}
        self.processes, self.http, self.filter, self.ending = {}, {}, filter, False
        os.makedirs(f"{root}/disks")
        try:
            self._start(settings)
        except BaseException:
            self.stop()
            raise

    def _start(self, settings):
        head = self.network.address["head"]
        self.address = f"{head}:7400"
        self._spawn("manager", "head", 7400, "head", "member = 1\n")
        self._spawn("meta", "head", 7401, "head", "[meta]\n")
        for node in self.network.rack_of:
            self._spawn(node, node, 7402, self.labels[node], f'[data]\ndisks = ["{self.root}/disks/{node}"]\n')
        for name in self.processes:
            self._ready(name)
        want = len(self.network.rack_of) + 2
        self.until("all nodes are up", lambda: sum(node["up"] for node in self.admin("node", "ls")) >= want)
        if settings:
            # Some are refused until the managers have agreed on the feature level.
            self.until("the settings are taken", lambda: self.admin("config", "set", *settings) is not None)

    def _spawn(self, name, node, port, label, section):
        path, address = f"{self.root}/{name}.toml", self.network.address[node]
        with open(path, "w") as file:
            file.write(f'[node]\ndir = "{self.root}/{name}"\nlisten = "{address}:{port}"\nhttp = "{address}:{port + 100}"\nrack = "{label}"\n'
                       f'host = "{name}"\n[http]\nstrangers = "all"\n[log]\nfilter = "{self.filter}"\n'
                       f'[manager]\nmembers = ["1@{self.address}"]\n{section}')
        with open(f"{self.root}/{name}.log", "a") as log:
            command = self.network.command(node, self.binary, "server", "--config", path)
            self.processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)

    def _ready(self, name):
        line = self.processes[name].stdout.readline()
        if "cluster=" not in line:
            raise RuntimeError(f"{name} did not start: {self.log(name)[-600:]}")
        self.http[name] = dict(word.split("=") for word in line.split()[1:])["http"]

    def log(self, name):
        with open(f"{self.root}/{name}.log", errors="replace") as file:
            return file.read()

    def cairn(self, node, *args, stdin=None, timeout=600):
        """A command of the client on a node; its standard output."""
        if self.ending:
            raise RuntimeError("the measurement ends")
        command = self.network.command(node, self.binary, *args)
        env = dict(os.environ, CAIRN_CLUSTER=self.address)
        done = subprocess.run(command, env=env, input=stdin, capture_output=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{node}: cairn {' '.join(args[:6])}: {done.stderr.decode(errors='replace').strip()[-800:]}")
        return done.stdout

    def lines(self, *args, node="head"):
        """The lines of a command's JSON."""
        return [json.loads(line) for line in self.cairn(node, "--json", *args).decode().splitlines()]

    def admin(self, *args):
        return self.lines("admin", *args)

    def until(self, what, done, seconds=120, pause=0.3):
        end, last = time.monotonic() + seconds, None
        while time.monotonic() < end:
            try:
                if done():
                    return
            except RuntimeError as error:
                last = error
            time.sleep(pause)
        raise RuntimeError(f"after {seconds} s it is not so that {what}" + (f": {last}" if last else ""))

    def volume(self, name, layout, partitions):
        """A volume whose directory dN is in partition N, with that layout."""
        self.admin("volume", "create", name, "--layout", "r2", "--partitions", str(partitions))
        led = lambda: [bool(each["leader"]) for each in self.admin("partition", "ls", name)]
        self.until("all partitions are led", lambda: led() == [True] * partitions)
        numbers = sorted(each["id"] for each in self.admin("partition", "ls", name))
        for place, number in enumerate(numbers):
            path = f"{name}:/d{place}"
            make = lambda: self.cairn("head", "fs", "mkdir", "--partition", str(number).removeprefix("p"), path) is not None
            self.until(f"{path} is made", make)
            self.until("the layout is taken", lambda: self.cairn("head", "fs", "layout", "set", layout, path) is not None)

    def metric(self, name, process="meta"):
        with urllib.request.urlopen(f"http://{self.http[process]}/metrics", timeout=30) as page:
            text = page.read().decode()
        values = re.findall(rf"^{name}(?:_total)?(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(float(value) for value in values)

    def cpu_seconds(self):
        """Of all servers so far."""
        ticks = 0
        for process in self.processes.values():
            with open(f"/proc/{process.pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def disk_bytes(self):
        """What chunks take on all disks."""
        total = 0
        for base, _, names in os.walk(f"{self.root}/disks"):
            for name in names if "/pg/" in base else []:
                try:
                    total += os.stat(os.path.join(base, name)).st_blocks * 512
                except FileNotFoundError:
                    pass
        return total

    def errors(self):
        """Lines of ERROR in the logs."""
        return [f"{name}: {line}" for name in self.processes for line in self.log(name).splitlines() if " ERROR " in line]

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.processes = {}
