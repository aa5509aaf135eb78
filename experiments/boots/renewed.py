#!/usr/bin/env python3
"""What of a lab decides how fast it is: measures a lab again after nothing, its guests' kernels or its QEMUs are new.

    renewed.py VMLANE [LABS [RUNS]] >> renewed.jsonl

Each of LABS (8) labs is measured four times: as booted; once more, with nothing changed; after both guests were reset in
place, so with a new kernel in the same processes and pages; and after both QEMUs were ended and started anew, beside the
same daemon. A measurement is RUNS (6) runs of a second of each device and test, in turns. A row a run, and one a
measurement for what the guests and the host looked like then."""
import json
import subprocess
import sys
import time
from pathlib import Path

VMLANE = sys.argv[1]
LABS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
RUNS = int(sys.argv[3]) if len(sys.argv) > 3 else 6
NAME = "renewed"
GUESTS = ("a", "b")
BUFFERS = "-s 256k -S 256k"
TESTS = {
    ("vmxnet3", "stream"): f"stream --to tcp:10.77.0.2 -m 64k {BUFFERS}",
    ("vmci", "stream"): f"stream --to vsock:4 -m 64k {BUFFERS}",
    ("vmxnet3", "rr"): f"rr --to tcp:10.77.0.2 -r 1,1 {BUFFERS}",
    ("vmci", "rr"): f"rr --to vsock:4 -r 1,1 {BUFFERS}",
}


def lab(*words):
    done = subprocess.run([VMLANE, "lab", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"vmlane lab {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def in_guest(guest, line):
    return lab("exec", NAME, guest, "--", "sh", "-c", line)


def fixed_work():
    """Seconds that a loop takes on this host, which is fast at some times and slow at others."""
    begin = time.monotonic()
    total = 0
    for number in range(2_000_000):
        total += number * number
    return time.monotonic() - begin


def measure(number, renewed):
    ready = "/tmp/bench-server"
    in_guest("b", f"vmlane bench server --listen tcp:0.0.0.0 --listen vsock: >{ready} 2>&1 &"
                  f" until grep -q 'on vsock' {ready}; do sleep 0.1; done")
    clocks = [in_guest(guest, "cat /sys/devices/system/clocksource/clocksource0/current_clocksource").strip() for guest in GUESTS]
    work = [fixed_work()]
    for run in range(1, RUNS + 1):
        for (device, test), words in TESTS.items():
            report = json.loads(in_guest("a", f"vmlane bench {words} -l 1 --warmup 0.2 --json"))
            value = report["throughput_bps"] if test == "stream" else report["transactions_per_second"]
            row = {"lab": number, "after": renewed, "device": device, "test": test, "run": run, "value": value}
            print(json.dumps(row), flush=True)
        work.append(fixed_work())
    in_guest("b", "kill $(pidof vmlane | tr ' ' '\\n' | while read pid; do tr '\\0' ' ' </proc/$pid/cmdline"
                  " | grep -q 'bench server' && echo $pid; done)")
    print(json.dumps({"lab": number, "after": renewed, "clocks": clocks, "loop_seconds": work}), flush=True)


def main():
    for number in range(1, LABS + 1):
        lab("up", NAME, "--guests", "2", "--device", "vmci", "--device", "vmxnet3")
        try:
            measure(number, "boot")
            measure(number, "nothing")
            for guest in GUESTS:
                lab("reboot", NAME, guest, "--hard")
            measure(number, "guests")
            for guest in GUESTS:
                lab("kill", NAME, guest)
            for guest in GUESTS:
                lab("start", NAME, guest)
            measure(number, "processes")
        finally:
            lab("down", NAME)


if __name__ == "__main__":
    main()
