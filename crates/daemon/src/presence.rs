//! Which VMs have a VMM, and which of their devices a guest's driver has set up: changes are logged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::host::Host;
use crate::serve::device_name;
use crate::served::Served;

/// A guest that sets its devices up again and again gets no more than one line about each in this time.
const APART: Duration = Duration::from_secs(5);

/// What is there, as far as it was logged: VMs by their names, devices as [`device_name`] has them.
#[derive(Debug, Default)]
pub struct Presence {
    logged: BTreeMap<String, Logged>,
}

#[derive(Debug)]
struct Logged {
    is_there: bool,
    at: Instant,
}

impl Presence {
    /// What has come (true) or gone since, to be logged now.
    pub fn changes(&mut self, there: &BTreeSet<String>, now: Instant) -> Vec<(String, bool)> {
        let mut changes = Vec::new();
        for name in there.iter().filter(|name| !self.logged.contains_key(*name)) {
            changes.push((name.clone(), true));
        }
        for (name, logged) in &mut self.logged {
            let is_there = there.contains(name);
            if is_there != logged.is_there && now.duration_since(logged.at) >= APART {
                *logged = Logged { is_there, at: now };
                changes.push((name.clone(), is_there));
            }
        }
        // What has been gone for a while is as if it had never been.
        self.logged.retain(|_, logged| logged.is_there || now.duration_since(logged.at) < APART);
        for (name, _) in changes.iter().filter(|(_, is_there)| *is_there) {
            self.logged.entry(name.clone()).or_insert(Logged { is_there: true, at: now });
        }
        changes.sort();
        changes
    }

    pub fn log_changes(&mut self, host: &Host, served: &Mutex<Served>) {
        for (name, is_there) in self.changes(&present(host, served), Instant::now()) {
            let is_device = name.contains('/');
            match (is_device, is_there) {
                (true, true) => tracing::info!(device = name, "the guest's driver is up"),
                (true, false) => tracing::info!(device = name, "the guest's driver is gone"),
                (false, true) => tracing::info!(vm = name, "a VMM is attached"),
                (false, false) => tracing::info!(vm = name, "gone: no VMM is attached any more"),
            }
        }
    }
}

/// VMs that have a VMM, and devices whose drivers are up. Asks the workers of virtio-vsock devices, if there
/// are any.
fn present(host: &Host, served: &Mutex<Served>) -> BTreeSet<String> {
    let has_virtio = served.lock().vms.iter().any(|vm| vm.vsock_kind() == "virtio");
    let mut ready: HashSet<u32> =
        host.hypervisor.vms().into_iter().filter(|vm| vm.ready).map(|vm| vm.cid).collect();
    if has_virtio {
        let guests = host.vsock_workers.guests();
        ready.extend(guests.into_iter().filter(|guest| guest.ready).map(|guest| guest.cid));
    }
    let ports = host.switch.ports().into_iter().filter(|port| port.attached && !port.spec.uplink);
    let mut present: BTreeSet<String> = ports.map(|port| port.spec.name).collect();
    for vm in served.lock().vms.iter().filter(|vm| vm.attached()) {
        present.insert(vm.name().to_owned());
        if vm.cid().is_some_and(|cid| ready.contains(&cid)) {
            present.insert(device_name(vm.name(), vm.vsock_kind().replace("virtio", "vsock")));
        }
    }
    present
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn change(name: &str, is_there: bool) -> (String, bool) {
        (name.to_owned(), is_there)
    }

    #[test]
    fn what_comes_and_goes_is_reported_once() {
        let mut presence = Presence::default();
        let begun = Instant::now();
        assert_eq!(presence.changes(&set(&[]), begun), []);
        let both = set(&["web", "web/nic0"]);
        assert_eq!(presence.changes(&both, begun), [change("web", true), change("web/nic0", true)]);
        assert_eq!(presence.changes(&both, begun + APART), []);
        assert_eq!(presence.changes(&set(&["web"]), begun + APART), [change("web/nic0", false)]);
        assert_eq!(presence.changes(&set(&[]), begun + 3 * APART), [change("web", false)]);
        assert_eq!(
            presence.changes(&both, begun + 5 * APART),
            [change("web", true), change("web/nic0", true)]
        );
    }

    #[test]
    fn a_driver_that_comes_and_goes_all_the_time_fills_no_log() {
        let mut presence = Presence::default();
        let begun = Instant::now();
        let mut lines = 0;
        for step in 0..100 {
            let there = if step % 2 == 0 { set(&["web/nic0"]) } else { set(&[]) };
            lines += presence.changes(&there, begun + APART / 10 * step).len();
        }
        assert!((2..=11).contains(&lines), "{lines}");
    }
}
