//! VMCI and VMXNET3 devices in guests under a User Mode Linux with a PCI bus: Linux' own drivers near native
//! speed. The kernel is built first where it is not in the cache.

use vmlane_lab::{LabSpec, Machine};
use vmlane_tests::siblings::{a_killed_guest, tcp_for, vsock};
use vmlane_tests::traffic::{card_up, whole_pings};
use vmlane_tests::{Bed, full, kept, lab};

vmlane_tests::tests! {
    long { vmci_and_vmxnet3_work_under_user_mode_linux, pci_and_virtio_guests_of_one_kernel_meet }
}

fn spec(what: &str, devices: &[&str]) -> LabSpec {
    LabSpec { machines: vec![Machine::Uml], ..lab(what, devices) }
}

fn vmci_and_vmxnet3_work_under_user_mode_linux() {
    let bed = Bed::up(&spec("pci", &["vmci", "vmxnet3"]));
    let status = bed.lab().status().unwrap();
    for guest in &status.guests {
        assert_eq!((guest.kernel.as_str(), &guest.warnings[..]), ("7.2pci", &[][..]));
        let guest = bed.guest(&guest.name);
        let driver = guest.sh("basename $(readlink /sys/class/net/eth0/device/driver)").unwrap();
        assert_eq!(driver.trim(), "vmxnet3");
        let vectors = guest.sh("ls /sys/bus/pci/drivers/vmw_vmci/0000:*/msi_irqs | wc -l").unwrap();
        assert_eq!(vectors.trim(), "3", "MSI-X vectors of VMCI");
    }
    // A guest holds two such files in its /dev/shm, which has half of its memory.
    let (seconds, mib) = if full() { (10, 96) } else { (2, 32) };
    whole_pings(&bed, 0, 1500);
    let tcp_rate = tcp_for(&bed, seconds);
    let vsock_rate = vsock(&bed, mib);
    a_killed_guest(&bed);
    vsock(&bed, mib);
    // The driver's own reset of the device, and its removal.
    let b = bed.guest("b");
    b.sh("ip link set eth0 down && ip link set eth0 mtu 9000 up && ip link set eth0 mtu 1500").unwrap();
    // A card that was down has lost its address of IPv6.
    b.sh(&card_up(0, 2)).unwrap();
    b.sh("modprobe -r vmw_vsock_vmci_transport && modprobe -r vmw_vmci && modprobe vmw_vsock_vmci_transport")
        .unwrap();
    whole_pings(&bed, 0, 1500);
    vsock(&bed, 1);
    for guest in ["a", "b"] {
        bed.check_kernel(guest);
    }
    kept(
        "vmms",
        &format!(
            "User Mode Linux with a PCI bus: TCP over VMXNET3 both ways equal, {tcp_rate:.0} Mbit/s; VMCI both ways equal, \
             {vsock_rate:.0} Mbit/s; a guest killed under traffic: the other works on; drivers reset and removed"
        ),
    );
    bed.finish();
}

/// One switch and one space of CIDs, whatever the bus.
fn pci_and_virtio_guests_of_one_kernel_meet() {
    let bed = Bed::up(&spec("buses", &["a:vmci", "b:virtio-vsock", "a:vmxnet3", "b:virtio-net"]));
    let kernels: Vec<String> =
        bed.lab().status().unwrap().guests.into_iter().map(|guest| guest.kernel).collect();
    assert_eq!(kernels, ["7.2pci", "7.2um1"]);
    whole_pings(&bed, 0, 1500);
    let tcp_rate = tcp_for(&bed, 1);
    let vsock_rate = vsock(&bed, 8);
    kept(
        "vmms",
        &format!(
            "VMCI and vmxnet3 with virtio under User Mode Linux: TCP {tcp_rate:.0} Mbit/s, vsock {vsock_rate:.0} Mbit/s"
        ),
    );
    bed.finish();
}
