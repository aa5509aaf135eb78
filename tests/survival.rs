//! The daemon dies and comes back, or is replaced by another: streams continue, and no guest notices.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vmlane_tests::{Bed, Load, full, give, json, kept, take, wait_until};

#[test]
fn streams_outlast_a_killed_daemon() {
    let kills = if full() { 50 } else { 4 };
    let bed = Bed::up(&Load::guests("survive", &["6.12", "6.12"]));
    let load = Load::start(&bed, 6 + 2 * kills);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
    }
    let pause = load.finish(&bed);
    kept(4, &format!("killed {kills} times: 8 streams complete, checksums equal, longest pause {pause} s"));
    idle_and_reload(&bed);
    keeper(&bed);
    second(&bed);
    replaced(&bed);
    bed.finish();
}

/// Eight streams between cards of two workers, each of which also has streams of its own; the cards go from one worker to the
/// other meanwhile.
#[test]
fn streams_between_workers_outlast_a_killed_daemon() {
    let kills = if full() { 50 } else { 2 };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[daemon]\nworkers = 2\nbalance = false\nfault_injection = true\n").unwrap();
    let mut spec = Load::guests("workers", &["6.12", "6.12"]);
    spec.daemon_config = Some(file.path().to_owned());
    let bed = Bed::up(&spec);
    let ports: Value = serde_json::from_str(&bed.vmlane(&["ports", "--json"])).unwrap();
    let workers: Vec<_> = ports["switch"].as_array().unwrap().iter().map(|port| &port["worker"]).collect();
    assert_eq!(workers, [0, 1], "each card has a worker of its own");
    let load = Load::start(&bed, 9 + 2 * kills);
    let mut moves = 0;
    for _ in 0..kills {
        moves += move_cards(&bed);
        std::thread::sleep(Duration::from_millis(500));
        bed.kill_daemon();
    }
    moves += move_cards(&bed);
    let pause = load.finish(&bed);
    kept(
        4,
        &format!(
            "killed {kills} times with two workers, between which cards went {moves} times: 8 streams complete, checksums \
             equal, longest pause {pause} s"
        ),
    );
    bed.finish();
}

/// Has the cards of both guests go to the other worker and back, for a second at least. Nothing that was on its way is lost.
/// Returns how often one went.
fn move_cards(bed: &Bed) -> usize {
    let lost = || -> Vec<Value> {
        let stats = bed.stats();
        let vms = stats["vms"].as_array().unwrap().iter();
        vms.map(|vm| vm["nics"][0]["port"]["drop_gone"].clone()).collect()
    };
    let (before, begun) = (lost(), Instant::now());
    let mut moves = 0;
    wait_until("cards that go", || {
        for (vm, worker) in [("a", "1"), ("b", "0"), ("a", "0"), ("b", "1")] {
            let mut command = Command::new(vmlane_lab::find_vmlane().unwrap());
            command.args(["debug", "move", vm, "--worker", worker, "--runtime-dir"]);
            let done = command.arg(bed.lab().daemon_runtime_dir()).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() || said.contains("stays"), "{said}");
            moves += usize::from(done.status.success());
        }
        moves > 8 && begun.elapsed() > Duration::from_secs(1)
    });
    assert_eq!(before, lost());
    moves
}

