"""A cluster of real processes on loopback for the measurements in this directory: a manager and a meta, or three of each, nine datas,
each data process in a rack of its own. CAIRN names the binary."""
import json, os, socket, subprocess, sys, time, urllib.request

CAIRN = os.path.realpath(os.environ.get("CAIRN", "target/release/cairn"))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    def __init__(self, root, heads=1, datas=9):
        self.root, self.processes = root, {}
        self.http = {}
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
        for i in range(1, heads + 1):
            self.start("meta" if heads == 1 else f"meta{i}", rest + "[meta]\n")
        os.makedirs(f"{root}/disks", exist_ok=True)
        for i in range(1, datas + 1):
            self.start(f"data{i}", rest + f'[data]\ndisks = ["{root}/disks/{i}"]\n')

    def start(self, name, sections, listen="127.0.0.1:0"):
        path = f"{self.root}/{name}.toml"
        with open(path, "w") as file:
            file.write(f'[node]\ndir = "{self.root}/{name}"\nlisten = "{listen}"\nhttp = "127.0.0.1:0"\nrack = "{name}"\nhost = "{name}"\n')
            file.write(sections)
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

    def environment(self):
        return dict(os.environ, CAIRN_CLUSTER=self.address)

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
