//! Proofs in real guests: the remedy of each fault that is a setting of the machine it is in.

use rustix::process::Signal;
use serde_json::Value;
use vmlane_tests::{Bed, wait_until};

use super::faults::Fault;
use super::namespaces::{RECORD, improvement, spread};
use super::{differing, still_differing};

/// What a remedy must be seen to improve.
pub enum Gain {
    /// The gauge whose name begins so.
    Of(&'static str),
    /// Nothing between two guests on an undisturbed path shows it, at least not beyond the spread of
    /// emulation: it must be tried, and reported as it is.
    Unseen,
}

/// Faults of the other file by name, and what their remedies gain. All are here whose remedy is a run-time
/// setting of the machine that has the fault, but:
///
/// * "super-frames that are lost" has its remedy at the sender, and the fault at the receiver; the ladder
///   proves it
/// * "segments of 500 bytes" is a route, loss, duplicates, delays, policers and long queues are queueing
///   disciplines, and what shares an address or spins is an address or a program: a proof touches none of
///   these
pub const PROVABLE: &[(&str, Gain)] = &[
    ("MTU 9000 on one end", Gain::Of("datagrams")),
    ("receive buffers of the other end", Gain::Of("throughput")),
    ("TSO off", Gain::Of("throughput")),
    ("MTU below the other end's", Gain::Of("datagrams")),
    ("send buffers", Gain::Of("throughput")),
    ("window scaling off", Gain::Unseen),
    ("SACK off", Gain::Unseen),
    ("autotuning off", Gain::Unseen),
    ("GSO off", Gain::Unseen),
    ("scatter-gather off", Gain::Of("throughput")),
    ("transmit checksum off", Gain::Of("throughput")),
    ("GRO off", Gain::Unseen),
    ("jumbo frames that do not arrive", Gain::Of("datagrams")),
    ("LRO off", Gain::Of("throughput")),
    ("receive checksum off", Gain::Of("throughput")),
    ("a small receive ring", Gain::Unseen),
    ("a small send ring", Gain::Unseen),
    ("an RSS table with one queue", Gain::Unseen),
    ("LRO on while forwarding", Gain::Unseen),
    ("interrupts that wait", Gain::Of("round trips")),
    ("all interrupts on one CPU", Gain::Unseen),
    ("one queue of two", Gain::Unseen),
    ("GRO in hardware off", Gain::Unseen),
];

/// What the guest's own programs print of its settings.
fn settings(bed: &Bed, guest: &str) -> Vec<String> {
    let script = "ip -d address show dev eth0; ip route show table all; for option in k g l c x; do ethtool -$option eth0 2>/dev/null; done; \
                  sysctl net.core net.ipv4 net.ipv6 2>/dev/null | grep -v -e 'net.ipv4.tcp_fastopen_key' -e stable_secret; \
                  for irq in $(ls /sys/class/net/eth0/device/msi_irqs /sys/class/net/eth0/device/../msi_irqs 2>/dev/null); do \
                  cat /proc/irq/$irq/smp_affinity_list 2>/dev/null; done; true";
    let output = bed.guest(guest).exec(["sh", "-c", script]).unwrap();
    output.stdout().lines().map(str::to_owned).collect()
}

/// Puts the fault in, proves its remedy in the guest that has it, and compares that guest's settings. Whether
/// it helps.
fn prove(bed: &Bed, fault: &Fault, gain: &Gain) -> Result<bool, String> {
    let guest = fault.put[0].0;
    let to = if guest == "a" { "tcp:10.77.0.2" } else { "tcp:10.77.0.1" };
    fault.put_into(bed);
    let before = settings(bed, guest);
    let words = ["vmlane", "doctor", "--to", to, "--prove", "--yes", "--quick", "--json"];
    let output = bed.guest(guest).exec(words).unwrap();
    let changed = still_differing(&before, || settings(bed, guest));
    fault.take_out_of(bed);
    let report: Value = serde_json::from_str(&output.stdout())
        .map_err(|error| format!("{}: {error}: {} {}", fault.name, output.stdout(), output.stderr()))?;
    if !changed.is_empty() || report["proof"]["restored"] != true {
        return Err(format!("{}: not as before: {changed:#?} {}", fault.name, report["proof"]));
    }
    let trials = report["proof"]["trials"].as_array().into_iter().flatten();
    let tried: Vec<&Value> = trials.filter(|trial| trial["check"] == fault.check).collect();
    if tried.is_empty() {
        return Err(format!("{}: nothing was tried: {} {}", fault.name, report["findings"], report["proof"]));
    }
    let found = match gain {
        Gain::Of(gauge) => improvement(&report, fault.check, gauge),
        Gain::Unseen => improvement(&report, fault.check, ""),
    };
    match (found, gain) {
        (Some(reading), _) => {
            println!("  {}: {}", fault.name, spread(reading));
            Ok(true)
        }
        (None, Gain::Unseen) if tried.iter().all(|trial| trial["verdict"] != "not_tried") => {
            for reading in tried.iter().flat_map(|trial| trial["readings"].as_array().into_iter().flatten()) {
                println!("  {}: {}: {}", fault.name, reading["verdict"], spread(reading));
            }
            Ok(false)
        }
        // A card of virtio receives frames above its MTU, so nothing was lost before.
        (None, Gain::Of("datagrams")) if nothing_was_lost(&tried) => {
            println!("  {}: all datagrams arrive before, too", fault.name);
            Ok(false)
        }
        (None, _) => Err(format!("{}: no improvement: {:?}", fault.name, tried)),
    }
}

/// Proves in guest a, as it is, what `check` finds on the way to b: the gauge must improve, and the settings
/// be as before.
pub fn prove_here(bed: &Bed, check: &str, gauge: &str) {
    let before = settings(bed, "a");
    let output =
        bed.guest("a").exec(["vmlane", "doctor", "--to", super::TO, "--prove", "--yes", "--json"]).unwrap();
    let report: Value = serde_json::from_str(&output.stdout()).unwrap();
    let reading = improvement(&report, check, gauge);
    let reading = reading.unwrap_or_else(|| panic!("{check}: no improvement of {gauge}: {}", report["proof"]));
    println!("  proven, {check}: {}", spread(reading));
    let changed = differing(&before, &settings(bed, "a"));
    assert!(changed.is_empty() && report["proof"]["restored"] == true, "not as before: {changed:#?}");
}

/// Ctrl-C while a remedy is applied: the doctor ends by it, and its guardian puts the settings back.
fn interrupted(bed: &Bed, fault: &Fault) {
    fault.put_into(bed);
    let before = settings(bed, "a");
    let words =
        ["env", "--default-signal=INT", "vmlane", "doctor", "--to", super::TO, "--prove", "--yes", "--quick"];
    let doctor = bed.guest("a").spawn(words).unwrap();
    wait_until("a remedy is applied", || !differing(&before, &settings(bed, "a")).is_empty());
    doctor.signal(Signal::INT.as_raw());
    let output = doctor.wait().unwrap();
    assert_eq!(output.exit.signal, Some(Signal::INT.as_raw()), "{} {}", output.stdout(), output.stderr());
    wait_until("settings are as before", || differing(&before, &settings(bed, "a")).is_empty());
    bed.guest("a").sh(&format!("test ! -e {RECORD}")).unwrap();
    fault.take_out_of(bed);
    println!("  {}: interrupted while its remedy was applied, and as before", fault.name);
}

fn nothing_was_lost(tried: &[&Value]) -> bool {
    let readings = tried.iter().flat_map(|trial| trial["readings"].as_array().into_iter().flatten());
    let of_datagrams =
        readings.filter(|reading| reading["name"].as_str().is_some_and(|name| name.starts_with("datagrams")));
    let mut before = of_datagrams.filter_map(|reading| reading["before_median"].as_f64()).peekable();
    before.peek().is_some() && before.all(|share| share >= 1.0)
}

/// How many remedies were tried, and how many of them were shown to help.
pub fn prove_all(bed: &Bed, faults: &[&Fault]) -> (usize, usize) {
    let servers = ["a", "b"].map(|guest| super::server(bed, guest, "tcp:0.0.0.0"));
    let only = std::env::var("VMLANE_FAULT").unwrap_or_default();
    let (mut tried, mut helped, mut wrong) = (0, 0, Vec::new());
    for fault in faults.iter().filter(|fault| fault.name.contains(&only)) {
        let Some((_, gain)) = PROVABLE.iter().find(|(name, _)| *name == fault.name) else { continue };
        tried += 1;
        // On a busy machine, the spread may hide anything once.
        match prove(bed, fault, gain).or_else(|why| {
            println!("AGAIN {why}");
            prove(bed, fault, gain)
        }) {
            Ok(helps) => helped += usize::from(helps),
            Err(why) => {
                println!("NOT PROVEN {why}");
                wrong.push(why);
            }
        }
    }
    if let Some(fault) = faults.iter().find(|fault| fault.name == "TSO off") {
        interrupted(bed, fault);
    }
    drop(servers);
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    (tried, helped)
}
