"""A hostile guest: causes harm as fast as it can, until it is ended.

  hostile.py frames INTERFACE    broadcasts, frames to unknown and from forged addresses, runts and long ones
  hostile.py vmci                connects, datagrams and half-made streams to every CID, wanted or not
  hostile.py connects PORT CID...   connects to servers that listen, and leaves at once
  hostile.py scatter ADDRESS     datagrams in pieces of one byte, each in a page of its own: a descriptor a byte
  hostile.py resets INTERFACE    takes its card down and up: tables and rings made anew each time
  hostile.py busy                only uses its processor: what others lose to that is not the network's doing

Says "at it" once it has begun.
"""
import fcntl
import itertools
import mmap
import os
import socket
import struct
import sys

import vs

SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


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


def connects(port, *cids):
    vs.say("at it")
    for cid in itertools.cycle(int(cid) for cid in cids):
        sock = vs.stream()
        try:
            vs.connect(sock, cid, int(port))
        except OSError:
            pass
        sock.close()


def scatter(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    sock.connect((address, 9))
    memory = memoryview(mmap.mmap(-1, 16 << 12))
    memory[:] = b"x" * len(memory)
    pieces = [memory[page << 12 : (page << 12) + 1] for page in range(16)]
    sock.sendmsg(pieces, [], MSG_ZEROCOPY)
    vs.say("at it")
    while True:
        try:
            sock.sendmsg(pieces, [], MSG_ZEROCOPY)
        except OSError:
            # A port that is closed answers so, and so do sends whose notices have not been read.
            notices(sock)


def notices(sock):
    try:
        while True:
            sock.recvmsg(1, 1024, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        pass


def resets(interface):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16s24x", interface.encode())
    flags = struct.unpack_from("16xH", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[0]
    vs.say("at it")
    while True:
        for now in (flags & ~IFF_UP, flags | IFF_UP):
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", interface.encode(), now))


def busy():
    vs.say("at it")
    while True:
        pass


if __name__ == "__main__":
    attacks = (frames, vmci, connects, scatter, resets, busy)
    {attack.__name__: attack for attack in attacks}[sys.argv[1]](*sys.argv[2:])
