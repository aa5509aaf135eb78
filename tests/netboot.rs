//! Firmware drives the NIC: the boot ROM of QEMU's own card (iPXE)
//! finds vmlane's VMXNET3, requests an address, and loads a kernel through it.

use vmlane_tests::{Bed, PATIENCE, kept, spec};

#[test]
fn firmware_boots_a_guest_through_the_switch() {
    let bed = Bed::up(&spec("netboot", &["6.12", "6.12"]).device("vmxnet3").unwrap());
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let status = bed.lab().status().unwrap();
    b.sh("mkdir -p /dev/shm/boot").unwrap();
    b.cp_to(&status.guests[0].kernel_image, "/dev/shm/boot/vmlinuz").unwrap();
    b.cp_to(&status.guests[0].initrd, "/dev/shm/boot/initrd").unwrap();
    // The script comes by TFTP, the kernel by HTTP: the firmware's UDP and TCP.
    let words = b.sh("cat /proc/cmdline").unwrap();
    let script = format!(
        "#!ipxe\nkernel http://10.77.0.2/vmlinuz initrd=initrd {} booted_by=ipxe\n\
         initrd http://10.77.0.2/initrd\nboot\n",
        words.trim()
    );
    let write = b.exec_with_stdin(["sh", "-c", "cat >/dev/shm/boot/boot.ipxe"], script.into_bytes());
    assert!(write.unwrap().success());
    let server = ["python3", "-u", "/t/netboot.py", "10.77.0.2", "10.77.0.1", "/dev/shm/boot"];
    let server = b.spawn(server).unwrap();
    server.wait_for("serving", PATIENCE).unwrap();

    a.kill().unwrap();
    a.start_from_network().unwrap();
    assert!(
        a.sh("cat /proc/cmdline").unwrap().contains("booted_by=ipxe"),
        "this is not the kernel from the network"
    );
    for line in ["dhcp ack", "tftp boot.ipxe", "http GET /vmlinuz", "http GET /initrd"] {
        server.wait_for(line, PATIENCE).unwrap();
    }
    // The kernel's driver takes over the NIC from the firmware.
    a.sh("ping -q -c 3 -i 0.2 -M do -s 1472 10.77.0.2").unwrap();
    let bytes = bed.stats()["vms"][0]["nics"][0]["port"]["rx_bytes"].as_u64().unwrap();
    assert!(bytes > 10 << 20, "only {bytes} bytes went through the switch");
    kept(1, &format!("vmxnet3, PXE: iPXE loaded {} MiB through the switch and booted", bytes >> 20));
    drop(server);
    bed.finish();
}
