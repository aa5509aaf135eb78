"""What two programs at any two CIDs expect of a stream between them.

    pairs.py serve PORT               prints "listening"
    pairs.py try CID PORT BYTES       runs everything against a server, prints a JSON object

Runs in guests, and on the host under `vmlane run`.
"""
import errno
import hashlib
import json
import os
import socket
import sys
import threading
import time

import vs

BLOCK = 64 << 10
MANY = 200
# Refused, or no such type of socket between these two.
NO_TYPE = {errno.ECONNRESET, errno.ENODEV, errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP}
ended = []


def both(sock, count):
    """`count` random bytes and their SHA-256 each way at once; True if what came is what was sent."""
    def send():
        digest = hashlib.sha256()
        for at in range(0, count, BLOCK):
            block = os.urandom(min(BLOCK, count - at))
            digest.update(block)
            sock.sendall(block)
        sock.sendall(digest.digest())

    sender = threading.Thread(target=send)
    sender.start()
    digest, left = hashlib.sha256(), count
    while left:
        block = sock.recv(min(BLOCK, left))
        assert block, f"the stream ends {left} bytes early"
        digest.update(block)
        left -= len(block)
    equal = vs.recv_exactly(sock, 32) == digest.digest()
    sender.join()
    sock.sendall(b"=" if equal else b"!")
    equal = equal and vs.recv_exactly(sock, 1) == b"="
    sock.shutdown(socket.SHUT_WR)
    return equal and vs.recv_all(sock) == b""


def serve_one(sock):
    word = b""
    while not word.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            return
        word += byte
    verb, _, number = word.decode().strip().partition(" ")
    if verb == "echo":
        sock.sendall(vs.recv_all(sock))
    elif verb == "both":
        both(sock, int(number))
        return
    elif verb == "count":
        sock.sendall(b"%d" % len(vs.recv_all(sock)))
    elif verb == "finish":
        # Says that it sends nothing more, and continues reading.
        sock.sendall(b"x")
        sock.shutdown(socket.SHUT_WR)
        ended.append(len(vs.recv_all(sock)))
    elif verb == "hold":
        sock.sendall(b"h")
        try:
            vs.recv_all(sock)
        except ConnectionError:
            pass
        ended.append(0)
    elif verb == "leave":
        sock.sendall(b"l")
    elif verb == "ended":
        sock.sendall(json.dumps(ended).encode())
    sock.close()


def serve(port):
    door = vs.listening(port, backlog=256)
    print("listening", flush=True)
    while True:
        sock, _ = door.accept()
        threading.Thread(target=serve_one, args=(sock,), daemon=True).start()


def wait_for(what, done):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def attempt(cid, port, count):
    late = []

    def ask(word):
        sock = vs.connected(cid, port, again=20, missed=late)
        sock.sendall(word + b"\n")
        return sock

    def ends():
        return json.loads(vs.recv_all(ask(b"ended")))

    start = time.monotonic()
    assert both(ask(b"both %d" % count), count), "checksums differ"
    seconds = time.monotonic() - start

    # Half-close, from either end.
    sock = ask(b"count")
    sock.sendall(bytes(100_000))
    sock.shutdown(socket.SHUT_WR)
    assert vs.recv_all(sock) == b"100000"
    before = len(ends())
    sock = ask(b"finish")
    assert vs.recv_all(sock) == b"x"
    sock.sendall(bytes(100_000))
    sock.shutdown(socket.SHUT_WR)
    wait_for("the server has read on after its half-close", lambda: ends()[before:] == [100_000])
    sock.close()

    # The server goes while it is written to.
    sock = ask(b"leave")
    assert vs.recv_exactly(sock, 1) == b"l"
    try:
        for _ in range(10_000):
            sock.sendall(bytes(BLOCK))
        raise AssertionError("the end of the server is not reported")
    except OSError as error:
        assert error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN), error
    sock.close()

    # The client is killed, in a process of its own.
    before = len(ends())
    child = os.fork()
    if child == 0:
        sock = ask(b"hold")
        vs.recv_exactly(sock, 1)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    wait_for("the server has heard of the killed client", lambda: len(ends()) == before + 1)

    # All are open before the first one is used, and then only a few at a time: a ring holds 128 packets, and a
    # connection whose receiver has no room for one within some seconds is reset.
    socks = list(enumerate([ask(b"echo") for _ in range(MANY)]))
    for first in range(0, MANY, 20):
        some = socks[first:first + 20]
        for number, sock in some:
            sock.sendall(b"%d" % number)
            sock.shutdown(socket.SHUT_WR)
        for number, sock in some:
            assert vs.recv_all(sock) == b"%d" % number, number
            sock.close()

    try:
        vs.connected(cid, port + 1000, again=0)
        raise AssertionError("a port without a listener accepted a connection")
    except ConnectionResetError:
        pass

    try:
        sock = vs.stream(socket.SOCK_SEQPACKET)
        sock.connect((cid, port))
        seqpacket = "connected"
    except OSError as error:
        assert error.errno in NO_TYPE, error
        seqpacket = errno.errorcode[error.errno]
    print(json.dumps({"mbit_per_s": 2 * 8 * count / seconds / 1e6, "seqpacket": seqpacket, "again": len(late)}))


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    attempt(*(int(word) for word in sys.argv[2:5]))