/// Eight streams over ports that are shaped and captured, of a switch with a team.
#[test]
fn streams_outlast_a_killed_daemon_with_a_team_a_shape_and_a_capture() {
    let kills = if full() { 50 } else { 2 };
    let taps = ["x", "y"].map(|which| format!("vlt{which}{}", std::process::id() % 1_000_000));
    let uplink = |at: usize| format!("[[uplink]]\nname = \"up{at}\"\ntap = \"{}\"\nvlan = 0\n", taps[at]);
    let shape = "shape = { in = { average = \"40M\", peak = \"80M\" }, out = { average = \"60M\" } }";
    let config = format!(
        "[[port_group]]\nname = \"net0\"\n{shape}\n{}{}[[team]]\nname = \"lan\"\nuplinks = [\"up0\", \"up1\"]\n",
        uplink(0),
        uplink(1)
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let mut spec = Load::guests("team", &["6.12", "6.12"]);
    spec.daemon_config = Some(file.path().to_owned());
    let bed = Bed::up(&spec);
    for tap in &taps {
        assert!(Command::new("ip").args(["link", "set", tap, "up"]).status().unwrap().success(), "{tap}");
    }
    let both_are_active = || {
        let ports: Value = serde_json::from_str(&bed.vmlane(&["ports", "--json"])).unwrap();
        ports["teams"][0]["members"].as_array().is_some_and(|all| all.iter().all(|one| one["active"] == true))
    };
    wait_until("both links of the team", both_are_active);
    let captured = tempfile::NamedTempFile::new().unwrap();
    let capture = || {
        let mut command = Command::new(vmlane_lab::find_vmlane().unwrap());
        command.args(["capture", "a/nic0", "b/nic0", "up0", "--snap", "96", "--write"]).arg(captured.path());
        command.arg("--runtime-dir").arg(bed.lab().daemon_runtime_dir()).stderr(Stdio::null());
        let running = command.spawn().unwrap();
        wait_until("frames in the capture", || captured.path().metadata().unwrap().len() > 10_000);
        running
    };
    let load = Load::start(&bed, 6 + 3 * kills);
    for _ in 0..kills {
        let mut running = capture();
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
        // A capture ends with its daemon.
        running.wait().unwrap();
        captured.as_file().set_len(0).unwrap();
        wait_until("both links of the team", both_are_active);
    }
    let mut running = capture();
    let pause = load.finish(&bed);
    running.kill().unwrap();
    running.wait().unwrap();
    for vm in bed.stats()["vms"].as_array().unwrap() {
        let port = &vm["nics"][0]["port"];
        assert!(port["tx_shaped_bytes"].as_u64() > Some(0), "{port}");
    }
    kept(
        4,
        &format!(
            "killed {kills} times with a team, shaped ports and a capture: 8 streams complete, checksums equal, \
             longest pause {pause} s"
        ),
    );
    bed.finish();
}

/// Killed while idle and while a driver is reloaded: every guest answers, and streams work again.
fn idle_and_reload(bed: &Bed) {
    bed.kill_daemon();
    let reload = "rmmod vmxnet3 && modprobe vmxnet3 && sleep 0.3 && \
                  ip addr replace 10.77.0.2/24 dev eth0 && ip link set eth0 up";
    let reloading = bed.guest("b").spawn(["sh", "-c", reload]).unwrap();
    for _ in 0..3 {
        bed.kill_daemon();
    }
    assert!(reloading.wait().unwrap().success());
    for name in ["a", "b"] {
        bed.guest(name).sh("true").unwrap();
    }
    let taker = take(&bed.guest("b"));
    json(&bed.guest("a"), "stream give", &give(bed, "a", "b", 2).wait().unwrap());
    drop(taker);
}

/// The process that holds descriptors for this lab's daemon.
fn keeper_pid(bed: &Bed) -> Option<Pid> {
    let directory = bed.lab().daemon_runtime_dir().display().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = line.split('\0').collect();
        let ours = words.contains(&"keeper") && words.contains(&directory.as_str());
        ours.then(|| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))?
    })
}

/// The keeper is killed: a new one soon has everything, and the next daemon finds it.
fn keeper(bed: &Bed) {
    let taker = take(&bed.guest("b"));
    let stream = give(bed, "a", "b", 6);
    let before = keeper_pid(bed).expect("a keeper");
    let log = bed.lab().log("daemon");
    kill_process(before, Signal::KILL).unwrap();
    wait_until("another keeper has everything", || {
        std::fs::read_to_string(&log).unwrap().contains("the new keeper has everything")
    });
    assert_ne!(keeper_pid(bed), Some(before));
    bed.kill_daemon();
    json(&bed.guest("a"), "stream give", &stream.wait().unwrap());
    drop(taker);
    kept(4, "the keeper was killed, then the daemon: a stream continued, checksums equal");
}

/// A second daemon in the same runtime directory names the one that runs, and exits without harm.
fn second(bed: &Bed) {
    let status = bed.lab().status().unwrap().daemon.unwrap();
    let output = Command::new(vmlane_lab::find_vmlane().unwrap())
        .arg("daemon")
        .arg("--config")
        .arg(&status.config)
        .arg("--runtime-dir")
        .arg(&status.runtime_dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another daemon (pid "), "{said}");
}

/// Another daemon takes the place of the one that runs, under load.
fn replaced(bed: &Bed) {
    let load = Load::start(bed, 8);
    let status = bed.lab().status().unwrap().daemon.unwrap();
    let before = bed.daemon_pid();
    let mut replacement = bed.start_replacement(&vmlane_lab::find_vmlane().unwrap());
    bed.wait_for_another_daemon(before);
    let pause = load.finish(bed);
    kept(4, &format!("replaced under 8 streams: all complete, checksums equal, longest pause {pause} s"));
    // From here on the lab's own supervisor starts the daemon.
    kill_process(Pid::from_child(&replacement), Signal::KILL).unwrap();
    replacement.wait().unwrap();
    let vmlane = vmlane_lab::find_vmlane().unwrap();
    wait_until("the lab's daemon is back", || {
        let mut ask = Command::new(&vmlane);
        ask.args(["stats", "--runtime-dir"]).arg(&status.runtime_dir);
        ask.output().unwrap().status.success()
    });
}
