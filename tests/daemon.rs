//! The daemon pauses, or a part of it panics: streams continue, and only the VM concerned is affected. A VM is removed and
//! added while it runs: guests cannot tell it from one of the configuration.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use vmlane_tests::{Bed, give, json, kept, python, reload_driver, spec, take, wait_until};

#[test]
fn streams_outlast_a_stopped_daemon_and_a_panic_stays_with_its_vm() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[daemon]\nfault_injection = true\n").unwrap();
    let mut spec = spec("daemon", &["6.12", "6.12", "6.12"]);
    spec.daemon_config = Some(config.path().to_owned());
    let spec = spec.device("a:vmxnet3").unwrap().device("c:vmxnet3").unwrap();
    let bed = Bed::up(&spec);
    stopped(&bed);
    panicked(&bed);
    added(&bed);
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

/// Guest c leaves the configuration and comes back as a VM that was added at run time, with VMCI and a VMXNET3 card. Its guest
/// boots, exchanges bytes with one of the configuration, goes on when the daemon is killed, and keeps its VM from being removed.
fn added(bed: &Bed) {
    let c = bed.guest("c");
    bed.check_kernel("c");
    c.kill().unwrap();
    wait_until("the VMM of c is gone", || bed.vm("c")["attached"] == false);
    let description = take_out(bed, "c");
    bed.vmlane(&["reload"]);
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false)]);
    bed.vmlane(&["vm", "add", description.path().to_str().expect("a path")]);
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false), ("c".into(), true)]);
    c.start().unwrap();
    bed.equip("c");

    let takers = [take(&bed.guest("a")), take(&c)];
    let streams = [("c", "a"), ("a", "c")].map(|(from, to)| (from, give(bed, from, to, 3)));
    c.sh("ping -q -c 3 -i 0.2 10.77.0.1").unwrap();
    let removed = bed.refused(&["vm", "remove", "c"]);
    assert!(removed.contains("attached") && removed.contains("--force"), "{removed}");
    bed.kill_daemon();
    let mut bytes = 0;
    for (from, stream) in streams {
        let figures = json(&bed.guest(from), "stream give", &stream.wait().unwrap());
        bytes += figures["bytes"].as_u64().expect("a number");
    }
    drop(takers);
    c.sh("ping -q -c 3 -i 0.2 10.77.0.1").unwrap();
    bed.check_kernel("c");

    bed.vmlane(&["vm", "remove", "c", "--force"]);
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false)]);
    python(&bed.guest("a"), "refusals 5 7100 EHOSTUNREACH");
    kept(
        17,
        &format!(
            "a VM that was added while the daemon runs: its guest boots, and {bytes} bytes pass between it and another one, checksums \
             equal, over a killed daemon; it is removed by force only"
        ),
    );
    c.kill().unwrap();
}

/// Names of all VMs, and whether they were added at run time.
fn origins(bed: &Bed) -> Vec<(String, bool)> {
    let list: serde_json::Value = serde_json::from_str(&bed.vmlane(&["vm", "list", "--json"])).unwrap();
    let vms = list["vms"].as_array().expect("a list of VMs").iter();
    let mut vms: Vec<(String, bool)> =
        vms.map(|vm| (vm["name"].as_str().expect("a name").to_owned(), vm["added"] == true)).collect();
    vms.sort();
    vms
}

/// Takes a VM out of the daemon's configuration file. What is returned describes it for `vmlane vm add`.
fn take_out(bed: &Bed, name: &str) -> tempfile::NamedTempFile {
    let file = bed.lab().dir().join("daemon.toml");
    let mut config: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    let vms = config["vm"].as_array_mut().expect("a list of VMs");
    let place = vms.iter().position(|vm| vm["name"].as_str() == Some(name)).expect("a VM of this name");
    let vm = vms.remove(place);
    std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
    let description = tempfile::NamedTempFile::new().unwrap();
    let table = toml::Table::from_iter([("vm".to_owned(), toml::Value::Array(vec![vm]))]);
    std::fs::write(description.path(), toml::to_string(&table).unwrap()).unwrap();
    description
}
