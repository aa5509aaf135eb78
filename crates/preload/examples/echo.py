"""Sends a line to a port of a VM and prints what comes back: vmlane run -- python3 echo.py 3 5000 hello"""
import socket
import sys

cid, port, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
    sock.connect((cid, port))
    assert sock.getpeername() == (cid, port) and sock.getsockname()[0] == 2
    sock.sendall(text.encode())
    sock.shutdown(socket.SHUT_WR)
    while data := sock.recv(65536):
        sys.stdout.write(data.decode())
