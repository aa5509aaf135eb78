"""vSockets as Python has them, with the one thing it leaves out: the flag in the address.

Kernels from 7.1 on send a connect to a CID above 2 to the hypervisor only when the address says so.
"""
import ctypes
import errno
import hashlib
import json
import os
import signal
import socket
import struct
import time

TO_HOST = 1
BUFFER_SIZE, BUFFER_MIN, BUFFER_MAX, CONNECT_TIMEOUT = 0, 1, 2, 6
LIBC = ctypes.CDLL(None, use_errno=True)
# A Linux listener with VMCI gives each handshake one second, and refuses it then. What is refused sooner is refused.
LATE = 0.9


def stream(kind=socket.SOCK_STREAM):
    """A socket that is patient: the kernel's own limit for a connect is two seconds."""
    sock = socket.socket(socket.AF_VSOCK, kind)
    # Python takes only integers for options of this family.
    minute = struct.pack("qq", 60, 0)
    check(LIBC.setsockopt(sock.fileno(), socket.AF_VSOCK, CONNECT_TIMEOUT, minute, len(minute)) == 0, "no patience")
    return sock


def buffers(sock, size, largest=262144):
    """Asks for rings of `size` bytes; the limits move first, as the kernel clamps to them."""
    for option, value in ((BUFFER_MAX, max(size, largest)), (BUFFER_MIN, min(size, 128)), (BUFFER_SIZE, size)):
        sock.setsockopt(socket.AF_VSOCK, option, value)


def connect(sock, cid, port, to_host=False):
    if not to_host:
        return sock.connect((cid, port))
    address = struct.pack("=HHIIB3x", socket.AF_VSOCK, 0, port, cid, TO_HOST)
    if LIBC.connect(sock.fileno(), address, len(address)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def late(error, begun):
    """Was a connect that began then refused because its handshake took too long?"""
    return error == errno.ECONNRESET and time.monotonic() - begun >= LATE


def connected(cid, port, to_host=False, size=None, again=10, missed=None):
    """A connection; asked for again, so many times at most, where it came too late. `missed` takes a mark each time."""
    while True:
        sock, begun = stream(), time.monotonic()
        if size is not None:
            buffers(sock, size)
        try:
            connect(sock, cid, port, to_host)
            return sock
        except OSError as error:
            sock.close()
            if again == 0 or not late(error.errno, begun):
                raise
            again -= 1
            if missed is not None:
                missed.append(port)


def listening(port, size=None, largest=262144, backlog=512):
    sock = stream()
    if size is not None:
        buffers(sock, size, largest)
    sock.bind((socket.VMADDR_CID_ANY, port))
    sock.listen(backlog)
    return sock


def terminated():
    """A list that is empty until SIGTERM."""
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    return told


def say(*words):
    print(*words, flush=True)


def result(**figures):
    say(json.dumps(figures))


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def recv_exactly(sock, count):
    parts = []
    while count > 0:
        part = sock.recv(min(count, 1 << 20))
        check(part, f"the stream ended {count} bytes early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def recv_all(sock):
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def digest(data):
    return hashlib.sha256(data).hexdigest()
