"""What docs/guide/network-labs.md relies on in vrnetlab's launch scripts, and nothing else of them: a class that makes
QEMU's command line of the results of its methods, and has bash run it. The PCI devices that QEMU's firmware has set up
are printed."""

import json
import subprocess
import sys
import time

VMXNET3 = (0x15AD, 0x07B0)
TRIES = 600


class VM:
    def __init__(self, ram, additional):
        self.nic_type = "e1000"
        self.qemu_args = ["qemu-system-x86_64", "-display", "none", "-machine", "pc", "-qmp", "stdio"]
        self.qemu_args += ["-m", str(ram), *additional]

    def gen_mgmt(self):
        return ["-device", self.nic_type + ",netdev=p00,mac=0c:00:00:00:00:01", "-netdev", "user,id=p00"]

    def gen_nics(self):
        raise NotImplementedError("by the class of the VM")

    def start(self):
        bridge = ["-device", "pci-bridge,chassis_nr=1,id=pci.1"]
        command = " ".join([*self.qemu_args, *bridge, *self.gen_mgmt(), *self.gen_nics()])
        return subprocess.Popen(
            command, shell=True, executable="/bin/bash", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def ask(qemu, question):
    print(json.dumps({"execute": question}), file=qemu.stdin, flush=True)
    for line in qemu.stdout:
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
    raise SystemExit("QEMU has ended")


def devices(bus):
    for device in bus.get("devices", []):
        yield device
        yield from devices(device.get("pci_bridge", {}))


def ids(device):
    return device["id"]["vendor"], device["id"]["device"]


def is_set_up(device):
    """A ROM gets no address."""
    return any(region["address"] != -1 for region in device["regions"])


def print_devices(vm, cards):
    """At the latest when these many cards have addresses."""
    qemu = vm.start()
    try:
        ask(qemu, "qmp_capabilities")
        memory = ask(qemu, "query-memory-size-summary")["base-memory"]
        for _ in range(TRIES):
            found = [device for bus in ask(qemu, "query-pci") for device in devices(bus)]
            ready = [device for device in found if is_set_up(device)]
            if [ids(device) for device in ready].count(VMXNET3) >= cards:
                break
            time.sleep(0.1)
        json.dump({"ids": [ids(device) for device in ready], "memory": memory}, sys.stdout)
    finally:
        qemu.kill()
        qemu.wait()
