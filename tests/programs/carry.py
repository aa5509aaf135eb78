"""Carries files over a connection whose address has the flag TO_HOST.

  carry.py CID PORT IN OUT     '-' for none; with IN alone it closes right after the last write
"""
import shutil
import socket
import sys
import threading

import vs


def send(sock, path, last):
    with open(path, "rb") as file:
        while part := file.read(1 << 16):
            sock.sendall(part)
    if not last:
        sock.shutdown(socket.SHUT_WR)


def main(cid, port, source, target):
    sock = vs.connected(int(cid), int(port), to_host=True)
    sender = None
    if source != "-":
        sender = threading.Thread(target=send, args=(sock, source, target == "-"))
        sender.start()
    if target != "-":
        with open(target, "wb") as file, sock.makefile("rb") as stream:
            shutil.copyfileobj(stream, file, 1 << 16)
    if sender:
        sender.join()
    sock.close()


main(*sys.argv[1:])
