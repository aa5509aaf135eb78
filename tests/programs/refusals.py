"""Connects that must fail: with which error, and how soon.

  refusals.py CID PORT EXPECTED     such as ECONNRESET; asks stream and, where it fits, again
"""
import errno
import sys
import time

import vs


def main(cid, port, expected):
    times = []
    for _ in range(5):
        sock = vs.stream()
        start = time.monotonic()
        try:
            sock.connect((cid, port))
            name = "connected"
        except OSError as error:
            name = errno.errorcode.get(error.errno, str(error))
        times.append(time.monotonic() - start)
        sock.close()
        vs.check(name == expected, f"connect to {cid}:{port}: {name}, not {expected}")
    vs.result(error=expected, most_seconds=round(max(times), 3), seconds=[round(t, 3) for t in times])


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
