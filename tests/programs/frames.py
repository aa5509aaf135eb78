"""Frames of every kind that a cable passes, and what arrives of them, byte for byte.

    frames.py take DEV NAME MODE         prints "listening", then what has come of NAME's frames
    frames.py give DEV NAME MODE MAC     sends them to the card that has the address MAC, prints them

NAME is a number that distinguishes runs. MODE: "groups", frames to group addresses, which the receiver has in its
card's filter; "all", any frame to a card in promiscuous mode. Both print a JSON object: by the frame's name, its bytes
as they are on a wire, in hexadecimal.
"""
import json
import os
import socket
import struct
import sys

ETH_P_ALL = 3
SOL_PACKET, ADD_MEMBERSHIP, AUXDATA = 263, 1, 8
MULTICAST, PROMISCUOUS = 0, 1
OUTGOING = 4
VLAN_VALID, TPID_VALID = 1 << 4, 1 << 6
# As long as no frame may follow another: the rest is lost then.
SILENCE = 20
FOREIGN = bytes.fromhex("020000000099")


def reserved(last):
    """A group address that bridges keep to themselves, or use."""
    return bytes.fromhex("0180c20000") + bytes([last])


# Destination, EtherType or length, the first bytes of the payload.
GROUPS = {
    "STP": (reserved(0x00), "0026", "424203 0000 00 00"),
    "PAUSE": (reserved(0x01), "8808", "0001 ffff"),
    "PFC": (reserved(0x01), "8808", "0101 00ff"),
    "LACP": (reserved(0x02), "8809", "01 01 01 14"),
    "OAM": (reserved(0x02), "8809", "03 0050 00"),
    "802.1X": (reserved(0x03), "888e", "02 01 0000"),
    "provider STP": (reserved(0x08), "0026", "424203 0000 02 02"),
    "LLDP": (reserved(0x0e), "88cc", "0207 04 525400770001"),
    "LLDP to bridges": (reserved(0x00), "88cc", "0207 04 525400770001"),
    "IS-IS": (reserved(0x14), "0026", "fefe03 83"),
    "MVRP": (reserved(0x21), "88f5", "00 01 02"),
    "CFM": (reserved(0x30), "8902", "60 01"),
    "CDP": (bytes.fromhex("01000ccccccc"), "0026", "aaaa03 00000c 2000"),
    "PTP": (bytes.fromhex("011b19000000"), "88f7", "00 02"),
    "PTP to peers": (reserved(0x0e), "88f7", "02 02"),
    "multicast": (bytes.fromhex("01005e010203"), "88b5", ""),
    "broadcast": (b"\xff" * 6, "88b5", ""),
}


def others(own, peer):
    """Destination, source, what is before the payload, the payload's length."""
    own_frames = {
        "MPLS": "8847 00064140", "MPLS multicast": "8848 00064140", "MACsec": "88e5 2c00", "PPPoE": "8864 1100",
        "EAPOL to a station": "888e 0201", "FCoE": "8906", "RoCE": "8915", "of no one": "ffff", "IPX": "0026 ffff",
        "VLAN 0, priority 5": "8100a000 88b5", "VLAN 1": "81000001 88b5", "VLAN 4094": "8100 0ffe 88b5",
        "VLAN 4095": "81000fff 88b5", "QinQ": "88a80064 810000c8 88b5", "S-tag": "88a8e064 88b5",
        "priority S-tag": "88a8a000 88b5", "two C-tags": "81000064 810000c8 88b5",
        "three tags": "88a80064 810000c8 8100012c 88b5", "old QinQ": "91000064 810000c8 88b5",
        "tagged MPLS": "8100 2064 8847 00064140", "tagged LLC": "81000064 0026 424203",
    }
    # A card may pad to 60 bytes what is shorter without its tag.
    frames = {name: (peer, own, head, 86) for name, head in own_frames.items()}
    ends = {"to a foreign address": (FOREIGN, own), "from a foreign address": (peer, FOREIGN), "back": (own, peer),
            "from a group": (peer, reserved(0x0e)), "from nowhere": (peer, bytes(6)), "to nowhere": (bytes(6), own),
            "to itself": (peer, peer)}
    frames |= {name: (to, by, "88b5", 46) for name, (to, by) in ends.items()}
    return frames | {f"{size} bytes": (peer, own, "88b5", size - 14) for size in (61, 300, 1500, 1514)}


def frames(mode, own, peer):
    """By their names."""
    if mode == "groups":
        return {name: (to, own, kind + head, 46) for name, (to, kind, head) in GROUPS.items()}
    return others(own, peer)


def marked(run, name):
    """What the payload begins with: which frame it is."""
    return b"vmlane frame %d: %s\0" % (run, name.encode())


def built(run, name, to, source, head, size):
    text = to + source + bytes.fromhex(head) + marked(run, name)
    length = max(size + 14, 60)
    return text + bytes(at % 251 for at in range(length - len(text)))


def own_address(device):
    with open(f"/sys/class/net/{device}/address") as file:
        return bytes.fromhex(file.read().strip().replace(":", ""))


def opened(device):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind((device, ETH_P_ALL))
    return sock


def give(device, run, mode, peer):
    sock, sent = opened(device), {}
    for name, parts in frames(mode, own_address(device), peer).items():
        sent[name] = built(run, name, *parts)
        sock.send(sent[name])
    return sent


def listen(sock, device, mode):
    """Puts into the card's filter what the frames are sent to."""
    index = socket.if_nametoindex(device)
    wanted = [(PROMISCUOUS, bytes(6))]
    if mode == "groups":
        wanted = [(MULTICAST, to) for to, _, _ in GROUPS.values() if to != b"\xff" * 6]
    for kind, address in wanted:
        sock.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("IHH8s", index, kind, 6, address))
    sock.setsockopt(SOL_PACKET, AUXDATA, 1)


def on_wire(data, control):
    """With the tag that the driver or the kernel has taken out."""
    for _, kind, aux in control:
        status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", aux[:20])
        if kind == AUXDATA and status & VLAN_VALID:
            tpid = tpid if status & TPID_VALID else 0x8100
            return data[:12] + struct.pack(">HH", tpid, tci) + data[12:]
    return data


def take(device, run, mode):
    sock, missing, taken = opened(device), set(frames(mode, bytes(6), bytes(6))), {}
    listen(sock, device, mode)
    sock.settimeout(SILENCE)
    print("listening", flush=True)
    begin = marked(run, "")[:-1]
    while missing:
        try:
            data, control, _, sender = sock.recvmsg(1 << 16, 64)
        except TimeoutError:
            break
        at = data.find(begin)
        if at < 0 or sender[2] == OUTGOING:
            continue
        name = data[at + len(begin):].split(b"\0")[0].decode()
        taken.setdefault(name, []).append(on_wire(data, control))
        missing.discard(name)
    # One that has come twice is two.
    return {name: b"|".join(copies) for name, copies in taken.items()}


def main(verb, device, run, mode, *peer):
    os.sched_setaffinity(0, {0})
    if verb == "give":
        shown = give(device, int(run), mode, bytes.fromhex(peer[0].replace(":", "")))
    else:
        shown = take(device, int(run), mode)
    print(json.dumps({name: data.hex() for name, data in shown.items()}))


main(*sys.argv[1:])
