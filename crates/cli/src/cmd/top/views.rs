//! What the views show of two samples of the daemon.

use vmlane_api::CounterList;

use super::rates::{Elapsed, Sample, VmRates, rates};
use super::table::{Cell, Column, Table, number, text};

/// A view, each with a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Vms,
    Sockets,
    Network,
    Workers,
}

impl View {
    pub const ALL: [View; 4] = [View::Vms, View::Sockets, View::Network, View::Workers];

    pub fn key(self) -> char {
        match self {
            View::Vms => 'v',
            View::Sockets => 's',
            View::Network => 'n',
            View::Workers => 'w',
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            View::Vms => "VMs",
            View::Sockets => "sockets",
            View::Network => "network",
            View::Workers => "workers",
        }
    }

    /// The column by which it is sorted at first.
    pub fn sorted_by(self) -> usize {
        match self {
            View::Vms => 4,
            View::Sockets | View::Network => 3,
            View::Workers => 0,
        }
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            View::Vms => &VMS,
            View::Sockets => &SOCKETS,
            View::Network => &NETWORK,
            View::Workers => &WORKERS,
        }
    }
}

const VMS: [Column; 9] = [
    text("VM"),
    text("CID"),
    text("STATE"),
    number("CONNS", ""),
    number("SENT", "Mbit/s"),
    number("RECEIVED", "Mbit/s"),
    number("FRAMES", "/s"),
    number("ON WIRE", "Mbit/s"),
    number("DROPS", "/s"),
];
const SOCKETS: [Column; 8] = [
    text("VM"),
    text("CID"),
    number("CONNS", ""),
    number("SENT", "Mbit/s"),
    number("RECEIVED", "Mbit/s"),
    number("DATAGRAMS", "/s"),
    number("NOTICES", "/s"),
    number("INTERRUPTS", "/s"),
];
const NETWORK: [Column; 9] = [
    text("PORT"),
    text("SWITCH"),
    text("LINK"),
    number("TX", "Mbit/s"),
    number("TX", "frames"),
    number("RX", "Mbit/s"),
    number("RX", "frames"),
    number("DROPS", "/s"),
    text("MOSTLY"),
];
const WORKERS: [Column; 8] = [
    text("WORKER"),
    number("LOAD", "%"),
    number("SPIN", "%"),
    number("YIELD", "%"),
    number("NAP", "%"),
    number("SLEEP", "%"),
    text("STATE"),
    text("SERVING"),
];

/// The table of a view, unsorted.
pub fn table(view: View, before: &Sample, now: &Sample) -> Table {
    let rows = match view {
        View::Vms => vms(before, now),
        View::Sockets => sockets(before, now),
        View::Network => network(before, now),
        View::Workers => workers(before, now),
    };
    Table { columns: view.columns(), rows }
}

