//! Long runs: the daemon is killed at random moments of what guests do, and load runs for an hour beside
//! guests that come and go. `make test` runs a short form, `make soak` the long one (`VMLANE_SOAK_MINUTES`,
//! 60 by default). The moments are derived from `VMLANE_SEED`, which the tests print: the same seed gives the
//! same moments.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use vmlane_lab::Running;
use vmlane_tests::traffic::reload_card;
use vmlane_tests::{
    Bed, Service, begin, begin_tcp, full, json, kept, moves, passes, reload_driver, serve, take, take_tcp,
    trickle, wait_until, whole,
};

vmlane_tests::tests! {
    long in SURVIVAL {
        a_daemon_killed_at_random_moments_leaves_every_guest_working,
        load_beside_guests_that_come_and_go_leaks_nothing,
    }
}

/// Pseudo-random numbers (Marsaglia's xorshift) from a seed.
struct Moments(u64);

impl Moments {
    fn new() -> Moments {
        let given = std::env::var("VMLANE_SEED").ok().and_then(|text| text.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let seed = given.unwrap_or(now) | 1;
        println!("VMLANE_SEED={seed}");
        Moments(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What guest b does when the daemon dies.
#[derive(Clone, Copy, Debug)]
enum Action {
    Connect,
    Transfer,
    Detach,
    RingReset,
    Driver,
    Reboot,
}

const ACTIONS: [Action; 6] =
    [Action::Connect, Action::Transfer, Action::Detach, Action::RingReset, Action::Driver, Action::Reboot];

fn a_daemon_killed_at_random_moments_leaves_every_guest_working(bed: &Bed) {
    let moments = if full() { 200 } else { 6 };
    let mut random = Moments::new();
    let mut longest = Duration::ZERO;
    let takers = [take(&bed.guest("a")), serve(&bed.guest("a"), "echo serve 7000"), take(&bed.guest("c"))];
    // Nothing may disturb these two, neither guest b nor the daemon's deaths.
    let mut bystander = trickle(bed, "a", "c");
    let before = held(bed);
    for moment in 0..moments {
        let action = ACTIONS[moment % ACTIONS.len()];
        let wait = Duration::from_millis(random.below(700));
        longest = longest.max(kill_during(bed, action, wait));
        if moment % 5 == 4 {
            whole(bed, "a", bystander);
            bystander = trickle(bed, "a", "c");
        }
        println!("moment {moment}: killed {} ms into {action:?}", wait.as_millis());
    }
    whole(bed, "a", bystander);
    let taker = take(&bed.guest("b"));
    passes(bed, "a", "b");
    drop((taker, takers));
    quiet(bed);
    let after = held(bed);
    // A few more or less are open at any moment: guests' memory and vectors change with what they do.
    assert!(after.descriptors <= before.descriptors + SLACK, "descriptors leak: {before:?}, then {after:?}");
    let longest = longest.as_secs_f64();
    kept(
        "survival",
        &format!(
            "{moments} deaths at random moments: every guest answered (within {longest:.1} s), nothing is left"
        ),
    );
}

/// Guest b begins, the daemon dies, b completes what it began. Returns the longest time in which a guest
/// answered.
fn kill_during(bed: &Bed, action: Action, wait: Duration) -> Duration {
    let guest = bed.guest("b");
    let begun = start(bed, action);
    std::thread::sleep(wait);
    bed.kill_daemon();
    let mut longest = Duration::ZERO;
    // A guest that restarts cannot answer.
    let asked: &[&str] = if matches!(action, Action::Reboot) { &["a", "c"] } else { &["a", "b", "c"] };
    for name in asked {
        let start = Instant::now();
        bed.guest(name).sh("true").unwrap();
        longest = longest.max(start.elapsed());
    }
    match begun {
        Begun::Program(running) => {
            json(&guest, &format!("{action:?}"), &running.wait().unwrap());
        }
        Begun::Command(running) => {
            let output = running.wait().unwrap();
            assert!(output.success(), "{action:?}: {}{}", output.stdout(), output.stderr());
        }
        Begun::Reboot(thread) => {
            thread.join().unwrap();
            // The reset lost what its disk had not written.
            bed.equip("b");
        }
    }
    longest
}

enum Begun {
    /// Its last line is a result.
    Program(Running),
    Command(Running),
    Reboot(std::thread::JoinHandle<()>),
}

fn start(bed: &Bed, action: Action) -> Begun {
    let guest = bed.guest("b");
    let a = bed.cid("a");
    let python = |words: String| {
        let argv = ["python3".to_owned()].into_iter().chain(words.split(' ').map(str::to_owned));
        Begun::Program(guest.spawn(argv.collect::<Vec<_>>()).unwrap())
    };
    let sh = |script: &str| Begun::Command(guest.spawn(["sh", "-c", script]).unwrap());
    match action {
        // Few bytes, so mostly handshakes; then many bytes; then closes, with data in flight.
        Action::Connect => python(format!("/t/echo.py burst {a} 7000 20 64 small")),
        Action::Transfer => python(format!("/t/stream.py give {a} 7100 1")),
        Action::Detach => python(format!("/t/echo.py burst {a} 7000 40 1024 small")),
        Action::RingReset => sh("for size in 256 512 1024 256; do ethtool -G eth0 rx $size tx $size; done"),
        Action::Driver => sh(&reload_card(2)),
        Action::Reboot => {
            let guest = bed.guest("b");
            Begun::Reboot(std::thread::spawn(move || guest.reboot(true).unwrap()))
        }
    }
}

/// Descriptors that may be open at one moment and not at another.
const SLACK: usize = 16;

/// What the daemon holds while there is no traffic.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    /// Anonymous memory, KiB.
    anonymous: u64,
}

fn held(bed: &Bed) -> Held {
    let pid = bed.daemon_pid().as_raw_nonzero();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    let anonymous = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    Held { descriptors, anonymous }
}

/// Waits until no connection is left in the daemon.
fn quiet(bed: &Bed) {
    let left = || -> u64 {
        let status: Value = serde_json::from_str(&bed.vmlane(&["status", "--json"])).unwrap();
        let vms = status["vms"].as_array().unwrap();
        vms.iter().map(|vm| vm["queue_pairs"].as_u64().expect("a VM with VMCI")).sum()
    };
    wait_until("no connection is left", || left() == 0);
}

fn minutes() -> f64 {
    let given = std::env::var("VMLANE_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if full() { 60.0 } else { 0.5 })
}

fn load_beside_guests_that_come_and_go_leaks_nothing(bed: &Bed) {
    let until = Instant::now() + Duration::from_secs_f64(minutes() * 60.0);
    let mut random = Moments::new();
    let mut takers: Vec<Service> = Vec::new();
    for name in ["a", "b"] {
        takers.push(take(&bed.guest(name)));
        takers.push(take_tcp(&bed.guest(name)));
        takers.push(serve(&bed.guest(name), "echo serve 7000"));
    }
    let mut samples: Vec<Held> = Vec::new();
    let (mut bytes, mut rounds, mut losses) = (0, 0, 0);
    loop {
        bytes += round(bed, &mut random, &mut losses);
        rounds += 1;
        quiet(bed);
        let now = held(bed);
        println!("round {rounds}: {bytes} bytes so far, {now:?}");
        // The first round fills what is kept from then on; allocators keep a little more.
        samples.push(now);
        let first = samples[0];
        assert!(now.descriptors <= first.descriptors + SLACK, "descriptors leak: {first:?}, then {now:?}");
        assert!(now.anonymous <= first.anonymous + 8192, "memory grows: {first:?}, then {now:?}");
        if rounds > 1 && Instant::now() > until {
            break;
        }
    }
    drop(takers);
    kept(
        "survival",
        &format!(
            "soak of {:.1} minutes, {rounds} rounds: {bytes} bytes intact, a VM lost {losses} times; {:?} after the first, {:?} after the last",
            minutes(),
            samples[0],
            samples[samples.len() - 1]
        ),
    );
}

/// Streams and short connections between a and b while c stops in some way. Returns the bytes of the streams.
fn round(bed: &Bed, random: &mut Moments, losses: &mut u32) -> u64 {
    let (mut streams, mut bursts) = (Vec::new(), Vec::new());
    for (from, to, address) in [("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1")] {
        streams.extend([begin(bed, from, to), begin_tcp(bed, from, address)].map(|stream| (from, stream)));
        let burst = format!("python3 /t/echo.py burst {} 7000 20 65536 small", bed.cid(to));
        let repeated = format!("for round in 1 2 3; do last=$({burst}) || exit 1; done; echo $last");
        bursts.push((from, bed.guest(from).spawn(["sh", "-c", &repeated]).unwrap()));
    }
    let streams: Vec<_> = streams.into_iter().map(|(from, stream)| (from, moves(stream))).collect();
    // Cut by what follows; its outcome does not matter.
    let cut =
        bed.guest("c").spawn(["python3", "/t/stream.py", "give", &bed.cid("a").to_string(), "7100", "60"]);
    std::thread::sleep(Duration::from_millis(random.below(3000)));
    let c = bed.guest("c");
    bed.check_kernel("c");
    match random.below(4) {
        0 => c.reboot(false).unwrap(),
        1 => {
            c.reboot(true).unwrap();
            bed.equip("c");
        }
        2 => {
            c.kill().unwrap();
            c.start().unwrap();
            bed.equip("c");
        }
        _ => reload_driver(&c),
    }
    drop(cut);
    *losses += 1;
    let mut bytes = 0;
    // The streams end last.
    for (from, burst) in bursts {
        json(&bed.guest(from), "burst", &burst.wait().unwrap());
    }
    for (from, stream) in streams {
        bytes += whole(bed, from, stream)["bytes"].as_u64().unwrap();
    }
    bytes
}
