"""Which cards get the frames of which others; and a guest's cards under the names that udev gives them.

    reach.py name              renames the cards and sets them up; prints name, address and driver of each as a list, in
                               the order of the bus
    reach.py take              prints "listening", then a line for each frame that is new: by whom, to which address, at
                               which interface it came
    reach.py give GUEST MAC... sends from each interface a frame to all and one to each of the addresses

No udev runs in the guest. The names are those of its rules: after the slot that has the card's address, or else after
the place on the bus.
"""
import json
import os
import socket
import subprocess
import sys

TYPE = 0x88b5
ALL = "ff:ff:ff:ff:ff:ff"
CARDS = "/sys/class/net"
SLOTS = "/sys/bus/pci/slots"


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read().strip()


def place(card):
    """Its address on the PCI bus."""
    path = os.path.realpath(f"{CARDS}/{card}/device").split("/")
    return next(part for part in reversed(path) if part.count(":") == 2)


def name_of(address):
    for slot in os.listdir(SLOTS):
        if address.startswith(read(SLOTS, slot, "address") + "."):
            return f"ens{slot}"
    _, bus, device = address.split(":")
    return f"enp{int(bus, 16)}s{int(device.split('.')[0], 16)}"


def name():
    cards = sorted((place(card), card) for card in os.listdir(CARDS) if os.path.exists(f"{CARDS}/{card}/device"))
    shown = []
    for address, card in cards:
        new = name_of(address)
        subprocess.run(["ip", "link", "set", card, "name", new, "up"], check=True)
        driver = os.path.basename(os.path.realpath(f"{CARDS}/{new}/device/driver"))
        shown.append([new, read(CARDS, new, "address"), driver])
    print(json.dumps(shown))


def octets(mac):
    return bytes.fromhex(mac.replace(":", ""))


def give(guest, *macs):
    for card in sorted(set(os.listdir(CARDS)) - {"lo"}):
        own = read(CARDS, card, "address")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
            sock.bind((card, 0))
            for mac in (ALL, *macs):
                if mac != own:
                    head = octets(mac) + octets(own) + TYPE.to_bytes(2, "big")
                    sock.send((head + f"{guest}/{card}\0".encode()).ljust(60, b"\0"))


def take():
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE))
    print("listening", flush=True)
    seen = set()
    while True:
        data, (card, *_) = sock.recvfrom(2048)
        arrival = (data[14:].split(b"\0")[0].decode(), data[:6].hex(":"), card)
        if arrival not in seen:
            seen.add(arrival)
            print(*arrival, flush=True)


{"name": name, "take": take, "give": give}[sys.argv[1]](*sys.argv[2:])
