"""A cluster of real processes on loopback for the measurements in this directory: a manager and a meta, or three of each (or another number
of metas), nine datas, each process in a rack of its own. CAIRN names the binary."""
import json, os, re, socket, subprocess, sys, time, urllib.request

CAIRN = os.path.realpath(os.environ.get("CAIRN", "target/release/cairn"))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    def __init__(self, root, heads=1, datas=9, metas=None, protection=None):
        """`protection`: of file data, `authenticated` or `private`, in a cluster that requires keys; without it there are none."""
        self.root, self.processes = root, {}
        self.http = {}
        self.protection = protection
        if protection:
            self.key("init", f"{root}/authority")
            self.key("admin", "bench", "--ca", f"{root}/authority", "--out", f"{root}/bench.key")
        if heads == 1:
            self.address = self.start("manager", '[manager]\nmember = 1\nmembers = ["1@127.0.0.1:0"]\n')
            members = f'"1@{self.address}"'
        else:
            at = [f"127.0.0.1:{port}" for port in free_ports(heads)]
            members = ", ".join(f'"{i}@{address}"' for i, address in enumerate(at, 1))
            for i, address in enumerate(at, 1):
                self.start(f"manager{i}", f"[manager]\nmember = {i}\nmembers = [{members}]\n", address)
            self.address = ",".join(at)
        rest = f"[manager]\nmembers = [{members}]\n"
        self.metas = ["meta"] if heads == 1 and metas is None else [f"meta{i}" for i in range(1, (metas or heads) + 1)]
        for name in self.metas:
            self.start(name, rest + "[meta]\n")
        os.makedirs(f"{root}/disks", exist_ok=True)
        for i in range(1, datas + 1):
            self.start(f"data{i}", rest + f'[data]\ndisks = ["{root}/disks/{i}"]\n')

    def start(self, name, sections, listen="127.0.0.1:0"):
        path = f"{self.root}/{name}.toml"
        with open(path, "w") as file:
            file.write(f'[node]\ndir = "{self.root}/{name}"\nlisten = "{listen}"\nhttp = "127.0.0.1:0"\nrack = "{name}"\nhost = "{name}"\n')
            file.write(sections)
            if self.protection:
                file.write(f'[security]\nkey = "{self.root}/{name}.key"\ndata = "{self.protection}"\n')
        if self.protection:
            self.key("node", "--ca", f"{self.root}/authority", path)
        log = open(f"{self.root}/{name}.log", "a")
        process = subprocess.Popen([CAIRN, "server", "--config", path], stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[name] = process
        if name == "manager":
            return self.ready(name)[0]
        return None

    def ready(self, name):
        """Addresses of the RPC and the HTTP port, when the process serves."""
        line = self.processes[name].stdout.readline()
        if "cluster=" not in line:
            sys.exit(f"{name} did not start; its log is {self.root}/{name}.log")
        words = dict(word.split("=") for word in line.split()[1:])
        self.http[name] = words["http"]
        return words["cluster"], words["http"]

    def restart(self, name):
        """The same process again, of one that ended."""
        self.http.pop(name, None)
        process = self.processes[name]
        process.stdout.close()
        log = open(f"{self.root}/{name}.log", "a")
        self.processes[name] = subprocess.Popen(process.args, stdout=subprocess.PIPE, stderr=log, text=True)

    def environment(self):
        key = {"CAIRN_KEY": f"{self.root}/bench.key"} if self.protection else {}
        return dict(os.environ, CAIRN_CLUSTER=self.address, **key)

    def key(self, *args):
        done = subprocess.run([CAIRN, "key", *args], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"cairn key {' '.join(args)}: {done.stderr}")

    def fs(self, *args):
        done = subprocess.run([CAIRN, "fs", *args], env=self.environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout

    def admin(self, *args):
        """The lines of a command's JSON."""
        done = subprocess.run([CAIRN, "--json", "admin", *args], env=self.environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def bench_meta(self, volume, clients, in_flight, *options):
        """The rows of `cairn bench meta`, in its order; an error ends the measurement."""
        command = [CAIRN, "--json", "bench", "meta", "--volume", volume, "--clients", str(clients), "--in-flight", str(in_flight), *options]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode != 0 or any(row["errors"] for row in rows):
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return rows

    def volume(self, name, partitions):
        """Makes a volume and waits until all of its partitions are led."""
        last = None
        for _ in range(300):
            try:
                if not any(each["name"] == name for each in self.admin("volume", "ls")):
                    self.admin("volume", "create", name, "--layout", "r1", "--partitions", str(partitions))
                led = [each["leader"] for each in self.admin("partition", "ls", name)]
                if len(led) == partitions and all(led):
                    return
            except RuntimeError as error:
                last = error
            time.sleep(0.2)
        sys.exit(f"volume {name} has no leaders: {last}")

    def metrics(self, name):
        """What a process counts: a name (counters without `_total`), its labels, a value."""
        if name not in self.http:
            self.ready(name)
        with urllib.request.urlopen(f"http://{self.http[name]}/metrics", timeout=30) as page:
            lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
        parts = [re.fullmatch(r"([^{ ]+)(?:{(.*)})? (\S+)", line).groups() for line in lines]
        return [(metric.removesuffix("_total"), dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)) for metric, labels, value in parts]

    def sum_of(self, metric, names=None):
        """Of a metric of meta processes, by partition."""
        found = {}
        for name in names or self.metas:
            for each, labels, value in self.metrics(name):
                if each == metric:
                    partition = int(labels.get("partition", "p0").removeprefix("p"))
                    found[partition] = found.get(partition, 0) + value
        return found

    def resident_bytes(self, name):
        with open(f"/proc/{self.processes[name].pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

    def wait(self, path, layout):
        """Until a directory of the layout can be made."""
        for _ in range(300):
            try:
                return self.fs("mkdir", "--layout", layout, path)
            except RuntimeError as error:
                last = error
                time.sleep(0.2)
        sys.exit(f"the cluster does not take the layout: {last}")

    def read_bytes(self):
        """Bytes of reads that each data process answered so far."""
        counts = {}
        for name in self.processes:
            if name.startswith("data"):
                with urllib.request.urlopen(f"http://{self.http[name]}/metrics", timeout=5) as page:
                    lines = page.read().decode().splitlines()
                counts[name] = sum(float(line.split()[-1]) for line in lines if line.startswith("cairn_data_read_bytes"))
        return counts

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
