#!/usr/bin/env python3
"""What strangers cost who have no key: a cluster that requires keys, and thousands of connections to its manager and its meta that stand still in
every state of a handshake, and come again as they are closed.

Prints the memory that the two servers take more, at most, and the p99 of a client's calls beside that without strangers, in turns. Ends by itself, ends
only what it started.
Usage: CAIRN=target/release/cairn bench/strangers.py [STRANGERS] [ROUNDS] [DIRECTORY]
"""
import os, resource, selectors, shutil, socket, ssl, statistics, sys, tempfile, threading, time
from cluster import Cluster

STRANGERS = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
PLACE = sys.argv[3] if len(sys.argv) > 3 else None


def first_message():
    """What a client of TLS sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["cairn-private/1"])
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


HELLO = first_message()
# A record and a message that never end; nothing, one byte, all but one, all of a first message; a frame of Cairn's that stops.
ENDLESS = bytes([0x16, 3, 1, 0x40, 0, 1, 0xFF, 0xFF, 0xFF]) + bytes(16 << 10)
STATES = [b"", HELLO[:1], HELLO[:-1], HELLO, ENDLESS, b"CRN"]


class Strangers(threading.Thread):
    """So many connections, each opened again when it is closed."""

    def __init__(self, addresses, count):
        super().__init__(daemon=True)
        self.addresses, self.count = addresses, count
        self.opened, self.over = 0, threading.Event()

    def open(self, selector):
        host, port = self.addresses[self.opened % len(self.addresses)].rsplit(":", 1)
        state = STATES[self.opened % len(STATES)]
        self.opened += 1
        stream = socket.socket()
        stream.setblocking(False)
        # Strangers have addresses of their own, eight of them.
        stream.bind((f"127.0.1.{1 + self.opened % 8}", 0))
        stream.connect_ex((host, int(port)))
        selector.register(stream, selectors.EVENT_WRITE, state)

    def run(self):
        # Strangers have processors of their own: theirs are those that nobody else wants.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with selectors.DefaultSelector() as selector:
            for _ in range(self.count):
                self.open(selector)
            while not self.over.is_set():
                for key, events in selector.select(0.2):
                    stream, state = key.fileobj, key.data
                    try:
                        if events & selectors.EVENT_WRITE:
                            if state:
                                stream.send(state)
                            selector.modify(stream, selectors.EVENT_READ, b"")
                            continue
                        if stream.recv(65536):
                            continue
                    except BlockingIOError:
                        continue
                    except OSError:
                        pass
                    selector.unregister(stream)
                    stream.close()
                    self.open(selector)
            for key in list(selector.get_map().values()):
                key.fileobj.close()


def p99(cluster):
    rows = cluster.bench_meta("default", 4, 1, "--seconds", "5", "--operations", "create,stat")
    return {row["what"]: row["p99_us"] for row in rows}


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, STRANGERS + 1000)), hard))
    root = tempfile.mkdtemp(prefix="cairn-bench-", dir=PLACE)
    cluster = None
    try:
        cluster = Cluster(root, datas=1, protection="authenticated")
        cluster.volume("default", 1)
        addresses = [cluster.address, cluster.ready("meta")[0]]
        p99(cluster)
        more, alone, beside, opened = {"manager": 0, "meta": 0}, {}, {}, 0
        for _ in range(ROUNDS):
            for what, value in p99(cluster).items():
                alone.setdefault(what, []).append(value)
            # Without calls: what a client makes takes memory, too.
            before = {name: cluster.resident_bytes(name) for name in more}
            strangers = Strangers(addresses, STRANGERS)
            strangers.start()
            while strangers.opened < STRANGERS:
                time.sleep(0.1)
            for _ in range(20):
                time.sleep(0.1)
                for name in more:
                    more[name] = max(more[name], cluster.resident_bytes(name) - before[name])
            for what, value in p99(cluster).items():
                beside.setdefault(what, []).append(value)
            strangers.over.set()
            strangers.join()
            opened += strangers.opened
        print(f"{STRANGERS} strangers at a time, {opened} connections in {ROUNDS} rounds")
        for name in more:
            print(f"{name}: {more[name] / (1 << 20):.1f} MiB more")
        for what in alone:
            quiet, crowded = statistics.median(alone[what]), statistics.median(beside[what])
            print(f"{what}: p99 {quiet:.0f} µs alone, {crowded:.0f} µs beside them, {crowded / quiet:.2f} times")
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


main()
