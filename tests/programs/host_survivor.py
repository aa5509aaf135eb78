"""A program of the host that lives through its daemon's death: host_survivor.py CID ECHO_PORT LISTEN_PORT

Says "listening", then "ready" when both its connections are there (it connects to the VM's echo server, and the VM connects to
LISTEN_PORT), "ended" when both have ended, and "again" when both ways work again.
"""
import select
import socket
import sys
import time

import vs

CID, ECHO, LISTEN = (int(word) for word in sys.argv[1:4])


def echoes(sock):
    sock.sendall(b"hello")
    return sock.recv(5, socket.MSG_WAITALL) == b"hello"


server = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
server.bind((socket.VMADDR_CID_ANY, LISTEN))
server.listen(5)
print("listening", flush=True)
out = vs.connected(CID, ECHO)
back, _ = server.accept()
assert echoes(out)
print("ready", flush=True)
for sock in (out, back):
    assert select.select([sock], [], [], 60)[0], "the end is not heard of"
    try:
        assert sock.recv(1) == b""
    except ConnectionResetError:
        pass
    sock.close()
print("ended", flush=True)
deadline = time.monotonic() + 100
while True:
    try:
        out = vs.connected(CID, ECHO)
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.05)
assert echoes(out)
while True:
    try:
        back, peer = server.accept()
    except ConnectionAbortedError:
        assert time.monotonic() < deadline
        continue
    said = back.recv(5, socket.MSG_WAITALL)
    if said == b"again":
        break
    # One whose guest had given it up.
    assert said == b"" and time.monotonic() < deadline, said
assert peer[0] == CID
print("again")
