//! The daemon dies and comes back, or is replaced by another: streams continue, and no guest notices.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vmlane_api::call;
use vmlane_tests::alone::{printed, vmlane};
use toml::{Table, Value as Toml};
use vmlane_tests::traffic::{address, port, reload_card};
use vmlane_tests::{Bed, Load, Process, full, give, kept, passes, take, wait_until, whole};

vmlane_tests::tests! {
    guests in SURVIVAL {
        streams_outlast_a_killed_daemon,
        streams_outlast_a_killed_keeper,
        streams_outlast_a_replaced_daemon,
        streams_outlast_a_killed_daemon_with_a_team_a_shape_and_a_capture,
    }
    guests in VIRTIO_KILLS {
        streams_of_virtio_vsock_outlast_a_killed_daemon,
        streams_of_virtio_vsock_outlast_a_replaced_daemon,
    }
    guests in MIXED { streams_of_two_kinds_outlast_a_killed_daemon }
    long in SURVIVAL { streams_between_workers_outlast_a_killed_daemon }
    long in CARDS { streams_over_switches_and_wires_outlast_a_killed_daemon }
    long in VIRTIO_KILLS { streams_of_virtio_vsock_outlast_a_crash_loop }
    long in VSOCK_SURVIVAL {
        streams_of_sockets_outlast_a_killed_daemon,
        streams_of_sockets_outlast_a_replaced_daemon,
        streams_of_sockets_outlast_a_crash_loop,
    }
}

/// Pairs of guests, with the kind of each: eight streams of each kind go on at once.
type Kind = (&'static str, &'static [(&'static str, &'static str)]);
const VIRTIO: &[Kind] = &[("virtio-vsock", &[("a", "b"), ("b", "a")])];
/// Those of the bed that is for sockets alone.
const SOCKETS: &[Kind] = &[VIRTIO[0], ("VMCI beside virtio-vsock", &[("a", "c"), ("c", "a")])];
/// The longest pause of a stream, in seconds, beyond which something is wrong on any machine.
const LONGEST_PAUSE: f64 = 30.0;

/// How often a daemon is killed under load, `short` times in the short form.
fn kills(short: u32) -> u32 {
    if full() { 50 } else { short }
}

/// Then while idle, and while a driver is reloaded: every guest answers, and streams work again.
fn streams_outlast_a_killed_daemon(bed: &Bed) {
    let kills = kills(4);
    let load = Load::start(bed);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
    }
    let pause = load.finish(bed);
    kept(
        "survival",
        &format!("killed {kills} times: 8 streams complete, checksums equal, longest pause {pause} s"),
    );
    bed.kill_daemon();
    let reloading = bed.guest("b").spawn(["sh", "-c", &reload_card(2)]).unwrap();
    for _ in 0..3 {
        bed.kill_daemon();
    }
    assert!(reloading.wait().unwrap().success());
    for name in ["a", "b"] {
        bed.guest(name).sh("true").unwrap();
    }
    let taker = take(&bed.guest("b"));
    passes(bed, "a", "b");
    drop(taker);
}

/// QEMU connects a virtio-vsock device once and never again.
fn streams_of_virtio_vsock_outlast_a_killed_daemon(bed: &Bed) {
    outlast_kills(bed, VIRTIO, kills(4), Duration::from_millis(1500));
}

fn streams_of_virtio_vsock_outlast_a_replaced_daemon(bed: &Bed) {
    outlast_replacements(bed, VIRTIO, kills(1));
}

fn streams_of_virtio_vsock_outlast_a_crash_loop(bed: &Bed) {
    outlast_kills(bed, VIRTIO, 20, Duration::ZERO);
}

fn streams_of_sockets_outlast_a_killed_daemon(bed: &Bed) {
    outlast_kills(bed, SOCKETS, kills(4), Duration::from_millis(1500));
}

fn streams_of_sockets_outlast_a_replaced_daemon(bed: &Bed) {
    outlast_replacements(bed, SOCKETS, kills(1));
}

fn streams_of_sockets_outlast_a_crash_loop(bed: &Bed) {
    outlast_kills(bed, SOCKETS, 20, Duration::ZERO);
}

/// Eight streams of each kind.
fn load(bed: &Bed, kinds: &[Kind]) -> Load {
    let pairs = kinds.iter().flat_map(|(_, pairs)| pairs.repeat(8 / pairs.len()));
    Load::sockets(bed, &pairs.collect::<Vec<_>>())
}

/// Ends the streams, each of which must be complete.
fn report(bed: &Bed, load: Load, kinds: &[Kind], what: &str) {
    let pause = load.finish(bed);
    let kinds: Vec<_> = kinds.iter().map(|(kind, _)| *kind).collect();
    kept(
        "survival",
        &format!(
            "{what} under 8 streams each of {}: all complete, checksums equal, longest pause {pause} s",
            kinds.join(", ")
        ),
    );
    assert!(pause < LONGEST_PAUSE, "{pause} s");
}

