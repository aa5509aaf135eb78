"""A TCP stream in one direction, whose receiver is silent but for acknowledgements, and when it stood still.

    gaps.py receive PORT
    gaps.py send ADDRESS PORT     prints "gap N" for each N ms, 50 at least, without an acknowledgement while bytes waited for one,
                                  and "moves" about four times a second while there are acknowledgements

Each message tells its number, which the receiver checks: it ends if one is wrong.
"""
import array
import fcntl
import socket
import sys
import termios
import time

SIZE = 64
EVERY = 0.005


def receive(port):
    sock, _ = socket.create_server(("", port)).accept()
    print("accepted", flush=True)
    number, data = 0, b""
    while more := sock.recv(1 << 16):
        data += more
        while len(data) >= SIZE:
            if data[:SIZE] != number.to_bytes(SIZE, "big"):
                sys.exit(f"message {number} is another one")
            data, number = data[SIZE:], number + 1


def unacknowledged(sock):
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    return count[0]


def send(address, port):
    sock = socket.create_connection((address, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("moving", flush=True)
    sent, acknowledged, since = 0, 0, time.monotonic()
    told = since
    while True:
        sock.sendall(sent.to_bytes(SIZE, "big"))
        sent += 1
        time.sleep(EVERY)
        now, waits = time.monotonic(), unacknowledged(sock)
        if sent * SIZE - waits > acknowledged or waits == 0:
            if now - since > 0.05:
                print(f"gap {round((now - since) * 1000)}", flush=True)
            if now - told > 0.25:
                print("moves", flush=True)
                told = now
            acknowledged, since = sent * SIZE - waits, now


if sys.argv[1] == "receive":
    receive(int(sys.argv[2]))
else:
    send(sys.argv[2], int(sys.argv[3]))
