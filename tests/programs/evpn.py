#!/usr/bin/env python3
"""Hosts of an EVPN fabric, each in a network namespace: for each VLAN a bridge with a VXLAN interface, and FRR. (One bridge for
all VLANs would do as well; not every kernel that these tests run on has VLANs in bridges.)

    evpn.py DIRECTORY NAMESPACE...

Everything is in DIRECTORY and in the namespaces, which are made and removed. Prints "ready" once every host has its neighbours.
Ends, and ends what it has started, at the end of standard input. The bridge of VLAN 10 is br10, its tunnel vni10 with VNI 10010.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

FRR = "/usr/lib/frr"
PATIENCE = 120
UNDERLAY = "192.0.2."
VLANS = [10, 20]

started = []


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def start(directory, words, namespace):
    """A process that stays in the foreground, and so is ended by its own id."""
    log = open(os.path.join(directory, os.path.basename(words[0]) + ".out"), "ab")
    words = ["ip", "netns", "exec", namespace] + words
    started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))


def wait_for(what, is_so):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.1)


def configuration(name, address, others):
    neighbours = "".join(f" neighbor {other} peer-group fabric\n" for other in others)
    return f"""frr defaults datacenter
hostname {name}
router bgp 65000
 bgp router-id {address}
 no bgp default ipv4-unicast
 neighbor fabric peer-group
 neighbor fabric remote-as internal
{neighbours} address-family l2vpn evpn
  neighbor fabric activate
  advertise-all-vni
 exit-address-family
"""


def host(directory, namespace, fabric, number, count):
    os.makedirs(directory)
    inside = ["ip", "-n", namespace]
    address = UNDERLAY + str(number)
    run("ip", "-n", fabric, "link", "add", f"to{number}", "type", "veth", "peer", "name", "under", "netns", namespace)
    run("ip", "-n", fabric, "link", "set", f"to{number}", "master", "under", "up")
    run(*inside, "addr", "add", f"{address}/24", "dev", "under")
    run(*inside, "link", "set", "under", "up")
    for vlan in VLANS:
        bridge, tunnel, vni = f"br{vlan}", f"vni{vlan}", str(10000 + vlan)
        run(*inside, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
        run(*inside, "link", "add", tunnel, "type", "vxlan", "id", vni, "local", address, "dstport", "4789", "nolearning")
        run(*inside, "link", "set", tunnel, "master", bridge, "up")
        run("bridge", "-n", namespace, "link", "set", "dev", tunnel, "learning", "off")
        run(*inside, "link", "set", bridge, "up")
    others = [UNDERLAY + str(other) for other in range(1, count + 1) if other != number]
    file = os.path.join(directory, "frr.conf")
    with open(file, "w") as out:
        out.write(configuration(namespace, address, others))
    # They give up their rights, and keep their sockets here.
    shutil.chown(directory, "frr", "frr")
    own = ["-P", "0", "--vty_socket", directory, "-z", os.path.join(directory, "zserv.api")]
    for daemon in ["zebra", "bgpd"]:
        pid = os.path.join(directory, f"{daemon}.pid")
        start(directory, [f"{FRR}/{daemon}", "-f", file, "-i", pid] + own, namespace)
        wait_for(daemon, lambda: os.path.exists(os.path.join(directory, f"{daemon}.vty")))


def neighbours(directory):
    told = subprocess.run(["vtysh", "--vty_socket", directory, "-c", "show bgp l2vpn evpn summary json"], capture_output=True, text=True)
    peers = json.loads(told.stdout or "{}").get("peers", {})
    return sum(peer["state"] == "Established" for peer in peers.values())


def main():
    directory, namespaces = sys.argv[1], sys.argv[2:]
    fabric = namespaces[0] + "u"
    os.chmod(directory, 0o711)
    try:
        run("ip", "netns", "add", fabric)
        run("ip", "-n", fabric, "link", "add", "under", "type", "bridge")
        run("ip", "-n", fabric, "link", "set", "under", "up")
        for namespace in namespaces:
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        for number, namespace in enumerate(namespaces, 1):
            host(os.path.join(directory, namespace), namespace, fabric, number, len(namespaces))
        for namespace in namespaces:
            place = os.path.join(directory, namespace)
            wait_for("every host has its neighbours", lambda: neighbours(place) == len(namespaces) - 1)
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        for namespace in [*namespaces, fabric]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


main()
