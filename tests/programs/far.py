"""A stream between guests of two hosts.

    far.py serve PORT             takes streams to their ends, says whose each is, and sends all of it back
    far.py ask CID PORT BYTES     sends random bytes, then its end, and compares what comes back
"""
import os
import socket
import sys

import vs


def serve(port):
    listener = vs.listening(port)
    vs.say("listening")
    while True:
        sock, (cid, _) = listener.accept()
        data = vs.recv_all(sock)
        vs.say("from", cid, len(data))
        sock.sendall(data)
        sock.close()


def ask(cid, port, count):
    sock = vs.connected(cid, port)
    vs.check(sock.getpeername() == (cid, port), f"connected with {sock.getpeername()}")
    data = os.urandom(count)
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
    vs.check(vs.recv_all(sock) == data, "other bytes came back")
    vs.result(whole=count)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    ask(*map(int, sys.argv[2:]))
