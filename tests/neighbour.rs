//! What a hostile guest costs others: the throughput of two honest pairs beside an idle guest, beside
//! one that only uses CPU time, and beside ones that flood and storm the switch and the VMCI device.

use vmlane_lab::Running;
use vmlane_tests::{Bed, PATIENCE, Service, full, kept, median, spec};

/// Sender and receiver.
const PAIRS: [(&str, &str); 2] = [("a", "b"), ("c", "d")];
const NEIGHBOUR: &str = "e";

/// What the neighbour does.
const NEIGHBOURS: [(&str, &[&str]); 8] = [
    ("an idle guest", &[]),
    ("one that only uses CPU time", &["busy"]),
    ("one that floods the switch", &["frames eth0"]),
    ("one that floods VMCI", &["vmci"]),
    ("one that floods both", &["frames eth0", "vmci"]),
    ("one that connects to their servers and leaves", &["connects 12900 4 6"]),
    ("one that sends them pieces of one byte", &["scatter 10.77.0.2"]),
    ("one that resets its card", &["resets eth0"]),
];

fn disturb(bed: &Bed, scripts: &[&str]) -> Vec<Service> {
    // One that resets its card may have been ended in between.
    bed.guest(NEIGHBOUR).sh("ip link set eth0 up").unwrap();
    let start = |script: &&str| {
        let argv = format!("exec python3 /t/hostile.py {script}");
        let running = bed.guest(NEIGHBOUR).spawn(["sh".to_owned(), "-c".to_owned(), argv]).unwrap();
        running.wait_for("at it", PATIENCE).unwrap();
        Service(running)
    };
    scripts.iter().map(start).collect()
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Vmxnet3,
    Vmci,
}

impl Way {
    fn address(self, bed: &Bed, guest: &str) -> String {
        match self {
            Way::Vmci => format!("vsock:{}", bed.cid(guest)),
            Way::Vmxnet3 => {
                let status = bed.lab().status().unwrap();
                let guest = status.guests.iter().find(|one| one.name == guest).unwrap();
                format!("tcp:{}", guest.nics[0].ipv4.split('/').next().unwrap())
            }
        }
    }
}

/// Bits per second of the streams of both pairs, which run at once.
fn streams(bed: &Bed, way: Way, seconds: u32) -> f64 {
    let seconds = seconds.to_string();
    let start = |(from, to): (&str, &str)| -> Running {
        let address = way.address(bed, to);
        let line = ["vmlane", "bench", "stream", "--to", &address, "-m", "64k", "-l", &seconds, "--json"];
        bed.guest(from).spawn(line).unwrap()
    };
    let running = PAIRS.map(start);
    let bits = running.map(|running| {
        let output = running.wait().unwrap();
        assert!(output.success(), "{}{}", output.stdout(), output.stderr());
        let figures: serde_json::Value = serde_json::from_str(&output.stdout()).unwrap();
        figures["throughput_bps"].as_f64().unwrap()
    });
    bits.iter().sum()
}

#[test]
fn honest_pairs_keep_working_beside_a_hostile_guest() {
    let bed = Bed::up(&spec("neighbour", &["6.12"; 5]).device("vmxnet3").unwrap());
    let servers = PAIRS.map(|(_, to)| {
        let line = ["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0", "--listen", "vsock:"];
        let server = bed.guest(to).spawn(line).unwrap();
        server.wait_for("listening on vsock", PATIENCE).unwrap();
        server
    });
    let (rounds, seconds) = if full() { (10, 5) } else { (2, 3) };
    for way in [Way::Vmxnet3, Way::Vmci] {
        let mut figures: [Vec<f64>; NEIGHBOURS.len()] = Default::default();
        for _ in 0..rounds {
            for ((_, scripts), figures) in NEIGHBOURS.iter().zip(&mut figures) {
                let harm = disturb(&bed, scripts);
                figures.push(streams(&bed, way, seconds));
                drop(harm);
            }
        }
        let medians = figures.map(median);
        let (idle, busy) = (medians[0], medians[1]);
        let others = NEIGHBOURS.iter().zip(medians).skip(2);
        let others: Vec<String> =
            others.map(|((what, _), rate)| format!("{:.2} beside {what}", rate / busy)).collect();
        kept(
            7,
            &format!(
                "two pairs, {way:?}, medians of {rounds}: {:.0} Mbit/s beside {}, {:.2} of it beside {}; of that: {}",
                idle / 1e6,
                NEIGHBOURS[0].0,
                busy / idle,
                NEIGHBOURS[1].0,
                others.join(", ")
            ),
        );
    }
    // Every guest still works, the hostile one included.
    for name in ["a", "b", "c", "d", NEIGHBOUR] {
        bed.guest(name).sh("true").unwrap();
    }
    drop(servers);
    bed.finish();
}
