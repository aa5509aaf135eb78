"""Datagrams of every size, each whole or refused.

  datagrams.py take PORT                 answers each datagram with its length and checksum
  datagrams.py give CID PORT [few]       sizes from 1 byte to the largest, and one more
  datagrams.py fails CID PORT EXPECTED   a datagram whose send must fail, such as with EHOSTUNREACH
"""
import errno
import os
import socket
import struct
import sys

import vs

# 68 KiB for a datagram, less the 24 bytes of its header.
LARGEST = 17 * 4096 - 24


def take(port):
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
    sock.bind((socket.VMADDR_CID_ANY, port))
    vs.say("listening")
    while True:
        data, sender = sock.recvfrom(1 << 20)
        sock.sendto(struct.pack("Q", len(data)) + vs.digest(data).encode(), sender)


def opened():
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
    sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
    return sock


def whole(sock, to, size):
    data = os.urandom(size)
    vs.check(sock.sendto(data, to) == size, f"{size} bytes were sent in part")
    answer, sender = sock.recvfrom(4096)
    vs.check(sender == to, f"an answer from {sender}")
    expected = struct.pack("Q", size) + vs.digest(data).encode()
    vs.check(answer == expected, f"{size} bytes arrived as {struct.unpack('Q', answer[:8])[0]}")


def flood(sock, to, count):
    """Many of changing sizes without waiting: none may be merged or cut, some may be refused."""
    sent, refused = {}, 0
    for number in range(count):
        data = os.urandom(1 + number * 997 % 9000)
        try:
            sock.sendto(data, to)
            sent[struct.pack("Q", len(data)) + vs.digest(data).encode()] = number
        except OSError as error:
            vs.check(error.errno in (errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN), f"a send failed: {error}")
            refused += 1
    back = 0
    try:
        while back < len(sent):
            # A guest that takes them in byte by byte may need long for the first.
            sock.settimeout(3 if back else 60)
            answer = sock.recv(4096)
            vs.check(answer in sent, "a datagram arrived that was never sent")
            back += 1
    except TimeoutError:
        pass  # a datagram may be lost at a full receiver, as UDP's
    sock.settimeout(None)
    return len(sent), refused, back


def give(cid, port, few):
    sock, to = opened(), (cid, port)
    sizes = [1, 2, 3, 23, 24, 25, 100, 4071, 4072, 4073, 4096, 8192, 32768, 65535, 65536, LARGEST - 1, LARGEST]
    if few:
        sizes = [1, 25, 4072, 4073, LARGEST]
    else:
        sizes += [1 + number * 7919 % LARGEST for number in range(40)]
    for size in sizes:
        whole(sock, to, size)
    try:
        sock.sendto(bytes(LARGEST + 1), to)
        vs.check(False, "one byte too many was sent")
    except OSError as error:
        vs.check(error.errno == errno.EMSGSIZE, f"one byte too many: {error}")
    whole(sock, to, 1)
    sent, refused, back = flood(sock, to, 30 if few else 300)
    vs.check(back > 0, "no datagram of many arrived")
    vs.result(sizes=len(sizes), largest=LARGEST, sent=sent, refused=refused, back=back)


def fails(cid, port, expected):
    try:
        opened().sendto(b"x", (cid, port))
        name = "sent"
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error))
    vs.check(name == expected, f"a datagram to {cid}:{port}: {name}, not {expected}")
    vs.result(error=name)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(int(sys.argv[2]))
    elif sys.argv[1] == "give":
        give(int(sys.argv[2]), int(sys.argv[3]), "few" in sys.argv)
    else:
        fails(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
