#!/usr/bin/env python3
"""Does a guest wait for the switch when it transmits? Times its sends with the switch's worker running, and with it stopped.

    transmit.py VMLANE [ROUNDS] >> transmit.jsonl

In each of three labs guest a sends bursts of BURST UDP datagrams to b, which fit in its transmit ring, and times each call of
send(). By turns, ROUNDS (4) times: all threads of the daemon run; the switch's threads, and only they, are stopped (by
ptrace) from before the burst until after it; with 64 bytes, the whole daemon is stopped, for PAUSE seconds at most. A row a burst:
the calls' times, and how many packets b received before and after the threads went on. Needs root."""
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

VMLANE = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
NAME = "transmit"
BURST = 200
PAUSE = 3
# Name, machine, cards (the first is in 10.77.0.0/24, the second in 10.78.0.0/24), the switch's mode. A worker that sleeps is
# rung by the guest, one that polls is not. QEMU's e1000 sends within the guest's register write, for comparison.
LABS = (
    ("QEMU", "q35", ("vmxnet3", "qemu-e1000"), "adaptive"),
    ("QEMU, polling", "q35", ("vmxnet3",), "poll"),
    ("User Mode Linux", "uml", ("vmxnet3",), "adaptive"),
)
SIZES = (64, 1400)
# The first datagrams go to the loopback, so that the program itself is warm, and are not counted.
SENDER = """
import json, socket, sys, time
address, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def burst(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # SO_SNDBUFFORCE: room for all of the burst.
    s.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)
    s.connect((address, 9000))
    data, clock, send, times = bytes(size), time.perf_counter_ns, s.send, []
    for _ in range(count):
        begin = clock()
        send(data)
        times.append(clock() - begin)
    return times
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("127.0.0.1", 9000))
burst("127.0.0.1")
print(json.dumps(burst(address)))
"""
# Of linux/ptrace.h; __WALL of waitpid(2).
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


def lab(*words):
    done = subprocess.run([VMLANE, "lab", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"vmlane lab {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def in_guest(guest, line):
    return lab("exec", NAME, guest, "--", "sh", "-c", line)


def ptrace(request, thread):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def switch_threads(daemon):
    """The threads that move frames."""
    names = {int(t): open(f"/proc/{daemon}/task/{t}/comm").read().strip() for t in os.listdir(f"/proc/{daemon}/task")}
    return [thread for thread, name in names.items() if name.startswith("switch")]


@contextmanager
def running(_daemon):
    yield


@contextmanager
def switch_stopped(daemon):
    threads = switch_threads(daemon)
    for thread in threads:
        ptrace(SEIZE, thread)
        ptrace(INTERRUPT, thread)
        os.waitpid(thread, WALL)
    try:
        yield
    finally:
        for thread in threads:
            ptrace(DETACH, thread)


@contextmanager
def daemon_stopped(daemon):
    os.kill(daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


STATES = {"running": running, "switch stopped": switch_stopped, "daemon stopped": daemon_stopped}


def states(card, size):
    if card != "vmxnet3":
        return ["running"]
    return [state for state in STATES if state != "daemon stopped" or size == SIZES[0]]


def received():
    """Packets that b's IP layer has received. Asks no card: a card's own counters come from the worker."""
    return int(in_guest("b", "awk '/^Ip:/ && ++n == 2 {print $4}' /proc/net/snmp"))


def burst(daemon, state, address, size):
    words = [VMLANE, "lab", "exec", NAME, "a", "--", "python3", "-c", SENDER, address, str(size), str(BURST)]
    before = received()
    with STATES[state](daemon):
        sender = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            sender.wait(PAUSE)
            during = received() - before
        except subprocess.TimeoutExpired:
            during = None
    calls = json.loads(sender.communicate()[0])
    times = sorted(calls)
    time.sleep(0.3)
    return {
        "median_us": times[len(times) // 2] / 1e3, "mean_us": round(sum(times) / len(times) / 1e3, 2),
        "max_us": times[-1] / 1e3, "first_us": calls[0] / 1e3, "over_1ms": sum(time > 1e6 for time in times),
        "ended_in_time": during is not None, "received_during": during, "received": received() - before,
    }


def measure(name, cards, daemon):
    for network in range(len(cards)):
        mac = in_guest("b", f"cat /sys/class/net/eth{network}/address").strip()
        in_guest("a", f"ip neigh replace 10.{77 + network}.0.2 lladdr {mac} dev eth{network} nud permanent")
    in_guest("b", "socat -u UDP-RECV:9000 /dev/null >/dev/null 2>&1 & sleep 0.5")
    for number in range(ROUNDS + 1):
        for network, card in enumerate(cards, 77):
            for size in SIZES:
                for state in states(card, size):
                    row = {"lab": name, "card": card, "bytes": size, "state": state, "round": number}
                    row |= burst(daemon, state, f"10.{network}.0.2", size)
                    if number > 0:  # In the first, QEMU translates the guest's code.
                        print(json.dumps(row), flush=True)


def main():
    for name, machine, cards, mode in LABS:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(f'[daemon]\nmode = "{mode}"\n')
            config.flush()
            words = [word for card in cards for word in ("--device", card)]
            up = lab("up", NAME, "--guests", "2", "--machine", machine, *words, "--daemon-config", config.name, "--json")
        try:
            measure(name, cards, json.loads(up)["daemon"]["pid"])
        finally:
            lab("down", NAME)


main()
