//! What a guest that means harm costs others: an honest pair's throughput beside an idle guest, beside one
//! that only uses its processor, and beside one that floods the switch and the VMCI device.

use vmlane_tests::{Bed, PATIENCE, Service, full, kept, spec};

/// What the third guest does.
const NEIGHBOURS: [(&str, &[&str]); 3] =
    [("idle", &[]), ("busy", &["busy"]), ("hostile", &["frames eth0", "vmci"])];

fn disturb(bed: &Bed, scripts: &[&str]) -> Vec<Service> {
    let start = |script: &&str| {
        let argv = format!("exec python3 /t/hostile.py {script}");
        let running = bed.guest("c").spawn(["sh".to_owned(), "-c".to_owned(), argv]).unwrap();
        running.wait_for("at it", PATIENCE).unwrap();
        Service(running)
    };
    scripts.iter().map(start).collect()
}

/// Bits per second of one stream from guest a to `address`.
fn stream(bed: &Bed, address: &str, seconds: u32) -> f64 {
    let seconds = seconds.to_string();
    let line = ["vmlane", "bench", "stream", "--to", address, "-m", "64k", "-l", &seconds, "--json"];
    let output = bed.guest("a").exec(line).unwrap();
    assert!(output.success(), "{}{}", output.stdout(), output.stderr());
    let figures: serde_json::Value = serde_json::from_str(&output.stdout()).unwrap();
    figures["throughput_bps"].as_f64().unwrap()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn an_honest_pair_goes_on_beside_a_hostile_guest() {
    let bed = Bed::up(&spec("neighbour", &["6.12", "6.12", "6.12"]).device("vmxnet3").unwrap());
    let server =
        bed.guest("b").spawn(["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0", "--listen", "vsock:"]);
    let server = server.unwrap();
    server.wait_for("listening on vsock", PATIENCE).unwrap();
    let (rounds, seconds) = if full() { (7, 10) } else { (3, 3) };
    for (what, address) in
        [("VMXNET3", "tcp:10.77.0.2".to_owned()), ("VMCI", format!("vsock:{}", bed.cid("b")))]
    {
        let mut figures: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for ((_, scripts), figures) in NEIGHBOURS.iter().zip(&mut figures) {
                let harm = disturb(&bed, scripts);
                figures.push(stream(&bed, &address, seconds));
                drop(harm);
            }
        }
        let [idle, busy, hostile] = figures.map(median);
        kept(
            7,
            &format!(
                "{what}, medians of {rounds}: {:.0} Mbit/s beside an idle guest, {:.2} of that beside one that uses \
                 its processor, {:.2} beside one that floods",
                idle / 1e6,
                busy / idle,
                hostile / idle
            ),
        );
    }
    // Whoever floods is bounded, and everybody is alive.
    for name in ["a", "b", "c"] {
        bed.guest(name).sh("true").unwrap();
    }
    drop(server);
    bed.finish();
}
