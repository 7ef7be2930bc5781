"""Traffic between racks that is not Cairn's: UDP that does not give way, and bytes that jobs shuffle."""
import ctypes, os, socket, threading, time

DATAGRAM = 1400
PORT = 9000


def socket_in(network, node, kind):
    """A socket in the network of a node. The calling thread is back in its own network then."""
    libc, here = ctypes.CDLL(None, use_errno=True), os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        with open(f"/run/netns/{network.space(node)}") as space:
            if libc.setns(space.fileno(), 0x4000_0000) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        try:
            return socket.socket(socket.AF_INET, kind)
        finally:
            libc.setns(here, 0x4000_0000)
    finally:
        os.close(here)


class Udp:
    """As long as it is entered: the first node of every other rack sends to that of the next one, six pairs at most."""

    def __init__(self, network, rate):
        self.network, self.rate, self.ended, self.threads, self.sockets = network, rate, threading.Event(), [], []

    def __enter__(self):
        firsts = [nodes[0] for nodes in self.network.racks]
        for source, target in list(zip(firsts[0::2], firsts[1::2]))[:6] if self.rate > 0 else []:
            sender, receiver = (socket_in(self.network, node, socket.SOCK_DGRAM) for node in (source, target))
            receiver.bind((self.network.address[target], PORT))
            sender.connect((self.network.address[target], PORT))
            self.sockets += [sender, receiver]
            self.threads.append(threading.Thread(target=self._send, args=(sender,), daemon=True))
            self.threads[-1].start()
        return self

    def _send(self, sender):
        payload, due = bytes(DATAGRAM), time.monotonic()
        while not self.ended.is_set():
            due += DATAGRAM * 8 / self.rate
            if due > time.monotonic() + 0.002:
                time.sleep(due - time.monotonic())
            try:
                sender.send(payload)
            except OSError:
                # Nobody takes it, or the queue is full: it is lost, as UDP is.
                pass

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        for each in self.sockets:
            each.close()


def shuffle(network, source, target, count):
    """Sends so many bytes from one node to another by TCP; returns when all arrived."""
    listener, sender = (socket_in(network, node, socket.SOCK_STREAM) for node in (target, source))
    with listener, sender:
        listener.bind((network.address[target], 0))
        listener.listen(1)
        def send():
            sender.connect(listener.getsockname())
            block, rest = bytes(65536), count
            while rest > 0:
                rest -= sender.send(block[: min(rest, len(block))])
            sender.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        taken, _ = listener.accept()
        with taken:
            while taken.recv(65536):
                pass
        thread.join()
