#!/usr/bin/env python3
"""Cairn's Hadoop file system beside HDFS, on this machine, in one run, in turns.

Starts HDFS (a NameNode, nine DataNodes) and Cairn (a manager, a meta, nine datas) on loopback, with their data below DIR, and for each a Java
program (Beside.java) that stays and works on demand. Prints medians of ROUNDS as a table: rates, CPU of servers and client, and the ratio of
the rates with the lowest and the highest round. Needs a JDK, Maven, `make release` and `make hadoop`. Ends by itself, ends only what it started.

Usage: bench/hadoop/beside.py [ROUNDS [MEGABYTES [FILES [DIR]]]]
  MEGABYTES: of each stream. FILES: of each of 128 threads."""
import glob, os, shutil, statistics, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from cluster import Cluster, free_ports

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
BYTES = (int(sys.argv[2]) if len(sys.argv) > 2 else 512) << 20
FILES = int(sys.argv[3]) if len(sys.argv) > 3 else 50
DIR = sys.argv[4] if len(sys.argv) > 4 else None
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..")
DATAS, THREADS = 9, 128
POLICY = "RS-6-3-1024k"
TICK = os.sysconf("SC_CLK_TCK")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def cpu_of(processes):
    """Seconds of CPU that live processes have used."""
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def configuration(path, values):
    properties = "".join(f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in values.items())
    with open(path, "w") as file:
        file.write(f"<configuration>\n{properties}</configuration>\n")


