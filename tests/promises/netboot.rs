//! Firmware drives the NIC: the boot ROM of QEMU's own card (iPXE)
//! finds vmlane's VMXNET3, requests an address, and loads a kernel through it.

use vmlane_tests::traffic::port;
use vmlane_tests::{Bed, TIMEOUT, kept};

vmlane_tests::tests! {
    long in KILLS { firmware_boots_a_guest_through_the_switch }
}

/// Guest c, from b.
fn firmware_boots_a_guest_through_the_switch(bed: &Bed) {
    let (b, c) = (bed.guest("b"), bed.guest("c"));
    let status = bed.lab().status().unwrap();
    let images = &status.guests[2];
    b.sh("mkdir -p /dev/shm/boot").unwrap();
    b.cp_to(&images.kernel_image, "/dev/shm/boot/vmlinuz").unwrap();
    b.cp_to(&images.initrd, "/dev/shm/boot/initrd").unwrap();
    // The script comes by TFTP, the kernel by HTTP: the firmware's UDP and TCP.
    let words = b.sh("cat /proc/cmdline").unwrap();
    let script = format!(
        "#!ipxe\nkernel http://10.77.0.2/vmlinuz initrd=initrd {} booted_by=ipxe\n\
         initrd http://10.77.0.2/initrd\nboot\n",
        words.trim()
    );
    let write = b.exec_with_stdin(["sh", "-c", "cat >/dev/shm/boot/boot.ipxe"], script.into_bytes());
    assert!(write.unwrap().success());
    let server = ["python3", "-u", "/t/netboot.py", "10.77.0.2", "10.77.0.3", "/dev/shm/boot"];
    let server = b.spawn(server).unwrap();
    server.wait_for("serving", TIMEOUT).unwrap();

    let before = port(bed, "c", 0, "rx_bytes");
    c.kill().unwrap();
    c.start_from_network().unwrap();
    assert!(
        c.sh("cat /proc/cmdline").unwrap().contains("booted_by=ipxe"),
        "this is not the kernel from the network"
    );
    for line in ["dhcp ack", "tftp boot.ipxe", "http GET /vmlinuz", "http GET /initrd"] {
        server.wait_for(line, TIMEOUT).unwrap();
    }
    // The kernel's driver takes over the NIC from the firmware.
    c.sh("ping -q -c 3 -i 0.2 -M do -s 1472 10.77.0.2").unwrap();
    let bytes = port(bed, "c", 0, "rx_bytes") - before;
    assert!(bytes > 10 << 20, "only {bytes} bytes went through the switch");
    drop(server);
    b.sh("rm -r /dev/shm/boot").unwrap();
    bed.equip("c");
    kept("nics", &format!("vmxnet3, PXE: iPXE loaded {} MiB through the switch and booted", bytes >> 20));
}
