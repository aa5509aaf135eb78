"""Sends bytes over TCP through an interface whose offloads are switched off: ADDRESS PORT MIB.

The kernel then cuts the stream to segments, each with its checksum, before the interface sees it. Prints the bytes'
SHA-256, and how many seconds they took.
"""
import array
import fcntl
import hashlib
import os
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
# ETHTOOL_STXCSUM, ETHTOOL_STSO (linux/ethtool.h): without checksums there is no segmentation either.
SETTINGS = [0x17, 0x1F]


def offloads_off(interface):
    control = socket.socket()
    for command in SETTINGS:
        value = array.array("B", struct.pack("II", command, 0))
        request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
        fcntl.ioctl(control, SIOCETHTOOL, request)


address, port, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
for name in names:
    if name.startswith("vl"):
        offloads_off(name)
block = os.urandom(1 << 20)
digest = hashlib.sha256()
for _ in range(mib):
    digest.update(block)
begun = time.monotonic()
stream = socket.create_connection((address, port))
for _ in range(mib):
    stream.sendall(block)
stream.shutdown(socket.SHUT_WR)
# The receiver closes once it has all of it.
stream.settimeout(300)
stream.recv(1)
print(digest.hexdigest(), time.monotonic() - begun)
