//! Proofs between two network namespaces of this host: what they show, and that they leave nothing behind,
//! whichever process is killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vmlane_testkit::{Ran, run};
use vmlane_tests::alone::output;
use vmlane_tests::{Process, full, kept, wait_until};

use super::{differing, still_differing};

const HERE: &str = "10.77.0.1";
const THERE: &str = "10.77.0.2";
/// What a proof keeps while settings are changed.
pub const RECORD: &str = "/run/vmlane-doctor/record";

/// Two namespaces with one interface each, and a server in the second one.
pub struct Pair {
    names: [String; 2],
    server: Option<Process>,
}

impl Pair {
    pub fn new() -> Pair {
        let id = std::process::id();
        let mut pair = Pair { names: [format!("vld{id}a"), format!("vld{id}b")], server: None };
        let [a, b] = pair.names.clone();
        for name in [&a, &b] {
            output(Command::new("ip").args(["netns", "add", name]));
        }
        let veth = ["type", "veth", "peer", "name", "eth0", "netns", &b];
        output(Command::new("ip").args(["link", "add", "eth0", "netns", &a]).args(veth));
        for (number, address) in [(0, HERE), (1, THERE)] {
            pair.within(number, &["ip", "address", "add", &format!("{address}/24"), "dev", "eth0"]);
            // Without a wait for others that may have the same address.
            pair.within(number, &["sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0"]);
            pair.within(number, &["ip", "link", "set", "eth0", "up"]);
            pair.within(number, &["ip", "link", "set", "lo", "up"]);
        }
        let mut server =
            pair.vmlane(1, &["bench", "server", "--doctor", "--listen", &format!("tcp:{THERE}")]);
        let mut server = Process(server.stdout(Stdio::piped()).spawn().expect("the server"));
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        pair.server = Some(server);
        assert!(line.contains("listening on"), "{line}");
        wait_until("addresses are known to be free", || {
            !pair.within(0, &["ip", "address"]).contains("tentative")
        });
        pair
    }

    /// SIGINT ends it, also where a shell runs these tests in the background, and so has them ignore that.
    fn command(&self, number: usize, words: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "ip", "netns", "exec", &self.names[number]]);
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs a program in the first or the second namespace.
    fn within(&self, number: usize, words: &[&str]) -> String {
        output(&mut self.command(number, words))
    }

    /// `env` and `ip netns exec` become the program, which so has their process number.
    fn vmlane(&self, number: usize, words: &[&str]) -> Command {
        let vmlane = vmlane_lab::find_vmlane().expect("the program was built");
        let mut all = vec![vmlane.to_str().expect("a path")];
        all.extend(words);
        self.command(number, &all)
    }

    fn prove(&self) -> Command {
        let to = format!("tcp:{THERE}");
        self.vmlane(0, &["doctor", "--to", &to, "--prove", "--yes", "--quick", "--json"])
    }

    /// What the system's own programs print of the first namespace's settings, line by line.
    fn settings(&self) -> Vec<String> {
        let mut all = self.within(0, &["ip", "-d", "address", "show", "dev", "eth0"]);
        all += &self.within(0, &["ip", "route", "show", "table", "all"]);
        all += &self.within(0, &["ethtool", "-k", "eth0"]);
        for option in ["-g", "-l", "-c"] {
            // Not every interface has these.
            all += &run(self.command(0, &["ethtool", option, "eth0"])).out;
        }
        all += &self.within(0, &["sysctl", "--ignore", "net.core", "net.ipv4", "net.ipv6"]);
        all.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, before: &[String]) {
        let changed = still_differing(before, || self.settings());
        assert!(changed.is_empty(), "settings are not as before: {changed:#?}");
    }

    fn undo(&self) -> Ran {
        run(self.vmlane(0, &["doctor", "--undo"]))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.server.take());
        // A test that fails leaves nothing that would stop the next one.
        if Path::new(RECORD).exists() {
            self.undo();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A fault of the first namespace, the check that finds it, and what its remedy improves.
struct Fault {
    put: &'static [&'static str],
    undo: &'static [&'static str],
    check: &'static str,
    gauge: &'static str,
}

const FAULTS: [Fault; 3] = [
    Fault {
        put: &["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 8192 16384"],
        undo: &["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 131072 6291456"],
        check: "socket-buffers",
        gauge: "throughput",
    },
    Fault {
        put: &["ethtool", "-K", "eth0", "tso", "off", "gso", "off"],
        undo: &["ethtool", "-K", "eth0", "tso", "on", "gso", "on"],
        check: "segmentation-offload",
        gauge: "throughput",
    },
    Fault {
        put: &["ip", "link", "set", "eth0", "mtu", "1300"],
        undo: &["ip", "link", "set", "eth0", "mtu", "1500"],
        check: "mtu-mismatch",
        gauge: "datagrams",
    },
];

