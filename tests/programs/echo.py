"""Many connections at once, each echoing its own random bytes.

  echo.py serve PORT                        echoes for every client until it is ended
  echo.py burst CID PORT COUNT BYTES [to-host] [small]
                                            opens COUNT connections before any carries a byte

Linux refuses a connection that takes more than a second to establish; the client retries. `small` is for
guests that send the page numbers of their rings byte by byte, and for a daemon that may die: smaller rings, and a client
that is refused sooner also retries.
"""
import errno
import os
import selectors
import sys
import time

import vs

CHUNK = 1 << 16
SMALL = 1 << 16


class Far:
    """The server's end of one connection: what it has to send back still."""

    def __init__(self, sock):
        self.sock, self.kept, self.ended = sock, b"", False

    def turn(self, events):
        """Moves what fits; true when the connection is over."""
        if events & selectors.EVENT_READ and not self.kept and not self.ended:
            self.kept = self.sock.recv(CHUNK)
            self.ended = not self.kept
        if self.kept:
            try:
                self.kept = self.kept[self.sock.send(self.kept):]
            except BlockingIOError:
                pass
        return self.ended and not self.kept

    def wants(self):
        return selectors.EVENT_WRITE if self.kept else selectors.EVENT_READ


def serve(port):
    listener = vs.listening(port)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    vs.say("listening")
    while True:
        for key, events in selector.select():
            if key.data is None:
                sock, _ = listener.accept()
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ, Far(sock))
                continue
            try:
                over = key.data.turn(events)
            except OSError as error:
                vs.say("lost", error)
                over = True
            if over:
                selector.unregister(key.fileobj)
                key.fileobj.close()
            elif key.events != key.data.wants():
                selector.modify(key.fileobj, key.data.wants(), key.data)


class Near:
    """The client's end: sends its bytes, and compares what comes back as it comes."""

    def __init__(self, sock, data):
        self.sock, self.data, self.sent, self.back = sock, data, 0, 0

    def turn(self, events):
        if events & selectors.EVENT_WRITE and self.sent < len(self.data):
            try:
                self.sent += self.sock.send(self.data[self.sent:self.sent + CHUNK])
            except BlockingIOError:
                pass
        if events & selectors.EVENT_READ:
            part = self.sock.recv(CHUNK)
            vs.check(part, f"ended after {self.back} bytes")
            vs.check(part == self.data[self.back:self.back + len(part)], f"other bytes at {self.back}")
            self.back += len(part)
        return self.back == len(self.data)

    def wants(self):
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.sent < len(self.data) else 0)


def open_some(cid, port, count, to_host, small):
    """Every connect is under way before the first is waited for. Returns the sockets, and what failed."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        sock = vs.stream()
        if small:
            vs.buffers(sock, SMALL)
        sock.setblocking(False)
        try:
            vs.connect(sock, cid, port, to_host)
        except OSError as error:
            vs.check(error.errno == errno.EINPROGRESS, f"connect: {error}")
        selector.register(sock, selectors.EVENT_WRITE)
    socks, failed = [], []
    while len(socks) + len(failed) < count:
        for key, _ in selector.select():
            selector.unregister(key.fileobj)
            error = key.fileobj.getsockopt(vs.socket.SOL_SOCKET, vs.socket.SO_ERROR)
            if error:
                failed.append(errno.errorcode.get(error, error))
                key.fileobj.close()
            else:
                socks.append(key.fileobj)
    return socks, failed


def open_all(cid, port, count, to_host, small):
    socks, again, deadline = [], 0, time.monotonic() + 60
    while len(socks) < count:
        begun = time.monotonic()
        more, failed = open_some(cid, port, count - len(socks), to_host, small)
        late = time.monotonic() - begun >= vs.LATE and set(failed) <= {"ECONNRESET", "ETIMEDOUT"}
        more_time = (small or late) and time.monotonic() < deadline
        vs.check(not failed or more_time, f"of {count} connects failed: {failed}")
        socks += more
        again += len(failed)
    return socks, again


def burst(cid, port, count, length, to_host=False, small=False):
    start = time.monotonic()
    socks, again = open_all(cid, port, count, to_host, small)
    opened = time.monotonic()
    selector = selectors.DefaultSelector()
    # Each connection has bytes of its own out of one block: 200 blocks would not fit into a guest.
    block = memoryview(os.urandom(length + 997 * count))
    for number, sock in enumerate(socks):
        near = Near(sock, block[997 * number:997 * number + length])
        selector.register(sock, near.wants(), near)
    left = count
    while left:
        for key, events in selector.select():
            if key.data.turn(events):
                selector.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1
            elif key.events != key.data.wants():
                selector.modify(key.fileobj, key.data.wants(), key.data)
    end = time.monotonic()
    vs.result(connections=count, bytes=count * length, again=again,
              open_seconds=round(opened - start, 3), seconds=round(end - start, 3))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        burst(*map(int, sys.argv[2:6]), "to-host" in sys.argv, "small" in sys.argv)
