"""What faults need in a guest beyond its own tools: `guest.py COMMAND ARGUMENTS`. Runs under python3 alone."""

import ctypes
import os
import random
import signal
import socket
import struct
import sys
import time

# --- nftables over netlink, because guests have the kernel's part of it and no `nft` -----------------------

NESTED = 0x8000
TABLE = b"chance\0"


def attribute(kind, value):
    value = struct.pack(">I", value) if isinstance(value, int) else value
    data = struct.pack("HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def nested(kind, *parts):
    return attribute(kind | NESTED, b"".join(parts))


def message(kind, flags, sequence, body, family, resource=0):
    head = struct.pack("IHHII", 20 + len(body), kind, flags, sequence, 0)
    return head + struct.pack(">BBH", family, 0, resource) + body


def batch(*commands):
    """Each command is (message type, flags, attributes) of nftables, family IPv4."""
    request, acknowledge, create = 1, 4, 0x400
    parts = [message(16, request, 1, b"", 0, 10)]
    for number, (kind, is_new, body) in enumerate(commands):
        flags = request | acknowledge | (create if is_new else 0)
        parts.append(message(10 << 8 | kind, flags, 2 + number, body, 2))
    parts.append(message(17, request, 2 + len(commands), b"", 0, 10))
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    link.bind((0, 0))
    link.send(b"".join(parts))
    for _ in commands:
        answer = link.recv(65536)
        error = struct.unpack_from("i", answer, 16)[0]
        if error:
            raise OSError(-error, os.strerror(-error))


def expression(name, *parts):
    return nested(1, attribute(1, name.encode() + b"\0"), nested(2, *parts))


def compare(operation, data):
    return expression("cmp", attribute(1, 8), attribute(2, operation), nested(3, attribute(1, data)))


def payload(base, offset, length):
    return expression("payload", attribute(1, 8), attribute(2, base), attribute(3, offset), attribute(4, length))


EQUAL, BELOW, ABOVE = 0, 2, 4
DROP = expression("immediate", attribute(1, 0), nested(2, nested(2, attribute(1, 0))))


def rule(what, value):
    if what == "random":
        # One of 1000, in the byte order of this machine; what is compared is in the network's.
        dice = expression("numgen", attribute(1, 8), attribute(2, 1000), attribute(3, 1), attribute(4, 0))
        order = expression("byteorder", attribute(1, 8), attribute(2, 8), attribute(3, 1), attribute(4, 4), attribute(5, 4))
        return [dice, order, compare(BELOW, struct.pack(">I", value)), DROP]
    if what == "over":
        second = struct.pack(">Q", 1)
        limit = expression(
            "limit", attribute(1, struct.pack(">Q", value)), attribute(2, second), attribute(3, 5), attribute(4, 0), attribute(5, 1)
        )
        return [limit, DROP]
    if what == "longer":
        return [payload(1, 2, 2), compare(ABOVE, struct.pack(">H", value)), DROP]
    if what == "too-big":
        return [payload(1, 9, 1), compare(EQUAL, b"\1"), payload(2, 0, 2), compare(EQUAL, b"\3\4"), DROP]
    if what == "udp":
        return [payload(1, 9, 1), compare(EQUAL, b"\x11"), DROP]
    if what == "track":
        return [expression("ct", attribute(1, 8), attribute(2, 0)), expression("counter")]
    raise SystemExit(f"no rule {what!r}")


def nft(hook, what, value="0"):
    hooks = {"input": 1, "forward": 2, "output": 3}
    table = attribute(1, TABLE)
    name = b"chain\0"
    place = nested(4, attribute(1, hooks[hook]), attribute(2, 0))
    batch(
        (0, True, table),
        (3, True, table + attribute(3, name) + place + attribute(7, b"filter\0")),
        (6, True, table + attribute(2, name) + nested(4, *rule(what, int(value)))),
    )


def nft_forget():
    batch((2, False, attribute(1, TABLE)))


# --- XDP ----------------------------------------------------------------------------------------------------


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(144, b"\0"), 144)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(321, command, buffer, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def xdp(share, pin="/sys/fs/bpf/chance"):
    """Pins a program that drops so many of 1000 frames."""
    bound = int(int(share) / 1000 * 0xFFFFFFFF)
    code = [
        (0x85, 0, 0, 7),  # r0 = get_prandom_u32()
        (0xBC, 0 << 4 | 1, 0, 0),  # w1 = w0
        (0xB7, 0, 0, 1),  # r0 = XDP_DROP
        (0x18, 2, 0, bound),  # r2 = bound, of two instructions
        (0, 0, 0, 0),
        (0x2D, 1 << 4 | 2, 1, 0),  # if r2 > r1: return
        (0xB7, 0, 0, 2),  # r0 = XDP_PASS
        (0x95, 0, 0, 0),
    ]
    code = b"".join(struct.pack("<BBhI", *one) for one in code)
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"MIT\0")
    log = ctypes.create_string_buffer(65536)
    load = struct.pack(
        "<IIQQIIQ", 6, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence), 1, len(log), ctypes.addressof(log)
    )
    try:
        program = bpf(5, load)
    except OSError as error:
        raise SystemExit(f"{error}: {log.value.decode()}")
    path = ctypes.create_string_buffer(pin.encode() + b"\0")
    bpf(6, struct.pack("<QI", ctypes.addressof(path), program))


# --- programs -----------------------------------------------------------------------------------------------


def spin(count, nice="0", cpu="", realtime=""):
    """So many processes that spin, as children that end with this one."""
    os.setpgid(0, 0)
    for _ in range(int(count)):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            os.nice(int(nice))
            if cpu:
                os.sched_setaffinity(0, {int(cpu)})
            if realtime:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(realtime)))
            while True:
                pass
    signal.pause()


def processes(pattern):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{name}/cmdline", "rb").read().replace(b"\0", b" ")
        except OSError:
            continue
        # Not this program, nor the shell that runs it.
        if pattern.encode() in words and b"chance.py" not in words:
            found.append(int(name))
    return found


def pulse(pattern, stopped_ms, running_ms):
    """Stops the processes again and again, until it is ended."""
    pids = processes(pattern)

    def all_of_them(number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def end(*_):
        all_of_them(signal.SIGCONT)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        all_of_them(signal.SIGSTOP)
        time.sleep(int(stopped_ms) / 1000)
        all_of_them(signal.SIGCONT)
        time.sleep(int(running_ms) / 1000)


def pin(pattern, cpus):
    wanted = {int(cpu) for cpu in cpus.split(",")}
    for pid in processes(pattern):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), wanted)


def renice(pattern, nice):
    for pid in processes(pattern):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), int(nice))


def enter(pattern, group):
    for pid in processes(pattern):
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(pid))


def flood(address, size):
    """Datagrams for a port that nobody has, as fast as they go."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    data = bytes(int(size))
    while True:
        try:
            out.sendto(data, (address, random.randrange(20000, 30000)))
        except OSError:
            pass


def connect(address, port, count):
    """Connections to a port, which stay open and silent."""
    kept = []
    for _ in range(int(count)):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((address, int(port)))
        kept.append(one)
    signal.pause()


COMMANDS = [nft, nft_forget, xdp, spin, pulse, pin, renice, enter, flood, connect]

if __name__ == "__main__":
    {command.__name__: command for command in COMMANDS}[sys.argv[1]](*sys.argv[2:])
