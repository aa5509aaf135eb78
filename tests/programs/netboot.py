"""Boots the neighbour over the network: netboot.py ADDRESS CLIENT DIRECTORY

Answers DHCP (one client gets the address CLIENT and is told to load boot.ipxe), serves the files of
DIRECTORY by TFTP (RFC 1350 with the options blksize and tsize of RFC 2348 and 2349) and by HTTP, port 80.
Prints a line for every request.
"""

import http.server
import os
import socket
import struct
import sys
import threading

ADDRESS, CLIENT, DIRECTORY = sys.argv[1:4]
MAGIC = b"\x63\x82\x53\x63"


def say(line):
    print(line, flush=True)


def dhcp_options(packet):
    found, at = {}, 240
    while at < len(packet) and packet[at] != 255:
        if packet[at] == 0:
            at += 1
            continue
        length = packet[at + 1]
        found[packet[at]] = packet[at + 2 : at + 2 + length]
        at += 2 + length
    return found


def dhcp():
    box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    box.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
    box.bind(("", 67))
    ours = socket.inet_aton(ADDRESS)
    while True:
        packet = box.recv(2000)
        if len(packet) < 244 or packet[0] != 1 or packet[236:240] != MAGIC:
            continue
        asked = dhcp_options(packet).get(53)
        answer = {b"\x01": 2, b"\x03": 5}.get(asked)
        if answer is None:
            continue
        say(f"dhcp {'offer' if answer == 2 else 'ack'}")
        head = struct.pack("!BBBB4sHH", 2, 1, 6, 0, packet[4:8], 0, 0x8000)
        head += bytes(4) + socket.inet_aton(CLIENT) + ours + bytes(4)
        head += packet[28:44] + bytes(64) + b"boot.ipxe".ljust(128, b"\0") + MAGIC
        options = bytes([53, 1, answer, 54, 4]) + ours + bytes([51, 4, 0, 0, 14, 16])
        options += bytes([1, 4, 255, 255, 255, 0, 66, len(ADDRESS)]) + ADDRESS.encode()
        options += bytes([67, 9]) + b"boot.ipxe" + b"\xff"
        box.sendto((head + options).ljust(300, b"\0"), ("255.255.255.255", 68))


def tftp_file(peer, words):
    name, options = os.path.basename(words[0].decode()), dict(zip(words[2::2], words[3::2]))
    box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.settimeout(1)
    try:
        data = open(os.path.join(DIRECTORY, name), "rb").read()
    except OSError:
        box.sendto(b"\0\x05\0\x01no such file\0", peer)
        return
    say(f"tftp {name}")
    size = min(int(options.get(b"blksize", 512)), 1400)

    def reliably(message, block):
        for _ in range(20):
            box.sendto(message, peer)
            try:
                while box.recv(600)[:4] != struct.pack("!HH", 4, block):
                    pass
                return True
            except socket.timeout:
                continue
        return False

    if b"blksize" in options or b"tsize" in options:
        offer = b"\0\x06"
        if b"blksize" in options:
            offer += b"blksize\0%d\0" % size
        if b"tsize" in options:
            offer += b"tsize\0%d\0" % len(data)
        if not reliably(offer, 0):
            return
    for block in range(len(data) // size + 1):
        number = (block + 1) & 0xFFFF
        part = data[block * size : (block + 1) * size]
        if not reliably(struct.pack("!HH", 3, number) + part, number):
            return


def tftp():
    box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.bind(("", 69))
    while True:
        packet, peer = box.recvfrom(2000)
        if packet[:2] == b"\0\x01":
            words = packet[2:].split(b"\0")
            threading.Thread(target=tftp_file, args=(peer, words), daemon=True).start()


class Files(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
        super().__init__(*args, directory=DIRECTORY)

    def log_message(self, _format, *args):
        say("http " + str(args[0]))


for serve in (dhcp, tftp):
    threading.Thread(target=serve, daemon=True).start()
server = http.server.ThreadingHTTPServer(("", 80), Files)
say("serving")
server.serve_forever()