/// Each daemon lives for this time after it has answered.
fn outlast_kills(bed: &Bed, kinds: &[Kind], kills: u32, life: Duration) {
    let load = load(bed, kinds);
    let begun = Instant::now();
    for _ in 0..kills {
        std::thread::sleep(life);
        bed.kill_daemon();
    }
    report(bed, load, kinds, &format!("killed {kills} times within {:.0?}", begun.elapsed()));
}

fn outlast_replacements(bed: &Bed, kinds: &[Kind], times: u32) {
    let load = load(bed, kinds);
    let program = vmlane_lab::find_vmlane().unwrap();
    let mut last = None::<Process>;
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(500));
        let next = bed.replace_daemon(&program);
        if let Some(mut before) = last.replace(next) {
            assert!(before.wait().success(), "it hands over");
        }
    }
    report(bed, load, kinds, &format!("replaced {times} times"));
    bed.end_replacements(last.expect("the last daemon"));
}

/// Between guests with virtio-vsock and with VMCI, both ways.
fn streams_of_two_kinds_outlast_a_killed_daemon(bed: &Bed) {
    let kills = kills(3);
    let load = Load::sockets(bed, &[("a", "b"), ("b", "a")].repeat(4));
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
    }
    let pause = load.finish(bed);
    kept(
        "survival",
        &format!(
            "killed {kills} times: 8 streams between VMCI and virtio-vsock complete, checksums equal, longest pause {pause} s"
        ),
    );
    let takers = ["a", "b"].map(|name| take(&bed.guest(name)));
    passes(bed, "a", "b");
    passes(bed, "b", "a");
    drop(takers);
}

/// Eight streams between cards of two workers, each of which also has streams of its own; the cards go from
/// one worker to the other meanwhile.
fn streams_between_workers_outlast_a_killed_daemon(bed: &Bed) {
    let _restarted = bed.restarted("[daemon]\nworkers = 2\nbalance = false\n");
    let ports: Value = serde_json::from_str(&bed.vmlane(&["ports", "--json"])).unwrap();
    let workers: Vec<_> = ports["switch"].as_array().unwrap().iter().map(|port| &port["worker"]).collect();
    assert_eq!(workers[..2], [0, 1], "each card has a worker of its own");
    let (kills, mut moves) = (kills(2), 0);
    let load = Load::start(bed);
    for _ in 0..kills {
        moves += move_cards(bed);
        std::thread::sleep(Duration::from_millis(500));
        bed.kill_daemon();
    }
    moves += move_cards(bed);
    let pause = load.finish(bed);
    kept(
        "survival",
        &format!(
            "killed {kills} times with two workers, between which cards went {moves} times: 8 streams complete, checksums \
             equal, longest pause {pause} s"
        ),
    );
}

/// Has the cards of both guests go to the other worker and back, for a second at least. Nothing that was on
/// its way is lost. Returns how often one went.
fn move_cards(bed: &Bed) -> usize {
    let lost = || ["a", "b"].map(|vm| port(bed, vm, 0, "drop_gone"));
    let (before, begun) = (lost(), Instant::now());
    let mut moves = 0;
    wait_until("cards that go", || {
        for (vm, worker) in [("a", 1), ("b", 0), ("a", 0), ("b", 1)] {
            let done = bed.call(&call::DebugMove { vm: vm.into(), at: "nic0-port".into(), worker });
            assert!(done.as_ref().err().is_none_or(|why| why.to_string().contains("stays")), "{done:?}");
            moves += usize::from(done.is_ok());
        }
        moves > 8 && begun.elapsed() > Duration::from_secs(1)
    });
    assert_eq!(before, lost());
    moves
}

/// Eight streams over ports that are shaped and captured, of a switch with a team.
fn streams_outlast_a_killed_daemon_with_a_team_a_shape_and_a_capture(bed: &Bed) {
    let taps = ["x", "y"].map(|which| format!("vlt{which}{}", std::process::id() % 1_000_000));
    let uplink = |at: usize| format!("[[uplink]]\nname = \"up{at}\"\ntap = \"{}\"\nvlan = 0\n", taps[at]);
    let shape = "shape = { in = { average = \"40M\", peak = \"80M\" }, out = { average = \"60M\" } }";
    let _restarted = bed.restarted(&format!(
        "[[port_group]]\nname = \"net0\"\n{shape}\n{}{}[[team]]\nname = \"lan\"\nuplinks = [\"up0\", \"up1\"]\n",
        uplink(0),
        uplink(1)
    ));
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
        let mut command = vmlane();
        command.args(["capture", "a/nic0", "b/nic0", "up0", "--snap", "96", "--write"]).arg(captured.path());
        command.arg("--runtime-dir").arg(bed.lab().daemon_runtime_dir()).stderr(Stdio::null());
        let running = Process(command.spawn().unwrap());
        wait_until("frames in the capture", || captured.path().metadata().unwrap().len() > 10_000);
        running
    };
    let (kills, load) = (kills(2), Load::start(bed));
    for _ in 0..kills {
        let mut running = capture();
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
        // A capture ends with its daemon.
        running.wait();
        captured.as_file().set_len(0).unwrap();
        wait_until("both links of the team", both_are_active);
    }
    let running = capture();
    let pause = load.finish(bed);
    drop(running);
    for vm in ["a", "b"] {
        assert!(port(bed, vm, 0, "tx_shaped_bytes") > 0, "{vm}");
    }
    kept(
        "survival",
        &format!(
            "killed {kills} times with a team, shaped ports and a capture: 8 streams complete, checksums equal, \
             longest pause {pause} s"
        ),
    );
}

