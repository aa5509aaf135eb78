"""A TCP stream that is echoed and compared block by block, for as long as it lasts.

    echoed.py serve PORT
    echoed.py send ADDRESS PORT       writes "blocks N equal" to the console twice a second
"""
import os
import socket
import sys
import threading
import time

BLOCK = 16 << 10


def echo(sock):
    while data := sock.recv(BLOCK):
        sock.sendall(data)


def serve(port):
    door = socket.create_server(("", port))
    print("listening", flush=True)
    while True:
        sock, _ = door.accept()
        threading.Thread(target=echo, args=(sock,), daemon=True).start()


def send(address, port):
    sock = socket.create_connection((address, port))
    print("moving", flush=True)
    console, count, said = open("/dev/ttyS0", "w"), 0, time.monotonic()
    while True:
        block, back = os.urandom(BLOCK), b""
        sock.sendall(block)
        while len(back) < BLOCK:
            back += sock.recv(BLOCK)
        count += 1
        verdict = "equal" if back == block else "DIFFERENT"
        if time.monotonic() - said > 0.5 or verdict != "equal":
            said = time.monotonic()
            print(f"blocks {count} {verdict}", file=console, flush=True)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    send(sys.argv[2], int(sys.argv[3]))
