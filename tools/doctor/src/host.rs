//! What a host knows of its VMs without asking them: what the daemon counts, how their VMMs were started, and
//! the host's CPUs.

mod vmm;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use vmlane_access::Peer;
use vmlane_api::{
    Client, ClientError, NicStatus, Ports, Stats, Status, UplinkStatus, VmStatus, WorkerStatus, call,
};

use crate::cgroup;
pub use crate::cgroup::Quota;
use crate::facts::files;
use crate::text::printable;
pub use vmm::{Device, Vmm};

/// For how long the counters are watched.
const WATCHED: Duration = Duration::from_secs(2);
/// VMs that are examined at a time.
pub const MOST: usize = 2;

/// The host, and those of its VMs that are examined.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Host {
    pub cpus: usize,
    /// cpufreq's, where there is one.
    pub governor: Option<String>,
    /// Of /sys/kernel/mm/transparent_hugepage/shmem_enabled: the one that is chosen.
    pub shared_huge_pages: Option<String>,
    /// The daemon's threads that move bytes and frames.
    pub workers: Vec<Worker>,
    pub vms: Vec<Vm>,
    /// Addresses of cards that another VM has, too: VM/nicN of both.
    pub duplicates: Vec<(String, String, String)>,
    /// Virtual CPUs of all VMMs of this daemon's VMs.
    pub all_vcpus: usize,
    pub uplinks: Vec<UplinkStatus>,
    /// Seconds between the two times at which counters were read.
    pub watched: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Worker {
    pub name: String,
    /// Where it may run, as a list of CPUs; empty if that is not known.
    pub cpus: String,
    /// Which part of the time it had work, while it was watched.
    pub busy: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Vm {
    pub name: String,
    pub cid: Option<u32>,
    pub group: String,
    /// `vmci`, `virtio`, `hybrid` or `none`.
    pub vsock: String,
    pub attached: bool,
    pub ready: bool,
    /// Of its device for sockets: see [`VmStatus`].
    pub state: String,
    /// Its devices whose sessions the keeper holds while no daemon runs.
    pub held: Vec<String>,
    pub quarantined: bool,
    /// Those of its device for sockets.
    pub sockets: Vec<String>,
    pub nics: Vec<Nic>,
    /// Bounds that were reached: what, how often.
    pub refused: Vec<(String, u64)>,
    pub vmm: Option<Vmm>,
    /// Why that is not known, if a VMM is connected.
    pub unread: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Nic {
    pub name: String,
    pub mac: String,
    pub switch: String,
    pub port_group: String,
    pub vlan: String,
    pub attached: bool,
    pub active: bool,
    /// See [`VmStatus`].
    pub state: String,
    pub link_down: bool,
    /// The address that the guest uses.
    pub mac_in_use: Option<String>,
    /// Since counting began, and while it was watched.
    pub total: BTreeMap<String, u64>,
    pub lately: BTreeMap<String, u64>,
}

impl Nic {
    pub fn count(&self, name: &str) -> u64 {
        self.total.get(name).copied().unwrap_or(0)
    }

    pub fn lately(&self, name: &str) -> u64 {
        self.lately.get(name).copied().unwrap_or(0)
    }
}

/// Of each VM with a VMM: its QEMU, or why that is not known.
type Vmms = BTreeMap<String, Result<Vmm, String>>;

/// What the daemon reported, twice.
struct Answers {
    status: Status,
    now: Status,
    ports: Ports,
    before: Stats,
    after: Stats,
    vmms: Vmms,
    /// The daemon's threads and where they may run.
    threads: Vec<(String, String)>,
}

/// Asks the daemon whose runtime directory this is about these VMs.
pub fn read(runtime_dir: &Path, names: &[String], progress: &dyn Fn(&str)) -> Result<Host, String> {
    let failed = |error: ClientError| error.to_string();
    let ask = || Client::connect(runtime_dir).map_err(failed);
    let mut client = ask()?;
    let status = client.call(&call::Status {}).map_err(failed)?;
    let shows = shows_same_processes(&client, status.pid);
    for name in names {
        if !status.vms.iter().any(|vm| vm.name == *name) {
            let known: Vec<&str> = status.vms.iter().map(|vm| vm.name.as_str()).take(20).collect();
            return Err(format!(
                "the daemon has no VM \"{}\"; it has: {}",
                printable(name),
                known.join(", ")
            ));
        }
    }
    progress("reading the daemon's counters");
    let quotas = |status: &Status| match &shows {
        Ok(()) => quotas(status, names),
        Err(_) => BTreeMap::new(),
    };
    let quotas_before = quotas(&status);
    let before = ask()?.call(&call::Stats {}).map_err(failed)?;
    std::thread::sleep(WATCHED);
    let after = ask()?.call(&call::Stats {}).map_err(failed)?;
    let ports = ask()?.call(&call::Ports {}).map_err(failed)?;
    progress("reading how the VMs were started");
    let mut vmms = match &shows {
        Ok(()) => vmms(&status),
        Err(why) => attached(&status).map(|vm| (vm.name.clone(), Err(why.clone()))).collect(),
    };
    for (pid, now) in quotas(&status) {
        let before = quotas_before.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let now = cgroup::since(before, now);
        vmms.values_mut().flatten().filter(|vmm| vmm.pid == pid).for_each(|vmm| vmm.quotas.clone_from(&now));
    }
    let threads = if shows.is_ok() { vmm::threads(status.pid) } else { Vec::new() };
    let now = ask()?.call(&call::Status {}).map_err(failed)?;
    // A process that has ended meanwhile was disconnected, and another one may have its number.
    let vmms = of_same_processes(vmms, &now);
    Ok(of(&Answers { status, now, ports, before, after, vmms, threads }, names))
}

/// These VMs while no daemon runs, if a keeper holds, or has closed, sessions of them. `held` and `lost` are
/// the keeper's names of devices, such as `web.vsock`.
pub fn without_daemon(names: &[String], held: &[String], lost: &[String]) -> Option<Host> {
    let devices = |all: &[String], vm: &str| -> Vec<String> {
        let parts = all.iter().filter_map(|name| name.rsplit_once('.'));
        parts.filter(|(owner, _)| *owner == vm).map(|(_, device)| printable(device)).collect()
    };
    let vms = names.iter().map(|name| Vm {
        name: printable(name),
        held: devices(held, name),
        state: if devices(lost, name).is_empty() { "absent" } else { "lost" }.to_owned(),
        ..Vm::default()
    });
    let vms: Vec<Vm> = vms.collect();
    let has_sessions = vms.iter().any(|vm| !vm.held.is_empty() || vm.state == "lost");
    has_sessions.then(|| Host { vms, ..Host::default() })
}

/// Of the VMMs of these VMs, by their processes.
fn quotas(status: &Status, names: &[String]) -> BTreeMap<u32, Vec<Quota>> {
    let pids = attached(status).filter(|vm| names.contains(&vm.name)).filter_map(|vm| vm.vmm_pid);
    pids.map(|pid| (pid, cgroup::of_process(pid))).collect()
}

/// Numbers of processes that the daemon names are those of /proc here only if both are in one PID namespace.
fn shows_same_processes(daemon: impl AsFd, pid: u32) -> Result<(), String> {
    let peer = Peer::of(daemon).map_err(|error| format!("the daemon's process is unknown: {error}"))?;
    if u32::try_from(peer.pid) == Ok(pid) {
        return Ok(());
    }
    Err(format!(
        "the daemon calls itself process {pid} and is process {} here: another PID namespace",
        peer.pid
    ))
}

fn attached(status: &Status) -> impl Iterator<Item = &VmStatus> {
    status.vms.iter().filter(|vm| vm.attached)
}

fn vmms(status: &Status) -> Vmms {
    let read = |vm: &VmStatus| match vm.vmm_pid {
        Some(pid) => vmm::of_process(pid),
        None => Err("the daemon knows no single process as its VMM".to_owned()),
    };
    attached(status).map(|vm| (vm.name.clone(), read(vm))).collect()
}

fn of_same_processes(mut vmms: Vmms, now: &Status) -> Vmms {
    for (name, vmm) in &mut vmms {
        let pid = attached(now).find(|vm| vm.name == *name).and_then(|vm| vm.vmm_pid);
        if let Ok(Vmm { pid: before, .. }) = *vmm
            && pid != Some(before)
        {
            *vmm = Err(format!("process {before} has ended meanwhile"));
        }
    }
    vmms
}

fn of(answers: &Answers, names: &[String]) -> Host {
    let vmm = |vm: &VmStatus| answers.vmms.get(&vm.name);
    let chosen = answers.status.vms.iter().filter(|vm| names.contains(&vm.name));
    let mut vms: Vec<Vm> = chosen
        .map(|vm| Vm {
            name: printable(&vm.name),
            cid: vm.cid,
            group: printable(&vm.group),
            vsock: vm.vsock.clone(),
            attached: vm.attached,
            ready: vm.ready,
            state: printable(&vm.state),
            held: Vec::new(),
            quarantined: vm.quarantined,
            sockets: vm.sockets.clone(),
            nics: vm.nics.iter().map(|nic| card(answers, &vm.name, nic)).collect(),
            refused: refused(answers, &vm.name),
            vmm: vmm(vm).and_then(|vmm| vmm.as_ref().ok()).cloned(),
            unread: vmm(vm).and_then(|vmm| vmm.as_ref().err()).cloned(),
        })
        .collect();
    // In the order in which they were named.
    vms.sort_by_key(|vm| names.iter().position(|name| *name == vm.name));
    let all_vcpus = answers.vmms.values().flatten().map(|vmm| vmm.vcpus).sum();
    Host {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        governor: files::line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        shared_huge_pages: files::line("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
            .as_deref()
            .and_then(chosen_of),
        workers: answers.now.watched.iter().map(|worker| of_worker(answers, worker)).collect(),
        duplicates: duplicates(&answers.status, names),
        vms,
        all_vcpus,
        uplinks: answers.now.uplinks.clone(),
        watched: (answers.after.uptime_seconds - answers.before.uptime_seconds).max(0.0),
    }
}

/// "always within_size [advise] never": the word in brackets.
fn chosen_of(words: &str) -> Option<String> {
    words.split_whitespace().find_map(|word| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned()))
}

fn card(answers: &Answers, vm: &str, nic: &NicStatus) -> Nic {
    let port = answers.ports.switch.iter().find(|port| port.name == format!("{vm}/{}", nic.name));
    let counters = |stats: &Stats| -> BTreeMap<String, u64> {
        let vm = stats.vms.iter().find(|known| known.name == vm);
        let nic = vm.and_then(|vm| vm.nics.iter().find(|known| known.name == nic.name));
        nic.map(|nic| nic.port.iter().map(|(name, value)| (name.to_owned(), value)).collect())
            .unwrap_or_default()
    };
    let (before, total) = (counters(&answers.before), counters(&answers.after));
    let since = |(name, value): (&String, &u64)| {
        (name.clone(), value.saturating_sub(before.get(name).copied().unwrap_or(0)))
    };
    Nic {
        name: nic.name.clone(),
        mac: nic.mac.clone(),
        switch: printable(&nic.switch),
        port_group: printable(&nic.port_group),
        vlan: port.map(|port| port.vlan.clone()).unwrap_or_default(),
        attached: nic.attached,
        active: nic.active,
        state: nic.state.clone(),
        link_down: nic.link_down,
        mac_in_use: port.and_then(|port| port.mac_in_use.clone()),
        lately: total.iter().map(since).collect(),
        total,
    }
}

fn refused(answers: &Answers, vm: &str) -> Vec<(String, u64)> {
    let vm = answers.after.vms.iter().find(|known| known.name == vm);
    let bounds = vm.into_iter().flat_map(|vm| &vm.bounds).filter(|bound| bound.refused > 0);
    bounds.map(|bound| (bound.name.clone(), bound.refused)).collect()
}

fn of_worker(answers: &Answers, worker: &WorkerStatus) -> Worker {
    let threads = &mut answers.threads.iter();
    let cpus = threads.find(|(name, _)| *name == worker.name).map(|(_, cpus)| cpus.clone());
    let before = answers.status.watched.iter().find(|before| before.name == worker.name);
    let worked = before.map_or(0.0, |before| worker.busy_seconds - before.busy_seconds);
    let elapsed = answers.now.uptime_seconds - answers.status.uptime_seconds;
    Worker {
        name: worker.name.clone(),
        cpus: cpus.unwrap_or_default(),
        busy: if elapsed > 0.0 { (worked / elapsed).clamp(0.0, 1.0) } else { 0.0 },
    }
}

/// The same address, configured or in use, on a card of one of these VMs and on another card of its port
/// group.
fn duplicates(status: &Status, names: &[String]) -> Vec<(String, String, String)> {
    let cards = status.vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (&vm.name, nic)));
    let cards: Vec<(&String, &NicStatus)> = cards.collect();
    let mut found = Vec::new();
    for (at, (vm, nic)) in cards.iter().enumerate() {
        for (other_vm, other) in cards.iter().skip(at + 1) {
            let concerns = names.contains(vm) || names.contains(other_vm);
            let is_same = nic.mac == other.mac && nic.port_group == other.port_group;
            if concerns && is_same && found.len() < 8 {
                let (one, other) = (format!("{vm}/{}", nic.name), format!("{other_vm}/{}", other.name));
                found.push((nic.mac.clone(), one, other));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use serde_json::json;

    use super::*;

    /// A daemon's status, with one VM.
    fn status(vmm_pid: Option<u32>) -> Status {
        let vm = json!({
            "name": "web", "group": "default", "attached": true, "vmm_pid": vmm_pid, "ready": true, "sockets": [],
            "queue_pairs": 0, "queue_pair_bytes": 0, "connections": 0, "doorbells": 0, "inbox_bytes": 0
        });
        let status = json!({
            "daemon": "0.1.0", "pid": 1, "uptime_seconds": 1.0, "config": "", "runtime_dir": "", "workers": 1, "mode": "poll",
            "spin_us": 0, "fault_injection": false, "vms": [vm]
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_process_that_has_ended_does_not_speak_for_a_vm() {
        let read = || BTreeMap::from([("web".to_owned(), Ok(Vmm { pid: 7, ..Vmm::default() }))]);
        assert!(of_same_processes(read(), &status(Some(7)))["web"].is_ok());
        for now in [None, Some(8)] {
            let why = of_same_processes(read(), &status(now))["web"].clone().unwrap_err();
            assert!(why.contains("process 7 has ended"), "{why}");
        }
    }

    #[test]
    fn only_the_process_that_the_daemon_names_is_read() {
        let why = vmms(&status(None))["web"].clone().unwrap_err();
        assert!(why.contains("no single process"), "{why}");
        let why = vmms(&status(Some(std::process::id())))["web"].clone().unwrap_err();
        assert!(why.contains("is no QEMU"), "{why}");
    }

    #[test]
    fn vms_whose_sessions_wait_are_known_without_a_daemon() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let names = list(&["web", "db"]);
        let host =
            without_daemon(&names, &list(&["web.vsock", "web.nic0", "x.y.vmci"]), &list(&["db.vsock"]));
        let vms = host.unwrap().vms;
        assert_eq!((&vms[0].held, vms[0].state.as_str()), (&list(&["vsock", "nic0"]), "absent"));
        assert_eq!((&vms[1].held, vms[1].state.as_str()), (&list(&[]), "lost"));
        assert!(without_daemon(&names, &list(&["x.vmci"]), &[]).is_none());
    }

    #[test]
    fn a_worker_is_busy_for_a_part_of_the_time_that_it_was_watched() {
        let at = |uptime: f64, busy: f64| {
            let mut status = status(None);
            status.uptime_seconds = uptime;
            let worker = json!({ "name": "switch", "busy_seconds": busy });
            status.watched = vec![serde_json::from_value(worker).unwrap()];
            status
        };
        let answers = Answers {
            status: at(10.0, 4.0),
            now: at(12.0, 5.0),
            ports: serde_json::from_value(json!({ "connections": [] })).unwrap(),
            before: Stats::default(),
            after: Stats::default(),
            vmms: BTreeMap::new(),
            threads: vec![("switch".to_owned(), "0-3".to_owned())],
        };
        let worker = &of(&answers, &[]).workers[0];
        assert_eq!((worker.cpus.as_str(), worker.busy), ("0-3", 0.5));
    }

    #[test]
    fn numbers_of_another_pid_namespace_are_not_taken_for_those_of_this_one() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(shows_same_processes(&near, std::process::id()), Ok(()));
        assert!(shows_same_processes(&near, 1).unwrap_err().contains("another PID namespace"));
    }
}
