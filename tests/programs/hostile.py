"""A hostile guest: causes harm as fast as it can, until it is ended.

  hostile.py frames INTERFACE    broadcasts, frames to unknown and from forged addresses, runts and long ones
  hostile.py vmci                connects, datagrams and half-made streams to every CID, wanted or not
  hostile.py busy                only uses its processor: what others lose to that is not the network's doing

Says "at it" once it has begun.
"""
import itertools
import os
import socket
import sys

import vs


def frames(interface):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((interface, 0))
    own = sock.getsockname()[4]
    broadcast, unknown, other = b"\xff" * 6, b"\x02absent"[:6], b"\x52\x54\x00\x00\x00\x03"
    heads = [broadcast + own, unknown + own, broadcast + other, unknown + unknown]
    sizes = [60, 60, 1514, 15]
    packets = [(head + b"\x88\xb5" + os.urandom(1500))[:size] for head in heads for size in sizes]
    vs.say("at it")
    for packet in itertools.cycle(packets):
        try:
            sock.send(packet)
        except OSError:
            # The ring is full: at once again.
            pass


def vmci():
    vs.say("at it")
    for number in itertools.count():
        for cid in (2, 3, 4, 5):
            sock = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.connect((cid, 1 + number % 9000))
            except OSError:
                pass
            # Gone before the answer is there.
            sock.close()
            sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
            sock.setblocking(False)
            try:
                sock.sendto(b"x" * (number % 4000), (cid, number % 9000))
            except OSError:
                pass
            sock.close()


def busy():
    vs.say("at it")
    while True:
        pass


if __name__ == "__main__":
    {"frames": frames, "vmci": vmci, "busy": busy}[sys.argv[1]](*sys.argv[2:])
