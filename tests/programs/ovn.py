#!/usr/bin/env python3
"""Hosts of an OVN deployment, each in a network namespace: Open vSwitch with the datapath in user space, ovn-controller, and one
central ovn-northd with its databases.

    ovn.py DIRECTORY NAMESPACE...

Everything is in DIRECTORY and in the namespaces, which are made and removed. Prints "ready" once each host has its tunnel address.
Ends, and ends what it has started, at the end of standard input. A host's database is DIRECTORY/NAMESPACE/db.sock.
"""

import os
import signal
import subprocess
import sys
import time

OVS, OVN = "/usr/share/openvswitch", "/usr/share/ovn"
PATIENCE = 120
UNDERLAY = "192.0.2."

started = []


def run(*words, **options):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, timeout=PATIENCE, **options).stdout


def start(directory, words, namespace=None):
    """A process that stays in the foreground, and so is ended by its own id."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    environment = dict(os.environ, OVS_RUNDIR=directory, OVN_RUNDIR=directory, OVS_LOGDIR=directory, OVN_LOGDIR=directory)
    name = os.path.basename(words[0])
    log = open(os.path.join(directory, f"{name}.out"), "ab")
    process = subprocess.Popen(inside + words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    started.append(process)
    return process


def wait_for(what, is_so):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        for process in started:
            if process.poll() is not None:
                raise SystemExit(f"{process.args} ended with {process.returncode}; its log is beside its database")
        time.sleep(0.1)


def database(directory, name, schema):
    """A database server; its socket is NAME.sock."""
    file, socket = os.path.join(directory, f"{name}.db"), os.path.join(directory, f"{name}.sock")
    if not os.path.exists(file):
        run("ovsdb-tool", "create", file, schema)
    control = os.path.join(directory, f"{name}.ctl")
    start(directory, ["ovsdb-server", f"--remote=punix:{socket}", f"--unixctl={control}", "-vconsole:warn", file])
    wait_for(socket, lambda: os.path.exists(socket))
    return "unix:" + socket


def host(directory, namespace, number, southbound):
    os.makedirs(directory)
    db = database(directory, "db", f"{OVS}/vswitch.ovsschema")
    address = UNDERLAY + str(number)
    ids = [
        f"external_ids:system-id={namespace}",
        f"external_ids:ovn-remote={southbound}",
        "external_ids:ovn-encap-type=geneve",
        f"external_ids:ovn-encap-ip={address}",
        "external_ids:ovn-bridge-datapath-type=netdev",
    ]
    run("ovs-vsctl", f"--db={db}", "--no-wait", "init")
    run("ovs-vsctl", f"--db={db}", "--no-wait", "set", "Open_vSwitch", ".", *ids)
    control = os.path.join(directory, "vswitchd.ctl")
    start(directory, ["ovs-vswitchd", db, f"--unixctl={control}", "-vconsole:warn"], namespace)
    # Frames of tunnels leave through a bridge with an interface to the other hosts.
    bridge = ["add-br", "br-phy", "--", "set", "bridge", "br-phy", "datapath_type=netdev"]
    run("ovs-vsctl", f"--db={db}", "--timeout=60", *bridge, "--", "add-port", "br-phy", "under")
    inside = ["ip", "-n", namespace]
    run(*inside, "addr", "add", f"{address}/24", "dev", "br-phy")
    run(*inside, "link", "set", "br-phy", "mtu", "2000", "up")
    start(directory, ["ovn-controller", db, "-vconsole:warn"], namespace)


def main():
    directory, namespaces = sys.argv[1], sys.argv[2:]
    os.makedirs(directory, exist_ok=True)
    try:
        northbound = database(directory, "nb", f"{OVN}/ovn-nb.ovsschema")
        southbound = database(directory, "sb", f"{OVN}/ovn-sb.ovsschema")
        control = os.path.join(directory, "northd.ctl")
        start(directory, ["ovn-northd", f"--ovnnb-db={northbound}", f"--ovnsb-db={southbound}", f"--unixctl={control}", "-vconsole:warn"])
        for namespace in namespaces:
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        first, second = namespaces
        run("ip", "-n", first, "link", "add", "under", "mtu", "2000", "type", "veth", "peer", "name", "under", "netns", second, "mtu", "2000")
        for number, namespace in enumerate(namespaces, 1):
            run("ip", "-n", namespace, "link", "set", "under", "up")
            host(os.path.join(directory, namespace), namespace, number, southbound)
        listed = lambda: run("ovn-sbctl", f"--db={southbound}", "--bare", "--columns=name", "list", "chassis").split()
        wait_for("every host is a chassis", lambda: sorted(listed()) == sorted(namespaces))
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
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


main()
