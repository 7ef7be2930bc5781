"""Racks of network namespaces: one for each node, a bridge for each rack, a core bridge, and between them uplinks whose rate is set both
ways and whose bytes are counted. All bridges are in one namespace of their own, so nothing is changed in the network of the machine.

    node (eth0) --- rackN --- upN | coreN --- core --- head (eth0): manager, meta, and whoever measures

Needs root, `ip`, `tc` and `nsenter`. Everything that is made has a name with the prefix that it was given, and goes with `close`.
"""
import ctypes, json, os, shutil, subprocess

#: Bytes that an uplink sends at once, and how long it queues before it drops.
BURST, LATENCY = "64kb", "100ms"
TOOLS = ("ip", "tc", "nsenter", "unshare", "sh", "hostname")


def missing():
    """What this machine lacks, for people; empty if it has all."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"these programs are missing: {', '.join(lacking)} (packages iproute2 and util-linux, hostname)"
    return ""


def run(*command, stdin=None):
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    def __init__(self, prefix, racks):
        """`racks`: of each the names of its nodes."""
        self.prefix, self.racks, self.made, self.outside = prefix, racks, [], None
        self.switch = f"{prefix}switch"
        self.rack_of = {node: number for number, nodes in enumerate(racks) for node in nodes}
        self.address = {node: f"10.77.{number + 1}.{place + 1}" for number, nodes in enumerate(racks) for place, node in enumerate(nodes)}
        self.address["head"] = "10.77.0.1"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def space(self, node):
        return f"{self.prefix}{node}"

    def _add(self, name):
        run("ip", "netns", "add", name)
        self.made.append(name)

    def _make(self):
        self._add(self.switch)
        lines = ["link add core type bridge", "link set core up"]
        for number in range(len(self.racks)):
            lines += [f"link add rack{number} type bridge", f"link set rack{number} up", f"link add up{number} type veth peer name core{number}",
                      f"link set up{number} master rack{number} up", f"link set core{number} master core up"]
        for node in self.address:
            self._add(self.space(node))
            bridge = "core" if node == "head" else f"rack{self.rack_of[node]}"
            lines += [f"link add {node} type veth peer name eth0 netns {self.space(node)}", f"link set {node} master {bridge} up"]
        run("ip", "-n", self.switch, "-batch", "-", stdin="\n".join(lines))
        for node, address in self.address.items():
            run("ip", "-n", self.space(node), "-batch", "-", stdin=f"link set lo up\naddr add {address}/16 dev eth0\nlink set eth0 up\n")

    def command(self, node, *command):
        """A command within a node: its network, and its host name, by which a client finds its rack. It gets the process id of what is started."""
        return ["nsenter", f"--net=/run/netns/{self.space(node)}", "unshare", "--uts", "sh", "-c", f'hostname {node} && exec "$@"', "sh", *command]

    def shape(self, uplink, node=None):
        """Bits a second of uplinks and of nodes' links, both ways; none: as fast as it goes."""
        lines = []
        for number in range(len(self.racks)):
            lines += [self._qdisc(f"up{number}", uplink), self._qdisc(f"core{number}", uplink)]
        lines += [self._qdisc(name, node) for name in self.rack_of]
        run("tc", "-n", self.switch, "-force", "-batch", "-", stdin="\n".join(lines))
        for name in self.rack_of:
            run("tc", "-n", self.space(name), "-batch", "-", stdin=self._qdisc("eth0", node))

    @staticmethod
    def _qdisc(device, rate):
        if rate is None:
            return f"qdisc replace dev {device} root pfifo_fast"
        return f"qdisc replace dev {device} root tbf rate {int(rate)}bit burst {BURST} latency {LATENCY}"

    def enter(self):
        """From now on this thread, and what it starts, is beside the core switch."""
        self.outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        with open(f"/run/netns/{self.space('head')}") as space:
            self._set(space.fileno())

    def leave(self):
        if self.outside is not None:
            self._set(self.outside)
            os.close(self.outside)
            self.outside = None

    @staticmethod
    def _set(descriptor):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, 0x4000_0000) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def cut(self, rack):
        run("ip", "-n", self.switch, "link", "set", f"up{rack}", "down")

    def join(self, rack):
        run("ip", "-n", self.switch, "link", "set", f"up{rack}", "up")

    def counters(self):
        """Of each rack: bytes that left it, and that came in, by its uplink so far."""
        links = {link["ifname"]: link for link in json.loads(run("ip", "-n", self.switch, "-s", "-j", "link", "show"))}
        sent = lambda name: links[name]["stats64"]["tx"]["bytes"]
        return [(sent(f"up{number}"), sent(f"core{number}")) for number in range(len(self.racks))]

    def close(self):
        self.leave()
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.made = []
