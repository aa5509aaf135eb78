//! A VM stops in mid-stream in every possible way: its peers are told, other VMs are not affected,
//! and it comes back with the same CID.

use vmlane_lab::{LabSpec, Running};
use vmlane_tests::{Bed, Service, give, kept, python, reload_driver, spec, take, wait_until};

/// Seconds that the undisturbed stream runs: during the loss and some time after it.
const UNDISTURBED: u32 = 15;

#[test]
fn a_lost_vm_ends_only_its_own_streams_and_returns() {
    let spec = spec("loss", &["6.12", "6.12", "6.12"]);
    let bed = Bed::up(&spec);
    let taker = take(&bed.guest("a"));
    lose(&bed, &taker, "kill -9 of its QEMU", |bed| {
        bed.guest("b").kill().unwrap();
    });
    bed.guest("b").start().unwrap();
    bed.equip("b");
    returned(&bed, "kill -9 of its QEMU");

    lose(&bed, &taker, "a reboot from inside", |bed| bed.guest("b").reboot(false).unwrap());
    returned(&bed, "a reboot from inside");
    lose(&bed, &taker, "the reset button", |bed| bed.guest("b").reboot(true).unwrap());
    returned(&bed, "the reset button");

    lose(&bed, &taker, "rmmod of its drivers", |bed| reload_driver(&bed.guest("b")));
    returned(&bed, "rmmod and modprobe of its drivers");

    load_for_kexec(&bed, &spec);
    lose(&bed, &taker, "kexec", kexec);
    returned(&bed, "kexec into the same kernel");
    bed.finish();
}

/// `how` cuts the streams from and to guest b; a stream from c to a continues.
fn lose(bed: &Bed, taker: &Service, what: &str, how: impl FnOnce(&Bed)) {
    let takes = take(&bed.guest("b"));
    let undisturbed = give(bed, "c", "a", UNDISTURBED);
    let cuts = count(taker, "cut");
    let from_lost = give(bed, "b", "a", 3600);
    let to_lost = give(bed, "a", "b", 3600);
    bed.check_kernel("b");
    how(bed);
    writer_was_told(to_lost, what);
    wait_until("the reader was told", || count(taker, "cut") > cuts);
    let output = undisturbed.wait().unwrap();
    let figures = vmlane_tests::json(&bed.guest("c"), "stream give", &output);
    drop((from_lost, takes)); // their guest no longer knows them
    kept(
        4,
        &format!(
            "{what}: both peers were told; meanwhile {} bytes passed between the others, checksums equal",
            figures["bytes"]
        ),
    );
}

/// The giver ended, said that its stream was cut, and found no equal checksum.
fn writer_was_told(giver: Running, what: &str) {
    let output = giver.wait().unwrap();
    let (stdout, stderr) = (output.stdout(), output.stderr());
    assert!(output.exit.code == Some(3) && stdout.contains("cut"), "{what}: {stdout}{stderr}");
}

fn count(service: &Service, word: &str) -> usize {
    service.0.stdout().lines().filter(|line| line.starts_with(word)).count()
}

/// Guest b still has its CID, and streams work in both directions.
fn returned(bed: &Bed, what: &str) {
    let takes = take(&bed.guest("b"));
    assert_eq!(python(&bed.guest("b"), "cid")["cid"], bed.cid("b"));
    for (from, to) in [("a", "b"), ("b", "a")] {
        let output = give(bed, from, to, 2).wait().unwrap();
        vmlane_tests::json(&bed.guest(from), "stream give", &output);
    }
    wait_until("the taker has said that its stream was whole", || count(&takes, "whole") == 1);
    kept(4, &format!("{what}: the VM is back with its CID and streams both ways"));
}

/// Copies the kernel and the initramfs that the guest was booted with into it.
fn load_for_kexec(bed: &Bed, spec: &LabSpec) {
    let guest = bed.guest("b");
    let kernel = &spec.guests()[1].kernel;
    let assets =
        vmlane_lab::setup::ensure(std::slice::from_ref(kernel), None, &vmlane_lab::setup::Progress(&|_| ()))
            .unwrap();
    let image = assets.kernels.iter().find(|k| k.version == *kernel).unwrap().image();
    guest.cp_to(&image, "/t/vmlinuz").unwrap();
    guest.cp_to(&bed.lab().dir().join(format!("initrd-{kernel}.cpio")), "/t/initrd").unwrap();
    guest.sh("kexec -l /t/vmlinuz --initrd=/t/initrd --reuse-cmdline").unwrap();
}

/// The new kernel starts without a reset of the machine.
fn kexec(bed: &Bed) {
    let guest = bed.guest("b");
    let before = guest.sh("cat /proc/sys/kernel/random/boot_id").unwrap();
    let gone = guest.exec(["sh", "-c", "sync; exec kexec -e"]).unwrap_err().to_string();
    assert!(gone.contains("restarted"), "{gone}");
    let after = guest.sh("cat /proc/sys/kernel/random/boot_id").unwrap();
    assert_ne!(before, after);
}
