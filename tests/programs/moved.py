"""vSockets of a guest that is moved to another host.

    moved.py listen PORT      takes connections, one after the other, to their ends
    moved.py hold CID PORT    connects to CID and to the host, and waits for both ends; once the guest has another CID,
                              it sends that to the host's port, and what comes back to the console

What happens is written to the console: after the move there is no other way to hear of it.
"""
import errno
import fcntl
import socket
import struct
import sys
import time

import vs

CONSOLE = open("/dev/ttyS0", "w")


def tell(*words):
    print("vsock", *words, file=CONSOLE, flush=True)


def cid():
    with open("/dev/vsock", "rb") as device:
        answer = fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4))
    return struct.unpack("I", answer)[0]


def wait_for_end(name, sock):
    try:
        tell(name, "said", sock.recv(1))
    except OSError as error:
        tell(name, errno.errorcode[error.errno])


def listen(port):
    listener = vs.listening(port)
    vs.say("listening")
    while True:
        wait_for_end("server", listener.accept()[0])


def connected(port):
    while True:
        sock = vs.stream()
        try:
            sock.connect((2, port))
            return sock
        except OSError:  # No device, or nothing behind it yet.
            sock.close()
            time.sleep(0.1)


def hold(far, port):
    before = cid()
    held = [("client", vs.connected(far, port)), ("program", vs.connected(2, port))]
    vs.say("held")
    for name, sock in held:
        wait_for_end(name, sock)
    while cid() in (before, socket.VMADDR_CID_ANY):
        time.sleep(0.1)
    sock = connected(port)
    sock.sendall(struct.pack("I", cid()))
    tell("answer", vs.recv_all(sock).decode())


if sys.argv[1] == "listen":
    listen(int(sys.argv[2]))
else:
    hold(int(sys.argv[2]), int(sys.argv[3]))
