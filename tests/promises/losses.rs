//! A VM stops in mid-stream in every possible way: its peers are notified, other VMs are not affected,
//! and it comes back with the same CID.

use vmlane_tests::topology::KILLS;
use vmlane_tests::{
    Bed, Service, give, kept, passes, python, reload_driver, take, trickle, wait_until, whole,
};

use crate::refusals::refused;

vmlane_tests::tests! {
    guests in KILLS { a_lost_vm_ends_only_its_own_streams_and_returns }
    long in KILLS { a_restarted_kernel_ends_only_its_own_streams }
}

fn a_lost_vm_ends_only_its_own_streams_and_returns(bed: &Bed) {
    let b = bed.guest("b");
    lose(
        bed,
        "kill -9 of its QEMU",
        false,
        || b.kill().unwrap(),
        || {
            wait_until("the daemon knows that b is gone", || bed.vm("b")["attached"] == false);
            refused(bed, "a", bed.cid("b"), "EHOSTUNREACH", "the CID of a VM that was killed");
            b.start().unwrap();
            bed.equip("b");
        },
    );
    // The reset lost what its disk had not written.
    lose(bed, "the reset button", false, || b.reboot(true).unwrap(), || bed.equip("b"));
    lose(bed, "rmmod and modprobe of its drivers", true, || reload_driver(&b), || ());
}

/// What takes longer.
fn a_restarted_kernel_ends_only_its_own_streams(bed: &Bed) {
    let b = bed.guest("b");
    lose(bed, "a reboot from inside", true, || b.reboot(false).unwrap(), || ());
    load_for_kexec(bed);
    lose(bed, "kexec into the same kernel", true, || kexec(bed), || ());
    b.sh("rm /t/vmlinuz /t/initrd").unwrap();
}

/// `how` cuts the streams from and to guest b; a stream from c to a continues. When `back` returns, guest b
/// is back with its CID, and streams pass in both directions.
///
/// `programs_end`: before their guest does. A program's stream may then end like that of one that is done.
fn lose(bed: &Bed, what: &str, programs_end: bool, how: impl FnOnce(), back: impl FnOnce()) {
    let (taker, takes) = (take(&bed.guest("a")), take(&bed.guest("b")));
    let undisturbed = trickle(bed, "c", "a");
    let from_lost = give(bed, "b", "a");
    let to_lost = give(bed, "a", "b");
    bed.check_kernel("b");
    how();
    // The giver ended, printed that its stream was cut, and found no equal checksum.
    let output = to_lost.wait().unwrap();
    let (stdout, stderr) = (output.stdout(), output.stderr());
    assert!(output.exit.code == Some(3) && stdout.contains("cut"), "{what}: {stdout}{stderr}");
    let ended = || count(&taker, "cut") + if programs_end { count(&taker, "whole") } else { 0 };
    wait_until("the reader's stream has ended", || ended() == 1);
    drop((from_lost, takes)); // their guest no longer knows them
    back();
    let takes = take(&bed.guest("b"));
    assert_eq!(python(&bed.guest("b"), "cid")["cid"], bed.cid("b"));
    for (from, to) in [("a", "b"), ("b", "a")] {
        passes(bed, from, to);
    }
    wait_until("the taker has printed that its stream was whole", || count(&takes, "whole") == 1);
    let bytes = &whole(bed, "c", undisturbed)["bytes"];
    kept(
        "losses",
        &format!(
            "{what}: both peers were notified, the VM is back with its CID and streams both ways; meanwhile {bytes} bytes \
             passed between the others, checksums equal"
        ),
    );
}

fn count(service: &Service, word: &str) -> usize {
    service.0.stdout().lines().filter(|line| line.starts_with(word)).count()
}

/// Copies the kernel and the initramfs that guest b was booted with into it.
fn load_for_kexec(bed: &Bed) {
    let (guest, kernel) = (bed.guest("b"), KILLS.kernels[1].to_owned());
    let progress = vmlane_lab::setup::Progress(&|_| ());
    let assets = vmlane_lab::setup::ensure(std::slice::from_ref(&kernel), None, &progress).unwrap();
    let image = assets.kernels.iter().find(|known| known.version == kernel).unwrap().image();
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
