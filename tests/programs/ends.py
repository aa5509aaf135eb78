"""Both ends of a case, side by side: what a near end does, and what answers it.

A connection's first 16 bytes name the function that serves it at the far end.
"""
import errno
import os
import select
import threading
import time
import traceback

import vs

BLOCK = os.urandom(1 << 20)
# The driver hands over at most 8696 pages a queue pair, headers included: 16.9 MiB a ring.
LARGEST = 4347 * 4096
FAR, NEAR = {}, {}


def far(function):
    FAR[function.__name__.removeprefix("far_")] = function


def near(function):
    NEAR[function.__name__.removeprefix("near_")] = function


def ready(sock, events, seconds):
    """What poll reports within so many seconds."""
    poll = select.poll()
    poll.register(sock, events)
    found = poll.poll(seconds * 1000)
    return found[0][1] if found else 0


def fails(number, function, *args):
    try:
        answer = function(*args)
    except OSError as error:
        vs.check(error.errno == number, f"{error}, not {errno.errorcode[number]}")
        return
    vs.check(False, f"returned {answer!r}, not {errno.errorcode[number]}")


def go(sock):
    sock.sendall(b"g")


def wait_go(sock):
    vs.check(vs.recv_exactly(sock, 1) == b"g", "another byte than the signal")


class Dial:
    """Opens connections to the far end; the first 16 bytes say which case they are for."""

    def __init__(self, cid, port, slow):
        self.cid, self.port, self.slow = cid, port, slow

    def connected(self, size):
        # A driver that names its rings' pages byte by byte may be late again and again on a busy machine. A ring
        # beyond its bound is refused always.
        again = 0 if (size or 0) > LARGEST else 60 if self.slow else 10
        return vs.connected(self.cid, self.port, size=size, again=again)

    def __call__(self, case, size=None):
        sock = self.connected(size)
        sock.settimeout(None)
        sock.sendall(case.encode().ljust(16))
        return sock


def answer(sock):
    case = vs.recv_exactly(sock, 16).decode().strip()
    try:
        FAR[case](sock)
    except BaseException:
        vs.say("failed", case, traceback.format_exc())
    sock.close()


def serve(port):
    listener = vs.listening(port, size=262144, largest=1 << 28)
    vs.say("listening")
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def run(cid, port, slow, cases):
    dial, done = Dial(cid, port, slow), []
    for name, function in NEAR.items():
        if cases and name not in cases:
            continue
        start = time.monotonic()
        try:
            note = function(dial)
        except BaseException as error:
            raise AssertionError(f"case {name}") from error
        done.append(f"{name} {time.monotonic() - start:.1f} s" + (f" ({note})" if note else ""))
    vs.result(cases=", ".join(done))
