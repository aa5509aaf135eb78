"""What programs expect of a vsock socket, tried on the host against a VM that echoes.

    host_semantics.py CID ECHO_PORT LISTEN_PORT

The VM connects to LISTEN_PORT when the line "listening" is printed.
"""
import ctypes
import errno
import os
import select
import socket
import struct
import sys

import vs

CID, ECHO, LISTEN = (int(word) for word in sys.argv[1:4])


def expect(number, call, *others):
    try:
        call()
    except OSError as error:
        assert error.errno in (number, *others), error
    else:
        raise AssertionError(f"{call} did not fail")


# Options and addresses.
sock = vs.stream()
value, size = ctypes.create_string_buffer(16), ctypes.c_uint(16)
assert vs.LIBC.getsockopt(sock.fileno(), socket.AF_VSOCK, 6, value, ctypes.byref(size)) == 0
assert struct.unpack("qq", value.raw) == (60, 0)
assert sock.getsockopt(socket.AF_VSOCK, 0) == 262144
sock.setsockopt(socket.AF_VSOCK, 0, 65536)
assert sock.getsockopt(socket.AF_VSOCK, 0) == 65536
assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_VSOCK
assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
expect(errno.ENOTCONN, sock.getpeername)
sock.connect((CID, ECHO))
assert sock.getpeername() == (CID, ECHO), sock.getpeername()
assert sock.getsockname()[0] == 2

# Peeking, waiting, half-close.
sock.sendall(b"hello")
assert select.select([sock], [], [], 60)[0]
assert sock.recv(5, socket.MSG_PEEK | socket.MSG_WAITALL) == b"hello"
assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
expect(errno.EAGAIN, lambda: sock.recv(1, socket.MSG_DONTWAIT))
sock.settimeout(0.05)
try:
    sock.recv(1)
    raise AssertionError("nothing was sent")
except TimeoutError:
    pass
sock.settimeout(60)
assert sock.sendmsg([b"one", b"two"]) == 6
assert sock.recv(6, socket.MSG_WAITALL) == b"onetwo"

# A copy of the descriptor, in another process.
copy = sock.dup()
assert copy.getpeername() == (CID, ECHO)
if (child := os.fork()) == 0:
    copy.sendall(b"child")
    os._exit(0 if copy.recv(5, socket.MSG_WAITALL) == b"child" else 1)
assert os.waitpid(child, 0)[1] == 0
copy.close()
sock.shutdown(socket.SHUT_WR)
assert sock.recv(1) == b""
sock.close()

# Readiness by epoll, many at once.
poll = select.epoll()
socks = {}
for number in range(50):
    one = vs.connected(CID, ECHO)
    one.setblocking(False)
    socks[one.fileno()] = one
    poll.register(one, select.EPOLLIN)
    one.send(b"x")
waiting = set(socks)
while waiting:
    ready = poll.poll(60)
    assert ready, f"{len(waiting)} heard nothing"
    for number, _ in ready:
        if number in waiting:
            assert socks[number].recv(10) == b"x"
            waiting.discard(number)
for one in socks.values():
    one.close()

# Refused, then the same socket again where a program listens; no such VM.
sock = vs.stream()
expect(errno.ECONNRESET, lambda: sock.connect((CID, 9)))
sock.connect((CID, ECHO))
sock.close()
# The kernel's own AF_VSOCK is asked then, if it has one.
expect(errno.ENODEV, lambda: vs.stream().connect((4444, 1)), errno.ETIMEDOUT, errno.ECONNRESET, errno.EHOSTUNREACH)

# The other way.
server = vs.stream()
server.bind((socket.VMADDR_CID_ANY, LISTEN))
server.listen(5)
assert server.getsockname() == (2, LISTEN), server.getsockname()
assert server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
second = vs.stream()
second.bind((socket.VMADDR_CID_ANY, LISTEN))
expect(errno.EADDRINUSE, second.listen)
server.setblocking(False)
expect(errno.EAGAIN, server.accept)
print("listening", flush=True)
assert select.select([server], [], [], 60)[0]
sock, peer = server.accept()
assert peer[0] == CID and sock.getpeername() == peer
sock.settimeout(60)
assert sock.recv(5, socket.MSG_WAITALL) == b"guest"
sock.sendall(b"host")
sock.close()
print("done")
