//! The daemon pauses, or a part of it panics: streams continue, and only the VM concerned is affected.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use vmlane_tests::{Bed, give, json, kept, reload_driver, spec, take, wait_until};

#[test]
fn streams_outlast_a_stopped_daemon_and_a_panic_stays_with_its_vm() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[daemon]\nfault_injection = true\n").unwrap();
    let mut spec = spec("daemon", &["6.12", "6.12", "6.12"]);
    spec.daemon_config = Some(config.path().to_owned());
    let bed = Bed::up(&spec);
    stopped(&bed);
    panicked(&bed);
    bed.finish();
}

/// Eight seconds without a daemon, in the middle of streams between three guests.
fn stopped(bed: &Bed) {
    let takers = [take(&bed.guest("a")), take(&bed.guest("b"))];
    let ways = [("a", "b"), ("b", "a"), ("c", "a")];
    let streams = ways.map(|(from, to)| (from, give(bed, from, to, 15)));
    let daemon = bed.daemon_pid();
    kill_process(daemon, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(8));
    kill_process(daemon, Signal::CONT).unwrap();
    let mut bytes = Vec::new();
    for (from, stream) in streams {
        let figures = json(&bed.guest(from), "stream give", &stream.wait().unwrap());
        bytes.push(figures["bytes"].to_string());
    }
    drop(takers);
    kept(
        6,
        &format!(
            "after 8 s without a daemon 3 streams continued, checksums equal ({} bytes)",
            bytes.join(", ")
        ),
    );
}

/// The device of guest b panics and is reset; guest b works again after a driver reload, then after a reboot.
fn panicked(bed: &Bed) {
    let taker = take(&bed.guest("a"));
    for (what, reload) in [("a reload of its driver", true), ("a reboot", false)] {
        let takes = take(&bed.guest("b"));
        let undisturbed = give(bed, "c", "a", 12);
        let to_b = give(bed, "a", "b", 3600);
        let from_b = give(bed, "b", "a", 3600);
        bed.vmlane(&["debug", "panic", "b"]);
        let output = to_b.wait().unwrap();
        assert!(output.stdout().contains("cut"), "{}{}", output.stdout(), output.stderr());
        wait_until("the reader was told", || taker.0.stdout().contains("cut"));
        if reload {
            reload_driver(&bed.guest("b"));
        } else {
            bed.check_kernel("b");
            bed.guest("b").reboot(true).unwrap();
            // The reset lost what its disk had not written.
            bed.equip("b");
        }
        drop((takes, from_b));
        let figures = json(&bed.guest("c"), "stream give", &undisturbed.wait().unwrap());
        let again = take(&bed.guest("b"));
        for (from, to) in [("a", "b"), ("b", "a")] {
            json(&bed.guest(from), "stream give", &give(bed, from, to, 2).wait().unwrap());
        }
        drop(again);
        kept(
            6,
            &format!(
                "a panic in the session of b: its streams ended, and work again after {what}; meanwhile {} \
                 bytes passed between the others, checksums equal",
                figures["bytes"]
            ),
        );
    }
}
