"""Cases: readiness, low-water marks, sockets that do not block, peeking."""
import errno
import os
import select
import socket
import threading
import time

import vs
from ends import BLOCK, fails, far, go, near, ready, wait_go


@far
def far_readiness(sock):
    wait_go(sock)
    time.sleep(0.5)
    sock.sendall(b"x" * 10)
    wait_go(sock)


@near
def near_readiness(dial):
    sock = dial("readiness")
    vs.check(ready(sock, select.POLLIN | select.POLLOUT, 30) == select.POLLOUT, "a fresh stream is writable")
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    vs.check(not epoll.poll(0), "epoll before any byte")
    go(sock)
    vs.check(epoll.poll(60)[0][1] & select.EPOLLIN, "epoll wakes for bytes")
    vs.check(ready(sock, select.POLLIN, 30) == select.POLLIN, "poll sees them")
    vs.check(vs.recv_exactly(sock, 10) == b"x" * 10, "the bytes")
    vs.check(ready(sock, select.POLLIN, 0) == 0, "nothing is left")
    go(sock)
    vs.check(epoll.poll(60)[0][1] & (select.EPOLLRDHUP | select.EPOLLIN), "epoll wakes for the end")
    vs.check(ready(sock, select.POLLIN | select.POLLRDHUP, 30) & select.POLLIN, "the end is readable")
    vs.check(sock.recv(1) == b"", "the end")


@far
def far_low_water(sock):
    for part in (999, 1, 99_000, 1000):
        wait_go(sock)
        sock.sendall(BLOCK[:part])
    for _ in range(60):
        time.sleep(0.02)
        sock.sendall(BLOCK[:1000])
    wait_go(sock)


@near
def near_low_water(dial):
    sock = dial("low_water")
    for mark in (1000, 100_000):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        # Before 6.2 the kernel's poll takes one byte for enough; its recv keeps the mark.
        keeps = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 2)
        go(sock)
        early = ready(sock, select.POLLIN, 1)
        vs.check(early == 0 or not keeps, f"readable one byte below the mark {mark}")
        go(sock)
        vs.check(ready(sock, select.POLLIN, 60) == select.POLLIN, f"not readable at the mark {mark}")
        vs.check(len(vs.recv_exactly(sock, mark)) == mark, "the bytes")
    # Bytes that trickle in behind the one notice of a ring that was empty.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 60_000)
    # Poll first: a recv of 6.2 and later that took some bytes below the mark waits for a whole mark
    # more, as the kernel wakes it for no less.
    vs.check(ready(sock, select.POLLIN, 60) == select.POLLIN, "not readable after a trickle")
    vs.check(len(sock.recv(60_000)) == 60_000, "recv returned below its mark")
    go(sock)


@near
def near_nonblocking(dial):
    for _ in range(60):
        sock, begun = vs.stream(), time.monotonic()
        sock.setblocking(False)
        fails(errno.EINPROGRESS, sock.connect, (dial.cid, dial.port))
        vs.check(ready(sock, select.POLLOUT, 60) & select.POLLOUT, "connected")
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not vs.late(error, begun):
            break
        sock.close()
    vs.check(error == 0, f"a connect: {errno.errorcode.get(error, error)}")
    sock.send(b"drain".ljust(16))
    fails(errno.EAGAIN, sock.recv, 1)
    sent = 0
    # Until no room comes for long: what the near ring held moves on to the far one first.
    while ready(sock, select.POLLOUT, 5):
        try:
            while True:
                sent += sock.send(BLOCK[:65536])
        except BlockingIOError:
            pass
    vs.check(sent >= 200_000, f"only {sent} bytes fit")
    fails(errno.EAGAIN, sock.send, b"x")
    # The far end starts to read: room comes, and with it the wake-up.
    sock.setblocking(True)
    helper = dial("wake")
    vs.check(ready(sock, select.POLLOUT, 60) & select.POLLOUT, "room does not wake the writer")
    sock.shutdown(socket.SHUT_WR)
    vs.check(int(vs.recv_exactly(sock, 8)) == sent, "the far end got another count")
    helper.close()
    refused = vs.stream()
    refused.setblocking(False)
    fails(errno.EINPROGRESS, refused.connect, (dial.cid, 4998))
    ready(refused, select.POLLOUT, 60)
    error = refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    vs.check(error == errno.ECONNRESET, f"a refused connect: {errno.errorcode.get(error, error)}")


WAKE = threading.Event()


@far
def far_drain(sock):
    WAKE.wait()
    WAKE.clear()
    sock.sendall(b"%08d" % len(vs.recv_all(sock)))


@far
def far_wake(_sock):
    WAKE.set()


@far
def far_peek(sock):
    sock.sendall(b"hello world")
    wait_go(sock)


@near
def near_peek(dial):
    sock = dial("peek")
    vs.check(ready(sock, select.POLLIN, 60), "readable")
    vs.check(sock.recv(5, socket.MSG_PEEK) == b"hello", "a peek at the beginning")
    vs.check(sock.recv(5, socket.MSG_PEEK) == b"hello", "a peek took bytes")
    vs.check(sock.recv(64, socket.MSG_PEEK) == b"hello world", "a peek at all of it")
    vs.check(sock.recv(6) == b"hello ", "then a read")
    vs.check(sock.recv(64, socket.MSG_PEEK) == b"world", "a peek behind it")
    vs.check(sock.recv(64) == b"world", "and the rest")
    go(sock)