class Hdfs:
    """Real processes, as the scripts of Hadoop start them, but for ports that are free and small heaps."""

    def __init__(self, root, classpath):
        self.root, self.classpath, self.processes = root, classpath, []
        # The jars of Maven lack the pages of their HTTP servers, which look for them.
        for pages in ("hdfs", "datanode"):
            os.makedirs(f"{root}/conf/webapps/{pages}")
        shutil.copy(f"{root}/../log4j.properties", f"{root}/conf/")
        port, http = free_ports(2)
        self.uri = f"hdfs://127.0.0.1:{port}/"
        configuration(f"{root}/conf/core-site.xml", {"fs.defaultFS": self.uri, "hadoop.tmp.dir": f"{root}/tmp"})
        common = {"dfs.namenode.http-address": f"127.0.0.1:{http}", "dfs.namenode.name.dir": f"file://{root}/name",
                  "dfs.replication": "3", "dfs.permissions.enabled": "true", "dfs.namenode.safemode.extension": "0",
                  "dfs.namenode.fs-limits.min-block-size": "1048576", "dfs.namenode.handler.count": "64"}
        configuration(f"{root}/conf/hdfs-site.xml", common)
        self.java("org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-nonInteractive").wait()
        self.processes = [self.java("org.apache.hadoop.hdfs.server.namenode.NameNode", heap="1g")]
        for i in range(1, DATAS + 1):
            ports = free_ports(3)
            own = [f"dfs.datanode.data.dir=file://{root}/disks/{i}", f"dfs.datanode.address=127.0.0.1:{ports[0]}",
                   f"dfs.datanode.http.address=127.0.0.1:{ports[1]}", f"dfs.datanode.ipc.address=127.0.0.1:{ports[2]}"]
            options = [word for each in own for word in ("-D", each)]
            self.processes.append(self.java("org.apache.hadoop.hdfs.server.datanode.DataNode", *options, heap="512m"))
        report = ""
        for _ in range(120):
            if any(process.poll() is not None for process in self.processes):
                break
            report = subprocess.run(self.command("org.apache.hadoop.hdfs.tools.DFSAdmin", "-report"), capture_output=True, text=True).stdout
            if f"Live datanodes ({DATAS})" in report:
                break
            time.sleep(1)
        if f"Live datanodes ({DATAS})" not in report:
            self.stop()
            sys.exit(f"HDFS does not start: {self.logs()}")
        self.shell("-mkdir", "-p", "/r3", "/rs", "/names")
        for option in (["-enablePolicy", "-policy", POLICY], ["-setPolicy", "-path", "/rs", "-policy", POLICY]):
            run(*self.command("org.apache.hadoop.hdfs.tools.ECAdmin", *option))

    def command(self, name, *arguments, heap="512m"):
        return ["java", f"-Xmx{heap}", f"-Dhadoop.home.dir={self.root}", "-cp", f"{self.root}/conf:{self.classpath}", name, *arguments]

    def java(self, name, *arguments, heap="512m"):
        log = open(f"{self.root}/{name.rsplit('.', 1)[1]}-{len(self.processes)}.log", "w")
        return subprocess.Popen(self.command(name, *arguments, heap=heap), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def logs(self):
        """The last line of each server's log that names an exception."""
        found = []
        for path in sorted(glob.glob(f"{self.root}/*.log")):
            with open(path) as log:
                found += [f"{os.path.basename(path)}: {line}" for line in log if "Exception" in line][-1:]
        return "".join(found) or "no server says why"

    def shell(self, *arguments):
        run(*self.command("org.apache.hadoop.fs.FsShell", *arguments))

    def servers(self):
        return self.processes

    def client(self):
        return self.command("Beside", self.uri, heap="2g")

    def path(self, name):
        return f"/{name}"

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Cairn:
    def __init__(self, root, classpath, visible):
        self.root, self.classpath = root, classpath
        self.cluster = Cluster(root, heads=1, datas=DATAS)
        self.cluster.wait("/r3", "r3")
        self.cluster.wait("/rs", "rs-6-3")
        self.cluster.fs("mkdir", "/names")
        self.uri = f"cairn://{self.cluster.address}/"
        os.makedirs(f"{root}/conf")
        shutil.copy(f"{root}/../log4j.properties", f"{root}/conf/")
        values = {"fs.defaultFS": self.uri, "hadoop.tmp.dir": f"{root}/tmp"}
        if visible:
            values["fs.cairn.close.visible"] = "true"
        configuration(f"{root}/conf/core-site.xml", values)

    def command(self, name, *arguments, heap="512m"):
        return ["java", f"-Xmx{heap}", "-cp", f"{self.root}/conf:{self.classpath}", name, *arguments]

    def shell(self, *arguments):
        run(*self.command("org.apache.hadoop.fs.FsShell", *arguments))

    def servers(self):
        return self.cluster.processes.values()

    def client(self):
        return self.command("Beside", self.uri, heap="2g")

    def path(self, name):
        return f"/default/{name}"

    def stop(self):
        self.cluster.stop()


class Client:
    """The Java program, and what its work costs."""

    def __init__(self, system):
        self.system = system
        command = system.client()
        log = open(f"{system.root}/client.log", "w")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            sys.exit(f"the program for {self.system.uri} ended; see {self.system.root}/client.log")
        return line

    def work(self, *words):
        """Seconds, and seconds of CPU of servers and client."""
        before = cpu_of(self.system.servers())
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        took, own = map(float, self.answer().split())
        return took, cpu_of(self.system.servers()) - before + own

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def ls(system):
    """`hadoop fs -ls`, started anew as a person does."""
    before = os.times()
    began = time.monotonic()
    system.shell("-ls", system.path("names"))
    took = time.monotonic() - began
    after = os.times()
    return took, after.children_user + after.children_system - before.children_user - before.children_system


def works():
    """Name, what the client does, amount, unit, names of files or bytes."""
    gb, names = BYTES / 1e9, THREADS * FILES
    for layout in ("r3", "rs"):
        for streams in (1, 4):
            for what in ("write", "read"):
                yield f"{layout} {what}, {streams} stream{'s' if streams > 1 else ''}", (what, layout, streams, BYTES), gb * streams, "MB/s"
    for what in ("create", "stat", "rename", "delete"):
        yield f"{what}, {THREADS} threads", (what, "names", THREADS, FILES), names, "a second"


def measure(systems):
    clients = {name: Client(system) for name, system in systems.items()}
    taken = {}
    try:
        for turn in range(ROUNDS + 1):
            order = list(systems) if turn % 2 == 0 else list(reversed(systems))
            for name, words, amount, unit in works():
                for each in order:
                    what, directory, count, size = words
                    took, cpu = clients[each].work(what, systems[each].path(directory), count, size)
                    # The first round warms up.
                    if turn:
                        taken.setdefault((name, unit), {}).setdefault(each, []).append((amount / took, cpu / amount))
            for each in order:
                took, cpu = ls(systems[each])
                if turn:
                    taken.setdefault(("hadoop fs -ls", "commands a second"), {}).setdefault(each, []).append((1 / took, cpu))
            print(f"round {turn} of {ROUNDS}", file=sys.stderr, flush=True)
    finally:
        for client in clients.values():
            client.stop()
    return taken


def show(taken):
    print("| | HDFS | Cairn | beside it | Cairn, `close.visible` | beside it |\n|---|---|---|---|---|---|")
    for (name, unit), rows in taken.items():
        def cell(each):
            rate, cpu = (statistics.median(row[i] for row in rows[each]) for i in (0, 1))
            if unit == "MB/s":
                return f"{rate * 1000:,.0f} MB/s ({cpu:.2f} s/GB)"
            if unit == "a second":
                return f"{rate:,.0f} a second ({cpu * 1e6:,.0f} µs)"
            return f"{1 / rate:.2f} s ({cpu:.2f} s CPU)"

        def ratio(each):
            ratios = [ours[0] / theirs[0] for ours, theirs in zip(rows[each], rows["HDFS"])]
            cpus = statistics.median(ours[1] / theirs[1] for ours, theirs in zip(rows[each], rows["HDFS"]))
            return f"{statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f}), CPU {cpus:.2f} ×"

        print(f"| {name} | {cell('HDFS')} | {cell('Cairn')} | {ratio('Cairn')} | {cell('visible')} | {ratio('visible')} |")


def main():
    out = os.environ.get("CAIRN_HADOOP_OUT", os.path.join(TOP, "target", "hadoop"))
    jars = glob.glob(f"{out}/cairn-hadoop-*.jar")
    if len(jars) != 1:
        sys.exit(f"{out} has not the one jar of `make hadoop`")
    root = tempfile.mkdtemp(prefix="cairn-hadoop-beside-", dir=DIR)
    systems = {}
    try:
        with open(f"{root}/log4j.properties", "w") as file:
            file.write("log4j.rootLogger=WARN,stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\nlog4j.appender.stderr.target=System.err\n"
                       "log4j.appender.stderr.layout=org.apache.log4j.PatternLayout\nlog4j.appender.stderr.layout.ConversionPattern=%-5p %c{1}: %m%n\n")
        run("mvn", "--batch-mode", "--quiet", "--file", os.path.join(TOP, "hadoop", "apps", "pom.xml"), "-Phdfs", "dependency:build-classpath",
            f"-Dmdep.outputFile={root}/classpath")
        with open(f"{root}/classpath") as file:
            jars = f"{root}/classes:{jars[0]}:{file.read().strip()}"
        run("javac", "-nowarn", "-cp", jars, "-d", f"{root}/classes", os.path.join(HERE, "Beside.java"))
        for name, make in (("HDFS", Hdfs), ("Cairn", lambda root, jars: Cairn(root, jars, False)), ("visible", lambda root, jars: Cairn(root, jars, True))):
            os.makedirs(f"{root}/{name}")
            systems[name] = make(f"{root}/{name}", jars)
        show(measure(systems))
    finally:
        for system in systems.values():
            system.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
