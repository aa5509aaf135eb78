"""Runs a command as vmlane.service does: as its user, with its capabilities, under a profile of AppArmor that is in force.

  confined.py USER PROFILE COMMAND...
"""
import ctypes
import os
import pwd
import struct
import sys

# linux/capability.h, linux/prctl.h
CAPABILITIES = {"net_admin": 12, "net_raw": 13, "ipc_lock": 14, "bpf": 39}
VERSION_3 = 0x20080522
PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 47, 2

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(user, profile, *command):
    account = pwd.getpwnam(user)
    checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(*[account.pw_gid] * 3)
    os.setresuid(*[account.pw_uid] * 3)
    bits = sum(1 << number for number in CAPABILITIES.values())
    low, high = bits & 0xFFFFFFFF, bits >> 32
    head = struct.pack("Ii", VERSION_3, 0)
    checked(libc.capset(head, struct.pack("6I", low, low, low, high, high, high)))
    for number in CAPABILITIES.values():
        checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0))
    with open("/proc/self/attr/exec", "w") as attribute:
        attribute.write(f"exec {profile}")
    os.umask(0o077)
    os.execv(command[0], command)


main(*sys.argv[1:])