/// The reading of the fault's gauge that shows the improvement.
pub fn improvement<'a>(report: &'a Value, check: &str, gauge: &str) -> Option<&'a Value> {
    let trials = report["proof"]["trials"].as_array()?;
    let of_check = trials.iter().filter(|trial| trial["check"] == check && trial["verdict"] == "helps");
    let mut readings = of_check.flat_map(|trial| trial["readings"].as_array().into_iter().flatten());
    readings.find(|reading| {
        reading["verdict"] == "helps" && reading["name"].as_str().is_some_and(|name| name.starts_with(gauge))
    })
}

/// "before 1.00e9 (0.90e9 to 1.10e9), after ..."
pub fn spread(reading: &Value) -> String {
    let side = |key: &str| {
        let values: Vec<f64> =
            reading[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!(
            "{:.3e} ({least:.3e} to {most:.3e})",
            reading[format!("{key}_median")].as_f64().unwrap_or(0.0)
        )
    };
    format!(
        "{}: before {}, after {}",
        reading["name"].as_str().unwrap_or_default(),
        side("before"),
        side("after")
    )
}

pub fn a_proof_shows_what_a_remedy_does_and_puts_it_back() {
    let pair = Pair::new();
    let faults = if full() { &FAULTS[..] } else { &FAULTS[..1] };
    for fault in faults {
        pair.within(0, fault.put);
        let before = pair.settings();
        let ran = run(pair.prove());
        let report: Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
        assert_eq!(ran.code, 1, "{}", report["proof"]);
        let reading = improvement(&report, fault.check, fault.gauge);
        let reading =
            reading.unwrap_or_else(|| panic!("{}: {} {}", fault.check, report["findings"], report["proof"]));
        println!("  {}: {}", fault.check, spread(reading));
        assert_eq!(report["proof"]["restored"], true, "{}", report["proof"]);
        pair.wait_for(&before);
        assert!(!Path::new(RECORD).exists());
        pair.within(0, fault.undo);
    }
    let why = run(pair.vmlane(0, &["doctor", "--to", "tcp:10.77.0.2", "--prove"]));
    assert_eq!(why.code, 2, "without a terminal, it needs --yes");
    kept(
        "doctor",
        &format!(
            "a proof between namespaces: {} remedies shown to help, all settings as before",
            faults.len()
        ),
    );
}

/// A proof that has begun to change settings, and its guardian.
struct Running {
    doctor: Process,
    guardian: Pid,
}

impl Running {
    fn start(pair: &Pair) -> Running {
        let doctor = pair.prove().stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut doctor = Process(doctor.expect("the doctor"));
        let children = format!("/proc/{0}/task/{0}/children", doctor.id());
        wait_until("settings are changed", || {
            assert!(doctor.0.try_wait().expect("its state").is_none(), "the doctor ended too early");
            Path::new(RECORD).exists()
        });
        let child = std::fs::read_to_string(children).expect("its children");
        let guardian =
            child.split_whitespace().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        Running { doctor, guardian: guardian.expect("a guardian") }
    }

    /// What it had done by then is undone by others.
    fn kill_doctor(&mut self, signal: Signal) {
        if self.doctor.0.try_wait().expect("its state").is_none() {
            self.doctor.signal(signal);
            let status = self.doctor.wait();
            // It may just have come to its end.
            let by = status.signal();
            assert!(by == Some(signal.as_raw()) || status.code() == Some(1), "{signal:?}: {status}");
        }
    }

    /// Ctrl-C while a remedy is applied.
    fn interrupt(&mut self, pair: &Pair, before: &[String]) {
        wait_until("a remedy is applied", || {
            assert!(self.doctor.0.try_wait().expect("its state").is_none(), "the proof ended too early");
            !differing(before, &pair.settings()).is_empty()
        });
        self.doctor.signal(Signal::INT);
        let status = self.doctor.wait();
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    }

    fn kill_guardian(&self) {
        kill_process(self.guardian, Signal::KILL).expect("a guardian to kill");
    }

    /// Until it has ended, it holds the lock that `--undo` takes.
    fn wait_for_guardian(&self) {
        let stat = format!("/proc/{}/stat", self.guardian.as_raw_nonzero());
        wait_until("the guardian has ended", || {
            std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
        });
    }
}

/// Pseudo-random numbers, the same for the same seed.
pub fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) % below
    }
}

pub fn seed() -> u64 {
    let given = std::env::var("VMLANE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_nanos() as u64)
    })
}

