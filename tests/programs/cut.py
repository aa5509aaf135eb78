"""A VMM that takes its guest's memory away: the VMXNET3 device behind its socket reads what is no longer there.

  cut.py SOCKET MIB    gives the device a sparse file of so many MiB, cuts it short, and has the device read it

Says whether the daemon has ended the session, as it should.
"""
import os
import socket
import struct
import sys

import vs

VERSION, DMA_MAP, REGION_WRITE = 1, 2, 10
REGISTERS, CONFIG = 1, 7
MEMORY_AND_MASTER = 6
SHARED_LOW, SHARED_HIGH, COMMAND, ACTIVATE = 0x10, 0x18, 0x20, 0xCAFE0000


def answer(sock, count):
    """None: the connection has ended."""
    data = b""
    while len(data) < count:
        try:
            part = sock.recv(count - len(data))
        except ConnectionResetError:
            part = b""
        if not part:
            return None
        data += part
    return data


def request(sock, command, payload, files=()):
    try:
        head = struct.pack("<HHIII", 1, command, 16 + len(payload), 0, 0)
        socket.send_fds(sock, [head + payload], files)
    except (BrokenPipeError, ConnectionResetError):
        return False
    head = answer(sock, 16)
    if head is None:
        return False
    _, _, size, flags, error = struct.unpack("<HHIII", head)
    vs.check(flags & 0x20 == 0, f"command {command}: error {error}")
    return answer(sock, size - 16) is not None


def write(sock, region, offset, value):
    return request(sock, REGION_WRITE, struct.pack("<QIII", offset, region, 4, value))


def cut(path, mib):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(path)
    request(sock, VERSION, struct.pack("<HH", 0, 0) + b'{"capabilities":{"max_msg_fds":8}}\0')
    file = os.memfd_create("guest")
    os.truncate(file, mib << 20)
    request(sock, DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, mib << 20), [file])
    os.truncate(file, 0)
    write(sock, CONFIG, 4, MEMORY_AND_MASTER)
    for offset, value in [(SHARED_LOW, 0x10000), (SHARED_HIGH, 0), (COMMAND, ACTIVATE)]:
        write(sock, REGISTERS, offset, value)
    while sock.recv(4096):
        pass


if __name__ == "__main__":
    try:
        cut(sys.argv[1], int(sys.argv[2]))
    except ConnectionResetError:
        pass
    vs.say('{"ended": true}')
