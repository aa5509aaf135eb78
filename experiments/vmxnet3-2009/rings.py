#!/usr/bin/env python3
"""Does the size of its rings decide how fast a guest sends? One lab, whose guest's rings change from run to run.

    rings.py VMLANE [ROUNDS] >> rings.jsonl

One guest with a VMXNET3 card sends 64 KiB messages, five sessions, to a test host behind an uplink, ROUNDS (10) times with
each of four sets of rings, which take turns: the driver's own, a small receive ring, a small transmit ring, both small. So
they share a boot, which the rows of the plan do not. A row a run, with the CPU seconds of the guest's process."""
import json
import os
import signal
import subprocess
import sys

VMLANE = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 10
NAME = "rings"
RINGS = {"driver's": (1024, 512), "small rx": (256, 512), "small tx": (1024, 256), "both small": (256, 256)}
SECONDS = 3


def lab(*words):
    done = subprocess.run([VMLANE, "lab", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"vmlane lab {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def in_guest(line):
    return lab("exec", NAME, "a", "--", "sh", "-c", line)


def processes(*parts):
    """Those that have all of these in their command lines."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{entry}/cmdline").read().replace("\0", " ")
        except OSError:
            continue
        if all(part in words for part in parts):
            found.append(int(entry))
    return found


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    lab("up", NAME, "--guests", "1", "--device", "vmxnet3", "--uplink")
    words = [VMLANE, "lab", "exec", NAME, "host", "--", VMLANE, "bench", "server", "--listen", "tcp:0.0.0.0"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        [pid] = processes("qemu-system", f"/{NAME}/")
        for number in range(1, ROUNDS + 1):
            for name, (rx, tx) in RINGS.items():
                in_guest(f"ethtool -G eth0 rx {rx} tx {tx} || true; until ping -c1 -W1 10.77.0.254 >/dev/null; do :; done")
                shown = in_guest("ethtool -g eth0 | awk '/^Current/ {on=1} on && /^(RX|TX):/ {print $2}'").split()
                before = cpu_seconds(pid)
                report = json.loads(in_guest(
                    f"vmlane bench stream --to tcp:10.77.0.254 -m 64k -s 256k -S 256k -n 5 -l {SECONDS} --warmup 0.3 --json"))
                used = cpu_seconds(pid) - before
                row = {"round": number, "rings": name, "set": shown, "bps": report["throughput_bps"], "guest_cpu_seconds": round(used, 2)}
                print(json.dumps(row), flush=True)
    finally:
        server.kill()
        for pid in processes(f"{VMLANE} bench server"):
            os.kill(pid, signal.SIGTERM)
        lab("down", NAME)


main()
