//! `vmlane stats`.

use std::process::ExitCode;

use anyhow::bail;
use vmlane_api::{Bound, Client, CounterList, Stats, VmStats, call};

use super::control::{Show, table};
use crate::row;

const EXAMPLES: &str = "Examples:
  vmlane stats
  vmlane stats web --all
  vmlane stats --interval 1
  vmlane stats --json | jq '.vms[] | {name, lost: .vmci.refused_full}'
  vmlane stats web | grep drop_                 why frames of a NIC were dropped

Counters only grow while the daemon runs. With --interval, a second column shows the growth per second since the previous
output.";

/// Shows the counters of VMs and workers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this VM
    vm: Option<String>,
    /// Include counters that are 0
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    show: Show,
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut before: Option<Stats> = None;
        let wanted = self.vm.as_deref();
        let ask = |client: &mut Client| {
            let mut stats = client.call(&call::Stats {})?;
            // The only VM asked for, if it is there; an unknown one is reported in `plain` and below.
            if let Some(name) = wanted
                && stats.vms.iter().any(|vm| vm.name == name)
            {
                stats.vms.retain(|vm| vm.name == name);
            }
            Ok(stats)
        };
        if let Some(name) = wanted {
            known(name, &self.show.place.connect()?.call(&call::Stats {})?)?;
        }
        self.show.report(ask, |stats| {
            let text = plain(stats, before.as_ref(), self.all, wanted.is_none());
            before = Some(stats.clone());
            Ok(text)
        })
    }
}

/// An unknown VM is an error that names the known ones.
fn known(name: &str, stats: &Stats) -> anyhow::Result<()> {
    if stats.vms.iter().any(|vm| vm.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = stats.vms.iter().map(|vm| vm.name.as_str()).collect();
    bail!("VM {name:?} is not served; known are {}", names.join(", "));
}

pub fn plain(stats: &Stats, before: Option<&Stats>, all: bool, workers: bool) -> String {
    let seconds = before.map_or(0.0, |before| stats.uptime_seconds - before.uptime_seconds);
    let mut rows = vec![if before.is_some() {
        row!["COUNTER", "VALUE", "PER SECOND"]
    } else {
        row!["COUNTER", "VALUE"]
    }];
    let mut list = |prefix: &str, now: &CounterList, then: Option<&CounterList>| {
        for (name, value) in now.iter().filter(|(_, value)| all || *value > 0) {
            let mut row = row![format!("{prefix}.{name}"), value];
            if let Some(then) = then.filter(|_| seconds > 0.0) {
                row.push(format!("{:.0}", value.saturating_sub(then.get(name)) as f64 / seconds));
            }
            rows.push(row);
        }
    };
    if workers {
        list("captures", &stats.captures, before.map(|before| &before.captures));
        list("daemon", &stats.daemon, before.map(|before| &before.daemon));
        list("workers", &stats.workers, before.map(|before| &before.workers));
        list("switch", &stats.switch, before.map(|before| &before.switch));
        list("vsock", &stats.vsock, before.map(|before| &before.vsock));
        for uplink in &stats.uplinks {
            let then =
                before.and_then(|before| before.uplinks.iter().find(|other| other.name == uplink.name));
            list(&format!("uplink.{}", uplink.name), &uplink.port, then.map(|then| &then.port));
        }
        for team in &stats.teams {
            let then = before.and_then(|before| before.teams.iter().find(|other| other.name == team.name));
            list(&format!("team.{}", team.name), &team.team, then.map(|then| &then.team));
        }
    }
    for vm in &stats.vms {
        let then = before.and_then(|before| before.vms.iter().find(|other| other.name == vm.name));
        for (name, counters) in lists(vm) {
            let then = then.and_then(|then| lists(then).find(|(other, _)| *other == name));
            list(&name, counters, then.map(|(_, counters)| counters));
        }
    }
    let bounds = bounds(&stats.vms, |bound| all || bound.used > 0 || bound.refused > 0);
    let gap = if bounds.is_empty() { "" } else { "\n" };
    format!("{}{gap}{bounds}", table(&rows))
}

/// The counters of a VM, with what stands before their names.
pub fn lists(vm: &VmStats) -> impl Iterator<Item = (String, &CounterList)> {
    let nics = vm.nics.iter().flat_map(|nic| {
        let name = |part: &str| format!("{}.{}.{part}", vm.name, nic.name);
        [(name("port"), &nic.port), (name("device"), &nic.device), (name("session"), &nic.session)]
    });
    let name = |part: &str| format!("{}.{part}", vm.name);
    [(name("vmci"), &vm.vmci), (name("vsock"), &vm.vsock), (name("session"), &vm.session)]
        .into_iter()
        .chain(nics)
}

/// A table of what VMs may use.
pub fn bounds<'v>(vms: impl IntoIterator<Item = &'v VmStats>, is_shown: impl Fn(&Bound) -> bool) -> String {
    let mut rows = vec![row!["BOUND", "USED", "LIMIT", "REFUSED"]];
    for vm in vms {
        for bound in vm.bounds.iter().filter(|bound| is_shown(bound)) {
            rows.push(row![format!("{}.{}", vm.name, bound.name), bound.used, bound.limit, bound.refused]);
        }
    }
    if rows.len() > 1 { table(&rows) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(uptime_seconds: f64, bytes: u64) -> Stats {
        let vmci = [("stream_bytes_sent", bytes), ("resets", 0)].into_iter().collect();
        let session = [("reads", 7)].into_iter().collect();
        let vsock = CounterList::default();
        let vm =
            VmStats { name: "web".into(), cid: Some(3), vmci, vsock, session, nics: vec![], bounds: vec![] };
        let workers = [("bytes", bytes)].into_iter().collect();
        Stats { uptime_seconds, workers, vms: vec![vm], ..Stats::default() }
    }

    #[test]
    fn counters_that_are_zero_are_left_away_unless_asked_for() {
        let text = plain(&stats(1.0, 100), None, false, true);
        assert_eq!(
            text,
            "COUNTER                     VALUE\n\
             workers.bytes                 100\n\
             web.vmci.stream_bytes_sent    100\n\
             web.session.reads               7\n"
        );
        assert!(plain(&stats(1.0, 100), None, true, true).contains("web.vmci.resets"));
        assert!(!plain(&stats(1.0, 100), None, true, false).contains("workers"));
    }

    #[test]
    fn rates_are_per_second() {
        let text = plain(&stats(3.0, 600), Some(&stats(1.0, 100)), false, true);
        assert!(text.lines().nth(1).unwrap().ends_with("600         250"), "{text}");
    }

    #[test]
    fn an_unknown_vm_is_refused_with_the_names_of_the_known_ones() {
        assert!(known("web", &stats(1.0, 1)).is_ok());
        let error = known("wbe", &stats(1.0, 1)).unwrap_err().to_string();
        assert_eq!(error, "VM \"wbe\" is not served; known are web");
    }
}
