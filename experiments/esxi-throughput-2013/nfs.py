#!/usr/bin/env python3
"""NFS between two VMs: writes and reads a file over VMXNET3 and over QEMU's own cards, which take turns in one lab.

    nfs.py VMLANE [ROUNDS] >> nfs.jsonl

Guest b exports a tmpfs by its kernel's NFS server, guest a mounts it (NFSv4.2, TCP). ROUNDS (3) times, over each card: a writes
SIZE MiB and waits for fsync; mounts again, so that its cache is cold, and reads the file; the same with a read-ahead of 4 MiB in
place of the kernel's 128 KiB; and a plain TCP stream each way, for comparison. A row a transfer. The first run fetches the
kernel's NFS modules, which labs lack, from Debian into ~/.cache/vmlane (a minute). Needs root."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VMLANE = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
NAME = "nfs"
SIZE = 256
# The first card of both guests is in 10.77.0.0/24, the second in 10.78.0.0/24 ...
CARDS = ("vmxnet3", "qemu-virtio-net:tap", "qemu-virtio-net", "qemu-vmxnet3")
# In the order in which they are loaded; what else they need, guests have.
MODULES = {
    "a": ("fs/netfs/netfs", "fs/nfs_common/grace", "fs/lockd/lockd", "fs/nfs/nfs", "fs/nfs/nfsv4"),
    "b": ("fs/nfs_common/grace", "fs/lockd/lockd", "fs/nfs_common/nfs_acl", "fs/nfsd/nfsd"),
}
NEEDED = {"a": "sunrpc dns_resolver", "b": "sunrpc auth_rpcgss"}
WRITE = f"dd if=/dev/zero of=/mnt/file bs=1M count={SIZE} conv=fsync"
READ = "dd if=/mnt/file of=/dev/null bs=1M"
# Where the modules come from, as for the lab: the mirror that it names, or else those that apt is configured with.
NAMED = "VMLANE_DEBIAN_MIRROR"
SIGNED = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
# What rpc.mountd would answer when the kernel asks: these clients may use /srv, the root of the export, which
# has the number 0 (0x2402: any port, no check of subtrees, a number).
SERVE = r"""
mkdir -p /srv && mount -t tmpfs -o size=80% tmpfs /srv && mount -t nfsd nfsd /proc/fs/nfsd
cd /proc/net/rpc
for client in CLIENTS; do echo "nfsd $client 2147483647 all" > auth.unix.ip/channel; done
echo "all /srv 2147483647 $((0x2402)) 65534 65534 0" > nfsd.export/channel
echo 'all 1 \x00000000 2147483647 /srv' > nfsd.fh/channel
cd /proc/fs/nfsd
echo 10 > nfsv4leasetime; echo 10 > nfsv4gracetime
echo '-3 +4 +4.1 +4.2' > versions
echo 8 > threads
"""


def run(words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def lab(*words):
    return run([VMLANE, "lab", *words])


def in_guest(guest, line):
    return lab("exec", NAME, guest, "--", "sh", "-ec", line)


def sources():
    """Lines of sources.list for the lab's Debian."""
    mirrors = {"Debian": os.environ.get(NAMED)}
    if not mirrors["Debian"]:
        known = run(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"])
        mirrors = dict(line.split(maxsplit=1) for line in reversed(known.splitlines()) if line.startswith("Debian"))
    if "Debian" not in mirrors:
        sys.exit(f"apt knows no mirror of Debian: name one, {NAMED}=http://HOST/debian")
    suites = {"Debian": "trixie", "Debian-Security": "trixie-security"}
    return "".join(f"deb {SIGNED} {mirrors[label]} {suite} main\n" for label, suite in suites.items() if label in mirrors)


def modules(release):
    """The folder with a kernel's NFS modules."""
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vmlane" / f"nfs-{release}"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as temporary:
        tree, folder = Path(temporary, "tree"), Path(temporary, "modules")
        folder.mkdir()
        run(["mmdebstrap", "--variant=extract", "--architectures=amd64", "--quiet", f"--include=linux-image-{release}",
             "--aptopt=Apt::Install-Recommends \"false\"", "trixie", str(tree), "-"], input=sources())
        for name in {name for names in MODULES.values() for name in names}:
            packed = tree / "usr/lib/modules" / release / "kernel" / f"{name}.ko.xz"
            run(["xz", "-d", str(packed)])
            shutil.copy(packed.with_suffix(""), folder)
        shutil.copytree(folder, kept)
    return kept


def prepare(guest):
    release = in_guest(guest, "uname -r").strip()
    lab("cp", NAME, str(modules(release)), f"{guest}:/root/modules")
    files = " ".join(f"/root/modules/{Path(name).name}.ko" for name in MODULES[guest])
    in_guest(guest, f"modprobe -a {NEEDED[guest]}; for file in {files}; do insmod $file; done")


def mount(number):
    """Mounts over card `number`. Only ever one at a time: the client would recognize the server and share a connection."""
    server, client = f"10.{77 + number}.0.2", f"10.{77 + number}.0.1"
    options = f"vers=4.2,proto=tcp,addr={server},clientaddr={client}"
    call = f"import ctypes; exit(ctypes.CDLL(None).mount(b'{server}:/', b'/mnt', b'nfs4', 0, b'{options}') and 1)"
    in_guest("a", f'python3 -c "{call}"')


def moved(number):
    """Bytes that card `number` of guest a has sent and received."""
    return [int(in_guest("a", f"cat /sys/class/net/eth{number}/statistics/{way}_bytes")) for way in ("tx", "rx")]


def copy(number, test):
    """Bytes a second of one transfer of the file over card `number`."""
    mount(number)
    if test == "read, 4 MiB ahead":
        in_guest("a", "echo 4096 > /sys/class/bdi/$(awk '$5 == \"/mnt\" {print $3}' /proc/self/mountinfo)/read_ahead_kb")
    before = moved(number)
    shown = in_guest("a", f"{WRITE if test == 'write' else READ} 2>&1; umount /mnt")
    sent, received = (now - then for now, then in zip(moved(number), before))
    if (sent if test == "write" else received) < SIZE << 20:
        sys.exit(f"card {number} did not carry the file: {sent} bytes sent, {received} received")
    return (SIZE << 20) / float(shown.split(" copied, ")[1].split()[0])


def stream(number, test):
    way = "--reverse" if test == "TCP from the server" else ""
    report = in_guest("a", f"vmlane bench stream --to tcp:10.{77 + number}.0.2 -m 128k -l 1 {way} --json")
    return json.loads(report)["throughput_bps"] / 8


TESTS = {"write": copy, "read": copy, "read, 4 MiB ahead": copy, "TCP to the server": stream, "TCP from the server": stream}


def serve():
    in_guest("b", SERVE.replace("CLIENTS", " ".join(f"10.{77 + number}.0.1" for number in range(len(CARDS)))))
    in_guest("b", "vmlane bench server --listen tcp:0.0.0.0 >/tmp/ready 2>&1 & until grep -q tcp /tmp/ready; do sleep 0.1; done")
    mount(0)
    in_guest("a", "touch /mnt/file; umount /mnt")  # Waits for the end of the grace period.


def main():
    devices = [word for card in CARDS for word in ("--device", card)]
    lab("up", NAME, "--guests", "2", "--kernel", "6.12", "--mem", "1024", *devices)
    try:
        for guest in MODULES:
            prepare(guest)
        serve()
        for round_number in range(1, ROUNDS + 1):
            for number, card in enumerate(CARDS):
                for test, measure in TESTS.items():
                    row = {"round": round_number, "card": card, "test": test, "MBps": round(measure(number, test) / 1e6, 1)}
                    print(json.dumps(row), flush=True)
    finally:
        lab("down", NAME)


main()
