#!/usr/bin/env python3
"""Encoding-aware replication on a testbed: a network namespace for each node, racks whose uplinks are slow, and Cairn's own processes.

    sudo bench/ear/testbed.py --quick --out /tmp/ear        # some minutes; shows that it works
    sudo bench/ear/testbed.py k --runs 5 --out /tmp/ear     # one experiment; `all` for all of them

CAIRN names the binary (`target/release/cairn`). Tables go to standard output and OUT, CSV and SVG to OUT. What is made (namespaces, processes, a
directory below --dir) goes at the end, also after Ctrl-C and errors; the network of the machine is not touched. See docs/research/ear.md.
"""
import argparse, os, shutil, signal, sys
from experiments import a1, a2, oversubscription, udp
from jobs import a3
from network import missing
from whole import beside, columns, cost, racks

EXPERIMENTS = {
    "k": (a1, "A.1: throughput of encoding, k from 4 to 10, a node in each rack"),
    "udp": (udp, "A.1 beside UDP between racks"),
    "writes": (a2, "A.2: writes beside encoding, and encoding beside writes"),
    "jobs": (a3, "A.3: jobs before files are encoded"),
    "oversubscription": (oversubscription, "5 racks of 4 nodes, uplinks of 2:1 to 20:1"),
    "racks": (racks, "six racks, of which one is cut off before, while and after files are encoded"),
    "cost": (cost, "space, bytes across racks, throughput beside the disk's, processor time"),
    "beside": (beside, "what a stream of writes loses beside encoding"),
    "columns": (columns, "how even clients fill columns, and what is encoded together of it"),
}
QUICK = ("k", "racks")
#: Bytes that have to be free where clusters are made.
ROOM = 20 << 30


def size(text):
    units = {"k": 1 << 10, "m": 1 << 20}
    return int(text[:-1]) * units[text[-1].lower()] if text[-1].lower() in units else int(text)


def arguments():
    names = "\n".join(f"  {name:18}{about}" for name, (_, about) in EXPERIMENTS.items())
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"experiments:\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="`all`, or some of those below")
    parser.add_argument("--quick", action="store_true", help="fewer racks, points and runs; without EXPERIMENT: " + ", ".join(QUICK))
    parser.add_argument("--runs", type=int, default=None, help="runs of each setting (5; 1 with --quick)")
    parser.add_argument("--out", default="ear-testbed", help="directory for tables, CSV and SVG (%(default)s)")
    parser.add_argument("--dir", default="/var/tmp", help="where clusters are made; 20 GB free, no tmpfs (%(default)s)")
    parser.add_argument("--rate", type=float, default=25, help="Mb/s of a rack's uplink; of a node's link with several nodes in a rack (%(default)s)")
    parser.add_argument("--size", type=size, default=2 << 20, help="bytes of a block: one file (2m)")
    parser.add_argument("--per-column", type=int, default=2, help="blocks of each column in each rack (%(default)s)")
    parser.add_argument("--stage-rate", default="100m", help="stage_rate of the experiments with writers (%(default)s)")
    parser.add_argument("--k", type=int, default=None, help="only this k in experiment k")
    parser.add_argument("--policies", default="ear,rr,file", help="of ear, rr, file (%(default)s)")
    parser.add_argument("--logs", metavar="FILTER", help="keep the servers' logs in OUT/logs, such as info,cairn_meta::stage=debug,cairn_client::stage=debug")
    options = parser.parse_args()
    unknown = [name for name in options.experiments if name not in (*EXPERIMENTS, "all")]
    if unknown:
        parser.error(f"there is no experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)} and all")
    options.policies = options.policies.split(",")
    options.rate *= 1e6
    options.runs = options.runs or (1 if options.quick else 5)
    return options


def check(options):
    """Ends with what is missing."""
    options.cairn = os.path.realpath(os.environ.get("CAIRN", "target/release/cairn"))
    why = missing()
    if not os.access(options.cairn, os.X_OK):
        why = why or f"{options.cairn} is no program: build it (cargo build --release -p cairn), or name it with CAIRN"
    if not why and not os.path.isdir(options.dir):
        why = f"{options.dir} is no directory: name one with --dir"
    if not why and shutil.disk_usage(options.dir).free < ROOM:
        why = f"{options.dir} has less than 20 GB free: name another place with --dir"
    if why:
        sys.exit(f"testbed: {why}")


def tell(options, name, text):
    print(f"\n{text}\n", flush=True)
    with open(f"{options.out}/{name}.md", "w") as file:
        file.write(text + "\n")


def main():
    options = arguments()
    check(options)
    os.makedirs(options.out, exist_ok=True)
    options.out = os.path.realpath(options.out)
    options.say = lambda text: print(text, flush=True)
    options.tell = lambda name, text: tell(options, name, text)
    # So that what was made goes, whoever ends this; also where a shell has this in its background, which lets Ctrl-C pass.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("testbed: it was told to end"))
    chosen = options.experiments or (list(QUICK) if options.quick else ["all"])
    failed = 0
    for name in EXPERIMENTS if "all" in chosen else chosen:
        options.say(f"{name}: {EXPERIMENTS[name][1]}")
        # How many files could not be read as they were written, of experiments that look at that.
        failed += EXPERIMENTS[name][0](options) or 0
    if failed:
        sys.exit(f"testbed: {failed} files were not equal")


try:
    main()
except KeyboardInterrupt:
    sys.exit("testbed: interrupted; what it made is gone")
