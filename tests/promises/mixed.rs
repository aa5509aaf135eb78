//! Guests with VMware's devices and ones with virtio's: what pairs of both carry beside pairs of the same
//! kind, in turns in one lab.

use serde_json::Value;
use vmlane_tests::traffic::iperf;
use vmlane_tests::{Bed, TIMEOUT, full, kept, median};

vmlane_tests::tests! {
    long in MIXED { mixed_pairs_keep_up_with_pairs_of_one_kind }
}

/// VMware's kind, virtio's, and mixed, each way: guests, and cards of guests a and b.
const GUESTS: [(&str, &str); 4] = [("a", "d"), ("b", "c"), ("a", "b"), ("b", "a")];
const CARDS: [(&str, &str); 4] = [("eth0", "eth0"), ("eth1", "eth1"), ("eth0", "eth1"), ("eth1", "eth0")];

fn mixed_pairs_keep_up_with_pairs_of_one_kind(bed: &Bed) {
    let seconds = if full() { 5 } else { 1 };
    let servers = ["a", "b", "c", "d"].map(|guest| {
        let server = bed.guest(guest).spawn(["vmlane", "bench", "server", "--listen", "vsock:"]).unwrap();
        server.wait_for("listening on vsock", TIMEOUT).unwrap();
        server
    });
    compare(["VMCI", "virtio-vsock"], GUESTS, |from, to| {
        let line = format!("vmlane bench stream --to vsock:{} -m 64k -l {seconds} --json", bed.cid(to));
        let figures: Value = serde_json::from_str(&bed.guest(from).sh(&line).unwrap()).unwrap();
        figures["throughput_bps"].as_f64().unwrap() / 1e6
    });
    drop(servers);
    compare(["vmxnet3", "virtio-net"], CARDS, |from, to| {
        // A link's own address is reached by the card that is named; all cards are on one link.
        let shown = bed
            .guest("b")
            .sh(&format!("ip -6 -o addr show dev {to} scope link | awk '{{ print $4 }}'"))
            .unwrap();
        let address = shown.trim().split('/').next().unwrap();
        let options = format!("-t {seconds} -O 1");
        iperf(bed, ["a", "b"], &format!("{address}%{from}"), 5201, &options) * 1e3
    });
}

/// Measures the pairs in turns, in Mbit/s.
fn compare([ours, theirs]: [&str; 2], pairs: [(&str, &str); 4], measure: impl Fn(&str, &str) -> f64) {
    let rounds = if full() { 7 } else { 1 };
    let mut figures: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds {
        for ((from, to), figures) in pairs.into_iter().zip(&mut figures) {
            figures.push(measure(from, to));
        }
    }
    let [vmware, virtio, out, back] = figures.map(median);
    let slower = vmware.min(virtio);
    kept(
        "pairs",
        &format!(
            "{ours} to {ours} {vmware:.0} Mbit/s, {theirs} to {theirs} {virtio:.0}; {ours} to {theirs} {:.2} of the \
             slower one, back {:.2}; medians of {rounds}",
            out / slower,
            back / slower
        ),
    );
}
