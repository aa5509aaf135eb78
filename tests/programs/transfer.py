"""Cases: half-close, buffer sizes, connects in sequence, both ways at once, a close with bytes unread."""
import errno
import select
import socket
import threading
import time

import vs
from ends import BLOCK, LARGEST, fails, far, go, near, ready, wait_go

# Both ends know this one.
PATTERN = bytes(range(256)) * 4096


@far
def far_half_close(sock):
    vs.check(vs.recv_all(sock) == PATTERN, "the bytes before the end")
    sock.sendall(PATTERN)
    sock.close()


@far
def far_half_close_back(sock):
    sock.sendall(b"before")
    sock.shutdown(socket.SHUT_WR)
    fails(errno.EPIPE, sock.send, b"x")
    vs.check(vs.recv_all(sock) == PATTERN, "the bytes after our end")


@near
def near_half_close(dial):
    sock = dial("half_close")
    sock.sendall(PATTERN)
    sock.shutdown(socket.SHUT_WR)
    fails(errno.EPIPE, sock.send, b"x")
    vs.check(vs.recv_all(sock) == PATTERN, "what comes after our end")
    sock = dial("half_close_back")
    vs.check(vs.recv_all(sock) == b"before", "their bytes and their end")
    sock.sendall(PATTERN)
    sock.shutdown(socket.SHUT_WR)
    vs.check(sock.recv(1) == b"", "the end stays")


@far
def far_echo(sock):
    while part := sock.recv(1 << 16):
        sock.sendall(part)
    # Linux keeps an accepted socket for a second after its connect: a close alone is told then only.
    sock.shutdown(socket.SHUT_WR)


def through_echo(sock, data):
    writer = threading.Thread(target=sock.sendall, args=(data,))
    writer.start()
    vs.check(vs.recv_exactly(sock, len(data)) == data, "the echo differs")
    writer.join()
    sock.shutdown(socket.SHUT_WR)
    vs.check(sock.recv(1) == b"", "more than was sent")
    sock.close()


@near
def near_buffer_sizes(dial):
    # More than a small ring holds, several times.
    sizes = {128: 1024, 4096: 1 << 16, 65536: 1 << 18, 1 << 20: 2 << 20}
    if not dial.slow:
        sizes |= {128: 4096, 4096: 1 << 18, 65536: 1 << 20, 1 << 20: 4 << 20, 16 << 20: 20 << 20, LARGEST: 4 << 20}
    for size, length in sizes.items():
        sock = dial("echo", size=size)
        got = sock.getsockopt(socket.AF_VSOCK, vs.BUFFER_SIZE)
        vs.check(got == size, f"a buffer of {got} bytes instead of {size}")
        through_echo(sock, (BLOCK * 20)[:length])
    start = time.monotonic()
    try:
        dial("echo", size=LARGEST + 4096 * 8)
    except OSError as error:
        name = errno.errorcode[error.errno]
        return f"up to {max(sizes)}; beyond the driver's bound {name} after {time.monotonic() - start:.3f} s"
    raise AssertionError("a ring beyond the driver's bound was accepted")


@near
def near_sequence(dial):
    for number in range(10 if dial.slow else 100):
        through_echo(dial("echo"), BLOCK[number:number + 1000])


@far
def far_both_ways(sock):
    writer = threading.Thread(target=sock.sendall, args=(PATTERN * 4,))
    writer.start()
    vs.check(vs.recv_exactly(sock, 4 << 20) == PATTERN * 4, "the bytes of the near end")
    writer.join()
    wait_go(sock)


@near
def near_both_ways(dial):
    sock = dial("both_ways")
    writer = threading.Thread(target=sock.sendall, args=(PATTERN * 4,))
    writer.start()
    vs.check(vs.recv_exactly(sock, 4 << 20) == PATTERN * 4, "the bytes of the far end")
    writer.join()
    go(sock)


@far
def far_late_reader(sock):
    time.sleep(1)
    total = len(vs.recv_all(sock))
    LATE.append(total)


LATE = []


@far
def far_late_count(sock):
    while not LATE:
        time.sleep(0.05)
    sock.sendall(b"%08d" % LATE.pop())


@far
def far_unread(sock):
    try:
        while True:
            sock.sendall(BLOCK)
    except OSError as error:
        vs.check(error.errno in (errno.EPIPE, errno.ECONNRESET), f"a send to a closed peer: {error}")


@near
def near_unread_bytes(dial):
    sock = dial("late_reader")
    sock.sendall(BLOCK[:200_000])
    sock.close()
    vs.check(int(vs.recv_exactly(dial("late_count"), 8)) == 200_000, "bytes before a close got lost")
    sock = dial("unread")
    vs.check(ready(sock, select.POLLIN, 60), "bytes came")
    sock.close()
