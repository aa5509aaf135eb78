//! `vmlane top`: live traffic per VM.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use vmlane_api::{Stats, Status, VmStats};

use super::control::{Where, bytes, is_terminal, json, print, seconds, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane top
  vmlane top --interval 0.5 --count 10
  vmlane top --json | jq -r '[.seconds, .bytes_per_second] | @tsv'

SENT and RECEIVED are bytes per second in the guest's sockets (VMCI's streams, virtio-vsock's packets). NOTICES are datagrams that announce bytes or room, in
either direction. ACCESSES are trapped register accesses.";

/// Shows live traffic per VM
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Stop after this many updates
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
}

/// What happened per second, between two looks.
#[derive(Debug, PartialEq, Serialize)]
struct Rates {
    /// Between the two.
    seconds: f64,
    bytes_per_second: f64,
    vms: Vec<VmRates>,
}

#[derive(Debug, PartialEq, Serialize)]
struct VmRates {
    name: String,
    cid: Option<u32>,
    frames_sent_per_second: f64,
    frames_received_per_second: f64,
    frame_bytes_per_second: f64,
    drops_per_second: f64,
    ready: bool,
    connections: usize,
    sent_per_second: f64,
    received_per_second: f64,
    notices_per_second: f64,
    datagrams_per_second: f64,
    interrupts_per_second: f64,
    accesses_per_second: f64,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut before = self.place.connect()?.stats()?;
        let mut left = self.count;
        while left != Some(0) {
            std::thread::sleep(self.interval);
            let mut client = self.place.connect()?;
            let (status, now) = (client.status()?, client.stats()?);
            let rates = rates(&before, &now, &status);
            let text = if self.json { json(&rates)? } else { screen(&rates, &status) };
            if !print(&text)? {
                break;
            }
            before = now;
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn rates(before: &Stats, now: &Stats, status: &Status) -> Rates {
    // A restarted daemon counts from 0 again: its uptime is the time since then.
    let elapsed = now.uptime_seconds - before.uptime_seconds;
    let seconds = if elapsed > 0.0 { elapsed } else { now.uptime_seconds.max(1e-3) };
    let per_second = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now) as f64 / seconds;
    let vm_rates = |vm: &VmStats| {
        let then = before.vms.iter().find(|other| other.name == vm.name);
        let vmci = |names: &[&str]| {
            let sum = |list: &vmlane_api::CounterList| names.iter().map(|name| list.get(name)).sum::<u64>();
            per_second(sum(&vm.vmci), then.map_or(0, |then| sum(&then.vmci)))
        };
        let vsock = |name: &str| per_second(vm.vsock.get(name), then.map_or(0, |then| then.vsock.get(name)));
        let session =
            |name: &str| per_second(vm.session.get(name), then.map_or(0, |then| then.session.get(name)));
        let ports = |wanted: &dyn Fn(&str) -> bool| {
            let sum = |vm: &VmStats| -> u64 {
                let counters = vm.nics.iter().flat_map(|nic| nic.port.iter());
                counters.filter(|(name, _)| wanted(name)).map(|(_, value)| value).sum()
            };
            per_second(sum(vm), then.map_or(0, sum))
        };
        let frames = |names: &[&str]| ports(&|name| names.contains(&name));
        let drops = ports(&|name| name.starts_with("drop_"));
        let view = status.vms.iter().find(|view| view.name == vm.name);
        VmRates {
            name: vm.name.clone(),
            cid: vm.cid,
            frames_sent_per_second: frames(&["tx_frames"]),
            frames_received_per_second: frames(&["rx_frames"]),
            frame_bytes_per_second: frames(&["tx_bytes", "rx_bytes"]),
            drops_per_second: drops,
            ready: view.is_some_and(|view| view.ready),
            connections: view.map_or(0, |view| view.connections),
            sent_per_second: vmci(&["stream_bytes_sent"]) + vsock("bytes_sent"),
            received_per_second: vmci(&["stream_bytes_received"]) + vsock("bytes_received"),
            notices_per_second: vmci(&[
                "wrote_sent",
                "read_sent",
                "waiting_sent",
                "wrote_received",
                "read_received",
            ]),
            datagrams_per_second: vmci(&["datagrams_sent", "datagrams_received"]),
            interrupts_per_second: vmci(&["interrupts"]),
            accesses_per_second: session("reads") + session("writes"),
        }
    };
    // What goes from one virtio-vsock guest to another passes no worker of streams.
    let moved = |stats: &Stats| {
        stats.workers.get("bytes") + stats.vsock.get("bytes").saturating_sub(stats.vsock.get("relayed_bytes"))
    };
    Rates {
        seconds,
        bytes_per_second: per_second(moved(now), moved(before)),
        vms: now.vms.iter().map(vm_rates).collect(),
    }
}

fn screen(rates: &Rates, status: &Status) -> String {
    let speed = |value: f64| format!("{}/s", bytes(value));
    let mut rows = vec![row![
        "VM",
        "CID",
        "READY",
        "CONNECTIONS",
        "SENT",
        "RECEIVED",
        "NOTICES",
        "DATAGRAMS",
        "INTERRUPTS",
        "ACCESSES",
        "FRAMES OUT",
        "FRAMES IN",
        "ON WIRE",
        "DROPS"
    ]];
    for vm in &rates.vms {
        rows.push(row![
            vm.name,
            vm.cid.map_or_else(|| "-".into(), |cid| cid.to_string()),
            if vm.ready { "yes" } else { "no" },
            vm.connections,
            speed(vm.sent_per_second),
            speed(vm.received_per_second),
            format!("{:.0}/s", vm.notices_per_second),
            format!("{:.0}/s", vm.datagrams_per_second),
            format!("{:.0}/s", vm.interrupts_per_second),
            format!("{:.0}/s", vm.accesses_per_second),
            format!("{:.0}/s", vm.frames_sent_per_second),
            format!("{:.0}/s", vm.frames_received_per_second),
            speed(vm.frame_bytes_per_second),
            format!("{:.0}/s", vm.drops_per_second),
        ]);
    }
    // On a terminal the picture replaces the one before; elsewhere they follow each other.
    let (clear, end) = if is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    format!(
        "{clear}vmlane {}, up {:.0} s: {} in all\n{}{end}",
        status.daemon,
        status.uptime_seconds,
        speed(rates.bytes_per_second),
        table(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(uptime_seconds: f64, bytes: u64) -> Stats {
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
        Stats { uptime_seconds, workers, vms: vec![vm], ..Stats::default() }
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
        let rates = rates(&look(1.0, 1000), &look(3.0, 5000), &status());
        assert_eq!((rates.seconds, rates.bytes_per_second), (2.0, 2000.0));
        let vm = &rates.vms[0];
        assert_eq!(
            (vm.sent_per_second, vm.notices_per_second, vm.accesses_per_second),
            (2000.0, 40.0, 400.0)
        );
    }

    #[test]
    fn a_restarted_daemon_does_not_make_nonsense() {
        let rates = rates(&look(1000.0, 1 << 40), &look(2.0, 3000), &status());
        assert_eq!((rates.seconds, rates.bytes_per_second), (2.0, 1500.0));
    }
}
