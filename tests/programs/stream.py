"""Long streams of random bytes that both ends sum up.

  stream.py take PORT                        takes streams until it is ended, a thread each
  stream.py give CID PORT SECONDS [to-host] [paced]
                                             gives for so long, or until SIGTERM, then compares checksums

`take` says how each stream ended: "whole COUNT", or "cut COUNT REASON". The result of `give` has the longest pause, in seconds,
between two parts that the taker received.
"""
import errno
import hashlib
import os
import socket
import sys
import threading
import time

import vs


# Characters of what a taker answers: the checksum, the pause.
SUM, PAUSE = 64, 12


def take_one(sock):
    total, digest, pause, last = 0, hashlib.sha256(), 0.0, time.monotonic()
    try:
        while part := sock.recv(1 << 16):
            now = time.monotonic()
            pause, last = max(pause, now - last), now
            digest.update(part)
            total += len(part)
        # A giver that is gone ends its stream as one that is done; only the latter takes an answer.
        sock.sendall(f"{digest.hexdigest()}{pause:0{PAUSE}.4f}".encode())
        vs.say("whole", total)
    except OSError as error:
        vs.say("cut", total, errno.errorcode.get(error.errno, error.errno))
    sock.close()


def take(port):
    listener = vs.listening(port)
    vs.say("listening")
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=take_one, args=(sock,), daemon=True).start()


def give(cid, port, seconds, to_host, paced):
    sock, enough = vs.connected(cid, port, to_host), vs.terminated()
    start, total, digest, told = time.monotonic(), 0, hashlib.sha256(), False
    try:
        # At least until data flows: the time limit counts from there.
        while not told or time.monotonic() - start < seconds and not enough:
            part = os.urandom(1 << 16)
            digest.update(part)
            sock.sendall(part)
            total += len(part)
            if paced:
                time.sleep(0.02)
            if not told and total >= 1 << 20:
                vs.say("moving")
                told = True
        sock.shutdown(socket.SHUT_WR)
        far = vs.recv_exactly(sock, SUM + PAUSE).decode()
    except (OSError, AssertionError) as error:
        vs.say("cut", total, errno.errorcode.get(getattr(error, "errno", None), "END"))
        sys.exit(3)
    vs.check(far[:SUM] == digest.hexdigest(), "the checksums differ")
    vs.result(bytes=total, seconds=round(time.monotonic() - start, 3), pause=float(far[SUM:]))


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(int(sys.argv[2]))
    else:
        give(*map(int, sys.argv[2:5]), to_host="to-host" in sys.argv, paced="paced" in sys.argv)
