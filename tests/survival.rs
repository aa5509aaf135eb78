//! The daemon dies and comes back: streams go on, no guest notices.

use std::time::Duration;

use vmlane_tests::{Bed, full, give, json, kept, spec, take};

/// Streams both ways between three guests while the daemon is killed again and again.
#[test]
fn streams_outlast_a_killed_daemon() {
    let kills = if full() { 50 } else { 4 };
    let bed = Bed::up(&spec("survive", &["6.12", "6.12", "6.1"]));
    let takers = ["a", "b", "c"].map(|guest| take(&bed.guest(guest)));
    let ways = [("a", "b"), ("b", "a"), ("c", "a"), ("b", "c")];
    let streams = ways.map(|(from, to)| (from, give(&bed, from, to, 3 + 2 * kills)));
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(1500));
        bed.kill_daemon();
    }
    let mut bytes = Vec::new();
    for (from, stream) in streams {
        let figures = json(&bed.guest(from), "stream give", &stream.wait().unwrap());
        bytes.push(figures["bytes"].to_string());
    }
    drop(takers);
    kept(1, &format!("{kills} times killed: 4 streams whole, checksums equal ({} bytes)", bytes.join(", ")));
    bed.finish();
}
