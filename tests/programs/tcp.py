"""Long TCP streams of random bytes that both ends sum up.

  tcp.py take PORT                     takes streams until it is ended, a thread each
  tcp.py give ADDRESS PORT SECONDS     gives for so long, or until SIGTERM, then compares checksums

The result of `give` has the longest pause, in seconds, between two parts that the taker received.
"""
import hashlib
import json
import os
import socket
import sys
import threading
import time

import vs


def take_one(sock):
    total, digest, pause, last = 0, hashlib.sha256(), 0.0, time.monotonic()
    while part := sock.recv(1 << 16):
        now = time.monotonic()
        pause, last = max(pause, now - last), now
        digest.update(part)
        total += len(part)
    sock.sendall(json.dumps({"sum": digest.hexdigest(), "pause": round(pause, 4)}).encode())
    sock.close()
    vs.say("whole", total)


def take(port):
    listener = socket.create_server(("", port))
    vs.say("listening")
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=take_one, args=(sock,), daemon=True).start()


def give(address, port, seconds):
    sock, enough = socket.create_connection((address, port)), vs.terminated()
    start, total, digest, told = time.monotonic(), 0, hashlib.sha256(), False
    # At least until data flows: the time limit counts from there.
    while not told or time.monotonic() - start < seconds and not enough:
        part = os.urandom(1 << 16)
        digest.update(part)
        sock.sendall(part)
        total += len(part)
        if not told and total >= 1 << 20:
            vs.say("moving")
            told = True
    sock.shutdown(socket.SHUT_WR)
    text = b""
    while part := sock.recv(4096):
        text += part
    far = json.loads(text)
    vs.check(far["sum"] == digest.hexdigest(), "the checksums differ")
    vs.result(bytes=total, seconds=round(time.monotonic() - start, 3), pause=far["pause"])


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(int(sys.argv[2]))
    else:
        give(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