/// What the wires of the test below do to frames: one delays them for a twentieth of a second each way, the
/// other one does what a bad line does.
const DELAYED: &str = "delay_us = 50_000";
const BAD: &str =
    "delay_us = 5000, jitter_us = 2000, loss = 0.1, reorder = 0.5, duplicate = 0.5, rate = \"50M\"";
/// Requests a second over the first one, beside nothing else, and so many that may be on their way there or
/// back.
const PINGS: u32 = 100;
const UNDER_WAY: u32 = PINGS / 10;

/// Cards 0 and 1 of each guest are on a switch each, 2 and 3 on wires.
fn over_switches_and_wires(config: &mut Table) {
    for vm in config["vm"].as_array_mut().unwrap() {
        let nics = vm["nic"].as_array_mut().unwrap().iter_mut();
        for (number, nic) in nics.enumerate() {
            let nic = nic.as_table_mut().unwrap();
            if number > 0 {
                nic.remove("port_group");
            }
            if number == 1 {
                nic.insert("switch".into(), "other".into());
            }
        }
    }
    let wire = |nic, impair| {
        format!("[[wire]]\nname = \"w{nic}\"\nends = [\"a/nic{nic}\", \"b/nic{nic}\"]\nimpair = {{ {impair} }}\n")
    };
    let more = format!("[[switch]]\nname = \"other\"\n{}{}", wire(2, DELAYED), wire(3, BAD));
    let more: Table = more.parse().unwrap();
    config.extend(more.into_iter().map(|(key, value): (String, Toml)| (key, value)));
}

/// What is on its way over an impaired wire is lost with the daemon, and no more.
fn streams_over_switches_and_wires_outlast_a_killed_daemon(bed: &Bed) {
    let _joined = bed.edited(over_switches_and_wires);
    let a = bed.guest("a");
    for card in 0..4 {
        wait_until("an answer", || a.sh(&format!("ping -q -c 1 -W 2 {}", address(card, 2))).is_ok());
    }
    let (kills, load) = (kills(4), Load::over_cards(bed, &[0, 1, 3]));
    let ping = format!("ping -q -i {} {}", 1.0 / f64::from(PINGS), address(2, 2));
    let ping = a.spawn(["sh", "-c", &format!("exec {ping}")]).unwrap();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
    }
    std::thread::sleep(Duration::from_secs(1));
    ping.signal(Signal::INT.as_raw());
    let answers = ping.wait().unwrap().stdout();
    let lost = lost(&answers).unwrap_or_else(|| panic!("{answers}"));
    let pause = load.finish(bed);
    kept(
        "survival",
        &format!(
            "killed {kills} times over two switches and an impaired wire: 6 streams complete, checksums equal, \
             longest pause {pause} s; of {PINGS} requests a second over a wire of 50 ms {lost} lost"
        ),
    );
    assert!(lost <= (kills + 1) * UNDER_WAY, "{lost} of {answers}");
}

/// Of ping's summary: "100 packets transmitted, 98 received, ...".
fn lost(summary: &str) -> Option<u32> {
    let line = summary.lines().find(|line| line.contains("transmitted"))?;
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u32>().ok());
    Some(numbers.next()?.saturating_sub(numbers.next()?))
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
fn streams_outlast_a_killed_keeper(bed: &Bed) {
    let taker = take(&bed.guest("b"));
    let stream = give(bed, "a", "b");
    let before = keeper_pid(bed).expect("a keeper");
    let log = bed.lab().log("daemon");
    let renewed = || std::fs::read_to_string(&log).unwrap().matches("the new keeper has everything").count();
    let renewed_before = renewed();
    kill_process(before, Signal::KILL).unwrap();
    wait_until("another keeper has everything", || renewed() > renewed_before);
    assert_ne!(keeper_pid(bed), Some(before));
    bed.kill_daemon();
    whole(bed, "a", stream);
    drop(taker);
    kept("survival", "the keeper was killed, then the daemon: a stream continued, checksums equal");
}

/// Another daemon takes the place of the one that runs, under load. One that does not ask for that names the
/// one that runs, and exits without harm.
fn streams_outlast_a_replaced_daemon(bed: &Bed) {
    let load = Load::start(bed);
    let status = bed.lab().status().unwrap().daemon.unwrap();
    let mut second = vmlane();
    second.arg("daemon").arg("--config").arg(&status.config).arg("--runtime-dir").arg(&status.runtime_dir);
    let output = second.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(printed(&output).contains("another daemon (pid "), "{output:?}");

    let replacement = bed.replace_daemon(&vmlane_lab::find_vmlane().unwrap());
    let pause = load.finish(bed);
    kept(
        "survival",
        &format!("replaced under 8 streams: all complete, checksums equal, longest pause {pause} s"),
    );
    bed.end_replacements(replacement);
}
