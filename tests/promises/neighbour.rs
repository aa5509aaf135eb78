//! What a hostile guest costs others: the throughput of honest pairs beside an idle guest, beside
//! one that only uses CPU time, and beside ones that flood and storm the switch and the VMCI device.

use serde_json::Value;
use vmlane_tests::traffic::{address, card_up};
use vmlane_tests::{Bed, TIMEOUT, Service, kept, median, spec};

vmlane_tests::tests! {
    long in VMXNET3 { an_honest_pair_keeps_working_beside_a_hostile_guest }
    long { honest_pairs_keep_working_beside_a_hostile_guest }
}

/// Senders and receivers, and their neighbour, a letter each.
type Guests = (&'static [(&'static str, &'static str)], &'static str);

/// What the neighbour does; CIDS are its victims' and ADDRESS is one of theirs.
const NEIGHBOURS: [(&str, &[&str]); 8] = [
    ("an idle guest", &[]),
    ("one that only uses CPU time", &["busy"]),
    ("one that floods the switch", &["frames eth0"]),
    ("one that floods VMCI", &["vmci"]),
    ("one that floods both", &["frames eth0", "vmci"]),
    ("one that connects to their servers and leaves", &["connects 12900 CIDS"]),
    ("one that sends them pieces of one byte", &["scatter ADDRESS"]),
    ("one that resets its card", &["resets eth0"]),
];

/// `a` is 1.
fn number(guest: &str) -> u32 {
    u32::from(guest.as_bytes()[0] - b'a') + 1
}

fn disturb(bed: &Bed, (pairs, neighbour): Guests, scripts: &[&str]) -> Vec<Service> {
    // One that resets its card may have been ended in between.
    bed.guest(neighbour).sh(&card_up(0, number(neighbour))).unwrap();
    let cids: Vec<String> = pairs.iter().map(|(_, to)| bed.cid(to).to_string()).collect();
    let victim = address(0, number(pairs[0].1));
    let start = |script: &&str| {
        let script = script.replace("CIDS", &cids.join(" ")).replace("ADDRESS", &victim);
        let argv = format!("exec python3 /t/hostile.py {script}");
        let running = bed.guest(neighbour).spawn(["sh", "-c", &argv]).unwrap();
        running.wait_for("at it", TIMEOUT).unwrap();
        Service(running)
    };
    scripts.iter().map(start).collect()
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Vmxnet3,
    Vmci,
}

/// Bits per second of the streams of all pairs, which run at once.
fn streams(bed: &Bed, pairs: &[(&str, &str)], way: Way, seconds: u32) -> f64 {
    let seconds = seconds.to_string();
    let start = |(from, to): &(&str, &str)| {
        let address = match way {
            Way::Vmci => format!("vsock:{}", bed.cid(to)),
            Way::Vmxnet3 => format!("tcp:{}", address(0, number(to))),
        };
        let line = ["vmlane", "bench", "stream", "--to", &address, "-m", "64k", "-l", &seconds, "--json"];
        bed.guest(from).spawn(line).unwrap()
    };
    let running: Vec<_> = pairs.iter().map(start).collect();
    let bits = running.into_iter().map(|running| {
        let output = running.wait().unwrap();
        assert!(output.success(), "{}{}", output.stdout(), output.stderr());
        let figures: Value = serde_json::from_str(&output.stdout()).unwrap();
        figures["throughput_bps"].as_f64().unwrap()
    });
    bits.sum()
}

fn beside(bed: &Bed, guests: Guests, rounds: usize, seconds: u32) {
    let (pairs, neighbour) = guests;
    let server = |to: &&str| {
        let line = ["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0", "--listen", "vsock:"];
        let server = bed.guest(to).spawn(line).unwrap();
        server.wait_for("listening on vsock", TIMEOUT).unwrap();
        server
    };
    let servers: Vec<_> = pairs.iter().map(|(_, to)| server(to)).collect();
    for way in [Way::Vmxnet3, Way::Vmci] {
        let mut figures: [Vec<f64>; NEIGHBOURS.len()] = Default::default();
        for _ in 0..rounds {
            for ((_, scripts), figures) in NEIGHBOURS.iter().zip(&mut figures) {
                let harm = disturb(bed, guests, scripts);
                figures.push(streams(bed, pairs, way, seconds));
                drop(harm);
            }
        }
        let medians = figures.map(median);
        let (idle, busy) = (medians[0], medians[1]);
        let others = NEIGHBOURS.iter().zip(medians).skip(2);
        let others: Vec<String> =
            others.map(|((what, _), rate)| format!("{:.2} beside {what}", rate / busy)).collect();
        kept(
            "fairness",
            &format!(
                "{} pairs, {way:?}, medians of {rounds}: {:.0} Mbit/s beside {}, {:.2} of it beside {}; of that: {}",
                pairs.len(),
                idle / 1e6,
                NEIGHBOURS[0].0,
                busy / idle,
                NEIGHBOURS[1].0,
                others.join(", ")
            ),
        );
    }
    drop(servers);
    // Every guest still works, the hostile one included.
    disturb(bed, guests, &[]);
    for name in pairs.iter().flat_map(|(from, to)| [*from, *to]).chain([neighbour]) {
        bed.guest(name).sh("true").unwrap();
    }
}

/// Each of the two sends to the other.
fn an_honest_pair_keeps_working_beside_a_hostile_guest(bed: &Bed) {
    beside(bed, (&[("a", "b"), ("b", "a")], "c"), 1, 1);
}

fn honest_pairs_keep_working_beside_a_hostile_guest() {
    let bed = Bed::up(&spec("neighbour", &["6.12"; 5]).device("vmxnet3").unwrap());
    beside(&bed, (&[("a", "b"), ("c", "d")], "e"), 10, 5);
    bed.finish();
}