fn word(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn vms(before: &Sample, now: &Sample) -> Vec<Vec<Cell>> {
    let rates = rates(before, now);
    let row = |vm: &VmRates| {
        let view = now.status.vms.iter().find(|view| view.name == vm.name);
        let state = match view {
            Some(view) if view.quarantined => "quarantine",
            Some(view) if view.ready => "ready",
            // Of its device for sockets, if it has one.
            Some(view) if !["", "none", "absent"].contains(&view.state.as_str()) => view.state.as_str(),
            Some(view) if view.attached => "connected",
            _ => "-",
        };
        vec![
            word(&vm.name),
            cid(vm),
            word(state),
            Cell::Count(vm.connections as f64),
            Cell::BytesPerSecond(vm.sent_per_second),
            Cell::BytesPerSecond(vm.received_per_second),
            Cell::PerSecond(vm.frames_sent_per_second + vm.frames_received_per_second),
            Cell::BytesPerSecond(vm.frame_bytes_per_second),
            Cell::PerSecond(vm.drops_per_second),
        ]
    };
    rates.vms.iter().map(row).collect()
}

fn cid(vm: &VmRates) -> Cell {
    vm.cid.map_or(Cell::Nothing, |cid| word(&cid.to_string()))
}

fn sockets(before: &Sample, now: &Sample) -> Vec<Vec<Cell>> {
    let row = |vm: &VmRates| {
        vec![
            word(&vm.name),
            cid(vm),
            Cell::Count(vm.connections as f64),
            Cell::BytesPerSecond(vm.sent_per_second),
            Cell::BytesPerSecond(vm.received_per_second),
            Cell::PerSecond(vm.datagrams_per_second),
            Cell::PerSecond(vm.notices_per_second),
            Cell::PerSecond(vm.interrupts_per_second),
        ]
    };
    rates(before, now).vms.iter().map(row).collect()
}

/// A port's columns behind its name, switch and link.
fn port(elapsed: Elapsed, then: Option<&CounterList>, now: &CounterList) -> Vec<Cell> {
    let rate = |name| elapsed.of(then, now, &[name]);
    let drops = now.iter().filter(|(name, _)| name.starts_with("drop_"));
    let growth =
        drops.map(|(name, value)| (value.saturating_sub(then.map_or(0, |then| then.get(name))), name));
    let most = growth.max_by_key(|(growth, _)| *growth).filter(|(growth, _)| *growth > 0);
    vec![
        Cell::BytesPerSecond(rate("tx_bytes")),
        Cell::PerSecond(rate("tx_frames")),
        Cell::BytesPerSecond(rate("rx_bytes")),
        Cell::PerSecond(rate("rx_frames")),
        Cell::PerSecond(elapsed.of_all(then, now, "drop_")),
        most.map_or(Cell::Nothing, |(_, name)| word(name.trim_start_matches("drop_"))),
    ]
}

fn network(before: &Sample, now: &Sample) -> Vec<Vec<Cell>> {
    let elapsed = Elapsed::between(before, now);
    let mut rows = Vec::new();
    for vm in &now.stats.vms {
        let status = now.status.vms.iter().find(|status| status.name == vm.name);
        let then = before.stats.vms.iter().find(|then| then.name == vm.name);
        for nic in &vm.nics {
            let status = status.and_then(|vm| vm.nics.iter().find(|status| status.name == nic.name));
            let link = match status {
                Some(nic) if nic.link_down => "down",
                Some(nic) if nic.active => "up",
                _ => "-",
            };
            let switch = word(status.map_or("-", |nic| nic.switch.as_str()));
            let then = then.and_then(|vm| vm.nics.iter().find(|then| then.name == nic.name));
            let mut row = vec![word(&format!("{}/{}", vm.name, nic.name)), switch, word(link)];
            row.extend(port(elapsed, then.map(|then| &then.port), &nic.port));
            rows.push(row);
        }
    }
    for uplink in &now.stats.uplinks {
        let status = now.status.uplinks.iter().find(|status| status.name == uplink.name);
        let link = match status {
            Some(uplink) if uplink.link_down => "down",
            Some(uplink) if uplink.attached => "up",
            _ => "-",
        };
        let then = before.stats.uplinks.iter().find(|then| then.name == uplink.name);
        let switch = word(status.map_or("-", |uplink| uplink.switch.as_str()));
        let mut row = vec![word(&uplink.name), switch, word(link)];
        row.extend(port(elapsed, then.map(|then| &then.port), &uplink.port));
        rows.push(row);
    }
    rows
}

/// The load of a worker between two samples.
pub fn load(name: &str, before: &Sample, now: &Sample) -> Option<f64> {
    shares(name, before, now).map(|[load, ..]| load)
}

/// The shares of that time in which it had work, span, yielded, napped and slept.
fn shares(name: &str, before: &Sample, now: &Sample) -> Option<[f64; 5]> {
    let times = |sample: &Sample| {
        let worker = sample.status.watched.iter().find(|worker| worker.name == name)?;
        Some([worker.busy_seconds, worker.spin_seconds, worker.yield_seconds, worker.nap_seconds])
    };
    let elapsed = now.status.uptime_seconds - before.status.uptime_seconds;
    let (now, before) = (times(now)?, times(before).unwrap_or_default());
    let shares = [0, 1, 2, 3].map(|at| (now[at] - before[at]) / elapsed);
    let [busy, spin, yields, nap] = shares.map(|share| share.min(1.0));
    let sleep = (1.0 - busy - spin - yields - nap).max(0.0);
    let grows = elapsed > 0.0 && shares.iter().all(|share| *share >= 0.0);
    grows.then_some([busy, spin, yields, nap, sleep])
}

fn workers(before: &Sample, now: &Sample) -> Vec<Vec<Cell>> {
    let row = |worker: &vmlane_api::WorkerStatus| {
        let state = match worker.stuck_seconds {
            Some(seconds) => format!("stuck for {seconds:.0} s"),
            None => "well".into(),
        };
        let shares = shares(&worker.name, before, now);
        let shares = shares.map_or([const { Cell::Nothing }; 5], |shares| shares.map(Cell::Share));
        let serving = worker.serving.as_deref().map_or(Cell::Nothing, word);
        std::iter::once(word(&worker.name)).chain(shares).chain([Cell::Text(state), serving]).collect()
    };
    now.status.watched.iter().map(row).collect()
}

#[cfg(test)]
pub mod tests;
