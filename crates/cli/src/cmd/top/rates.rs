//! Rates: what happened per second between two samples.

use std::time::Instant;

use serde::Serialize;
use vmlane_api::{CounterList, Stats, Status, VmStats};

/// One sample of the daemon.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the daemon was asked.
    pub at: Instant,
    pub status: Status,
    pub stats: Stats,
}

/// What happened per second, between two samples.
#[derive(Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Between the two.
    pub seconds: f64,
    pub bytes_per_second: f64,
    pub vms: Vec<VmRates>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct VmRates {
    pub name: String,
    pub cid: Option<u32>,
    pub frames_sent_per_second: f64,
    pub frames_received_per_second: f64,
    pub frame_bytes_per_second: f64,
    pub drops_per_second: f64,
    pub ready: bool,
    pub connections: usize,
    pub sent_per_second: f64,
    pub received_per_second: f64,
    pub notices_per_second: f64,
    pub datagrams_per_second: f64,
    pub interrupts_per_second: f64,
    pub accesses_per_second: f64,
}

/// The time between two samples, and growth in it.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed(f64);

impl Elapsed {
    /// By this process's clock: most counters continue when another daemon takes over, whose uptime begins
    /// again.
    pub fn between(before: &Sample, now: &Sample) -> Elapsed {
        Elapsed(now.at.duration_since(before.at).as_secs_f64().max(1e-3))
    }

    pub fn seconds(self) -> f64 {
        self.0
    }

    /// Growth per second; of a counter that is smaller than before, all of it.
    pub fn rate(self, before: u64, now: u64) -> f64 {
        now.checked_sub(before).unwrap_or(now) as f64 / self.0
    }

    /// Growth per second of the sum of some counters.
    pub fn of(self, before: Option<&CounterList>, now: &CounterList, names: &[&str]) -> f64 {
        let sum = |list: &CounterList| names.iter().map(|name| list.get(name)).sum::<u64>();
        self.rate(before.map_or(0, sum), sum(now))
    }

    /// Growth per second of all counters whose names begin so.
    pub fn of_all(self, before: Option<&CounterList>, now: &CounterList, prefix: &str) -> f64 {
        let counters = |list: &CounterList| -> u64 {
            list.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, value)| value).sum()
        };
        self.rate(before.map_or(0, counters), counters(now))
    }
}

/// Counters that announce bytes or room in streams.
pub const NOTICES: [&str; 5] = ["wrote_sent", "read_sent", "waiting_sent", "wrote_received", "read_received"];
pub const DATAGRAMS: [&str; 2] = ["datagrams_sent", "datagrams_received"];

/// Of all VMs.
pub fn rates(before: &Sample, now: &Sample) -> Rates {
    let elapsed = Elapsed::between(before, now);
    let (before, status, now) = (&before.stats, &now.status, &now.stats);
    let vm_rates = |vm: &VmStats| {
        let then = before.vms.iter().find(|other| other.name == vm.name);
        let vmci = |names: &[&str]| elapsed.of(then.map(|then| &then.vmci), &vm.vmci, names);
        let vsock = |name| elapsed.of(then.map(|then| &then.vsock), &vm.vsock, &[name]);
        let cards = |wanted: &dyn Fn(&str) -> bool| {
            let sum = |vm: &VmStats| -> u64 {
                let counters = vm.nics.iter().flat_map(|nic| nic.port.iter());
                counters.filter(|(name, _)| wanted(name)).map(|(_, value)| value).sum()
            };
            elapsed.rate(then.map_or(0, sum), sum(vm))
        };
        let frames = |names: &[&str]| cards(&|name| names.contains(&name));
        let view = status.vms.iter().find(|view| view.name == vm.name);
        VmRates {
            name: vm.name.clone(),
            cid: vm.cid,
            frames_sent_per_second: frames(&["tx_frames"]),
            frames_received_per_second: frames(&["rx_frames"]),
            frame_bytes_per_second: frames(&["tx_bytes", "rx_bytes"]),
            drops_per_second: cards(&|name| name.starts_with("drop_")),
            ready: view.is_some_and(|view| view.ready),
            connections: view.map_or(0, |view| view.connections),
            sent_per_second: vmci(&["stream_bytes_sent"]) + vsock("bytes_sent"),
            received_per_second: vmci(&["stream_bytes_received"]) + vsock("bytes_received"),
            notices_per_second: vmci(&NOTICES),
            datagrams_per_second: vmci(&DATAGRAMS),
            interrupts_per_second: vmci(&["interrupts"]),
            accesses_per_second: elapsed.of(
                then.map(|then| &then.session),
                &vm.session,
                &["reads", "writes"],
            ),
        }
    };
    // What goes from one virtio-vsock guest to another passes no worker of streams.
    let moved = |stats: &Stats| {
        stats.workers.get("bytes") + stats.vsock.get("bytes").saturating_sub(stats.vsock.get("relayed_bytes"))
    };
    Rates {
        seconds: elapsed.seconds(),
        bytes_per_second: elapsed.rate(moved(before), moved(now)),
        vms: now.vms.iter().map(vm_rates).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// `seconds` after `begun`.
    fn sample(begun: Instant, seconds: u64, bytes: u64) -> Sample {
        let vmci =
            [("stream_bytes_sent", bytes), ("wrote_sent", bytes / 100), ("read_received", bytes / 100)];
        let vm = VmStats {
            name: "web".into(),
            cid: Some(3),
            vmci: vmci.into_iter().collect(),
            vsock: [("bytes_sent", 0)].into_iter().collect(),
            session: [("reads", bytes / 10), ("writes", bytes / 10)].into_iter().collect(),
            nics: vec![],
            bounds: vec![],
        };
        let workers = [("bytes", bytes)].into_iter().collect();
        let stats = Stats { workers, vms: vec![vm], ..Stats::default() };
        Sample { at: begun + Duration::from_secs(seconds), status: status(), stats }
    }

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "daemon": "0", "pid": 1, "uptime_seconds": 1.0, "config": "", "runtime_dir": "", "workers": 1,
            "mode": "adaptive", "spin_us": 500, "fault_injection": false, "vms": []
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_differences_per_second() {
        let begun = Instant::now();
        let rates = rates(&sample(begun, 1, 1000), &sample(begun, 3, 5000));
        assert_eq!((rates.seconds, rates.bytes_per_second), (2.0, 2000.0));
        let vm = &rates.vms[0];
        assert_eq!(
            (vm.sent_per_second, vm.notices_per_second, vm.accesses_per_second),
            (2000.0, 40.0, 400.0)
        );
    }

    #[test]
    fn a_restarted_daemon_gives_no_absurd_rates() {
        let begun = Instant::now();
        let rates = rates(&sample(begun, 0, 1 << 40), &sample(begun, 2, 3000));
        assert_eq!((rates.seconds, rates.bytes_per_second), (2.0, 1500.0));
    }
}