pub fn settings_are_put_back_whichever_process_is_killed() {
    let pair = Pair::new();
    for fault in &FAULTS {
        pair.within(0, fault.put);
    }
    let before = pair.settings();
    let seed = seed();
    println!("  VMLANE_SEED={seed}");
    let mut random = numbers(seed);
    let (kills, longest) = if full() { (30, 12_000) } else { (2, 1000) };
    let mut by_hand = 0;
    for kill in 0..kills {
        let mut running = Running::start(&pair);
        let kind = if full() { kill % 4 } else { 1 + kill };
        // So early that there still is a remedy to come.
        let longest = if kind == 2 { longest / 4 } else { longest };
        let moment = Duration::from_millis(random(longest));
        std::thread::sleep(moment);
        let begun = Instant::now();
        match kind {
            0 => running.kill_doctor(Signal::KILL),
            1 => {
                // Both, so that only the record is left.
                running.kill_guardian();
                running.kill_doctor(Signal::KILL);
                running.wait_for_guardian();
            }
            2 => running.interrupt(&pair, &before),
            _ => {
                running.kill_guardian();
                let code = running.doctor.wait().code();
                assert!(matches!(code, Some(1 | 3)), "{code:?}");
            }
        }
        if kind == 1 {
            let undone = pair.undo();
            by_hand += usize::from(undone.out.contains("as they were"));
            assert_eq!(undone.code, 0, "{undone:?}");
        }
        wait_until("the record is gone", || !Path::new(RECORD).exists());
        pair.wait_for(&before);
        println!("  killed after {moment:?} (kind {kind}), as before within {:?}", begun.elapsed());
        wait_until("no guardian is left", || pair.undo().code == 0);
    }
    kept(
        "doctor",
        &format!(
            "{kills} proofs killed at random moments (the doctor by -9, its guardian, both, Ctrl-C while a remedy is applied): all settings as before, {by_hand} of them by --undo"
        ),
    );
}

pub fn what_somebody_else_sets_meanwhile_is_left() {
    let pair = Pair::new();
    pair.within(0, FAULTS[0].put);
    let mut running = Running::start(&pair);
    let values = ["4096 131072 6291456", "4096 65536 2097152"];
    let now = || {
        pair.within(0, &["sysctl", "-n", "net.ipv4.tcp_rmem"])
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    wait_until("the remedy is applied", || now() == values[0]);
    pair.within(0, &["sysctl", "-qw", &format!("net.ipv4.tcp_rmem={}", values[1])]);
    running.kill_doctor(Signal::KILL);
    wait_until("the guardian has ended", || pair.undo().code == 0);
    assert_eq!(now(), values[1]);
    assert!(!Path::new(RECORD).exists());
    let second = pair.undo();
    assert!(second.out.contains("Nothing to undo"), "{second:?}");
}

/// The host's own programs are seen in its namespaces, and are not what this is about.
pub fn a_veth_is_healthy() {
    let pair = Pair::new();
    for run in 0..5 {
        let report = examined(&pair, run % 2 == 1);
        let found = report["findings"].as_array().expect("a list").iter();
        let found: Vec<_> = found.filter(|finding| finding["check"] != "busy-cpu").collect();
        assert!(found.is_empty(), "{found:#?}");
    }
    kept("doctor", "veth: 5 healthy runs without a finding, programs of the host aside");
}

/// The report of a doctor in the first namespace, and a line of how long it took.
fn examined(pair: &Pair, quick: bool) -> Value {
    let to = format!("tcp:{THERE}");
    let mut words = vec!["doctor", "--to", &to, "--json"];
    words.extend(quick.then_some("--quick"));
    let report: Value = serde_json::from_str(&run(pair.vmlane(0, &words)).out).expect("a report");
    let how = if quick { " quickly" } else { "" };
    println!("  examined{how} in {:.1} s{}", report["seconds"].as_f64().unwrap_or(0.0), super::left_out(&report));
    report
}

fn has(report: &Value, check: &str) -> bool {
    report["findings"].as_array().expect("a list").iter().any(|finding| finding["check"] == check)
}

/// Stopped for most of each second, as a debugger, a frozen control group or a lack of memory does it.
pub fn a_server_that_is_stopped_most_of_the_time_is_found() {
    let pair = Pair::new();
    let server = pair.server.as_ref().expect("a server");
    let ended = std::sync::atomic::AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                server.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(4000));
                server.signal(Signal::CONT);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        // Unwinding would wait for the other thread.
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            [examined(&pair, false), examined(&pair, true)]
        }));
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        report.expect("two reports")
    });
    assert!(has(&report[0], "slow-answers"), "{} {}", report[0]["findings"], report[0]["waits"]);
    let seconds: Vec<f64> = report.iter().filter_map(|report| report["seconds"].as_f64()).collect();
    assert!(seconds[0] < 40.0 && seconds[1] < 5.0, "they have no more time: {seconds:?}");
    kept(
        "doctor",
        &format!(
            "a server that is stopped for 4 s of 4.1 s: reported after {:.1} s, with --quick after {:.1} s",
            seconds[0], seconds[1]
        ),
    );
}
