//! On the host: how the VMM was started, and where it runs.

use crate::host::{Host, Quota, Vm, Vmm, Worker};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "vmm-settings", examine };

/// Milliseconds of a device's time-out: QEMU's default, and the least that is no fault.
const DEFAULT: u64 = 5000;
const LEAST: u64 = 30_000;
/// Of the periods of a quota, those that may be cut short: while it was watched, and since it is counted.
const THROTTLED: f64 = 0.05;
const EVER_THROTTLED: f64 = 0.1;
/// Of its time, how much work a worker may have.
const BUSY: f64 = 0.95;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(host) = &evidence.host else { return Vec::new() };
    let with = host.vms.iter().filter_map(|vm| Some((vm, vm.vmm.as_ref()?)));
    with.flat_map(|(vm, vmm)| of(host, vm, vmm)).chain(of_host(host)).collect()
}

fn finding(severity: Severity, what: String, share: f64, cost: &str) -> Finding {
    CHECK.found(severity, what, Cost::estimated(share, cost))
}

fn of(host: &Host, vm: &Vm, vmm: &Vmm) -> Vec<Finding> {
    let name = &vm.name;
    let read = format!("/proc/{}/cmdline", vmm.pid);
    let arguments = |what: &str| Remedy::new(what).run(&["vmlane", "attach", name, "--for", "qemu"]);
    let mut found = Vec::new();
    if vmm.shared_memory != Some(true) {
        let what = format!("The memory of VM {name} is not shared with the daemon.");
        let apart = finding(Severity::Broken, what, 1.0, "its devices cannot reach its memory");
        let shared = "start it with a memory back end that is shared: memory-backend-memfd,share=on";
        found.push(apart.evidence(read.clone()).remedy(arguments(shared)));
    }
    for device in &vmm.devices {
        if vm.sockets.contains(&device.socket) && !device.no_posted_writes {
            let what = format!("The VMCI device of VM {name} was started with posted writes.");
            let cost = "its driver goes on before a command was carried out";
            let posted = finding(Severity::Broken, what, 0.8, cost).evidence(read.clone());
            found.push(posted.remedy(arguments("give the device x-no-posted-writes")));
        }
        let timeout = device.message_timeout.unwrap_or(DEFAULT);
        if timeout < LEAST {
            let what = format!("QEMU waits only {timeout} ms for an answer to a device of VM {name}.");
            let short = finding(Severity::Advice, what, 0.3, "the device is lost when the host is suspended");
            let seen = format!("{read}: {}", device.socket);
            found.push(short.evidence(seen).remedy(arguments("give the device x-msg-timeout of 60000")));
        }
    }
    for cpus in vmm.pinned().into_iter().filter(|_| host.cpus > 1) {
        let workers = host.workers.iter().filter(|worker| worker.cpus == *cpus);
        let workers = workers.map(|worker| format!("the daemon's {}", worker.name));
        let is_pinned = |other: &&Vm| other.vmm.iter().any(|vmm| vmm.pinned().contains(cpus));
        let others = host.vms.iter().skip_while(|other| other.name != *name).skip(1).filter(is_pinned);
        for other in workers.chain(others.map(|other| format!("one of VM {}", other.name))) {
            let what = format!("A virtual CPU of VM {name} and {other} may only run on CPU {cpus}, both.");
            let remedy = Remedy::new("give them different CPUs").lasting("vmlane", "cpus of [daemon]");
            let same = finding(Severity::Slow, what, 0.5, "one waits while the other runs");
            found.push(same.evidence(format!("Cpus_allowed_list of their threads: {cpus}")).remedy(remedy));
        }
    }
    found.extend(vmm.quotas.iter().filter_map(|quota| throttled(name, quota)));
    if vmm.accelerator.as_deref().is_none_or(|accelerator| accelerator == "tcg") {
        let what = format!("The processor of VM {name} is emulated.");
        let emulated = finding(Severity::Machine, what, 0.9, "most of the throughput");
        found.push(emulated.evidence(format!("{read}: no -accel kvm")));
    }
    if !vmm.huge_pages && matches!(host.shared_huge_pages.as_deref(), None | Some("never" | "deny")) {
        let what = format!("The memory of VM {name} is in small pages.");
        let seen = "no hugetlb=on, and shmem_enabled of transparent huge pages is never";
        let remedy = Remedy::new("start it with huge pages (hugetlb=on), or have the daemon ask for some")
            .lasting("vmlane", "huge_pages of [daemon]");
        found.push(finding(Severity::Machine, what, 0.1, "some of the CPU").evidence(seen).remedy(remedy));
    }
    found
}

/// A quota of CPU time stops a VM's threads in the midst of their work.
fn throttled(vm: &str, quota: &Quota) -> Option<Finding> {
    let ever = quota.throttled as f64 / quota.periods.max(1) as f64;
    let (severity, share) = match quota.lately() {
        lately if lately >= THROTTLED => (Severity::Slow, lately),
        _ if ever >= EVER_THROTTLED => (Severity::Advice, ever),
        _ => return None,
    };
    let Quota { group, cpus, .. } = quota;
    let what = format!("VM {vm} is stopped again and again: it has used up its quota of {cpus:.2} CPUs.");
    let cost = format!("{:.0} % of the periods are cut short; frames wait meanwhile", share * 100.0);
    let seen = format!(
        "/sys/fs/cgroup/{group}/cpu.stat: nr_throttled {} of {}, {} of {} while it was watched",
        quota.throttled, quota.periods, quota.lately_throttled, quota.lately_periods
    );
    let remedy = Remedy::new("raise or remove the quota (cpu.max)")
        .lasting("systemd", "CPUQuota= of the unit, or of the slice above it")
        .lasting("libvirt", format!("virsh schedinfo {vm} --live --config vcpu_quota=-1 emulator_quota=-1"));
    Some(CHECK.found(severity, what, Cost::measured(share, cost)).evidence(seen).remedy(remedy))
}

/// The daemon's own thread is the limit.
fn worker(worker: &Worker) -> Option<Finding> {
    let name = &worker.name;
    if worker.busy < BUSY {
        return None;
    }
    let what = format!("The daemon's {name} has work all the time: its CPU is the limit.");
    let cost = Cost::measured(0.6, format!("it was busy {:.0} % of the time", worker.busy * 100.0));
    let remedy =
        Remedy::new("have more workers, if there are CPUs for them, or CPUs that no other program uses")
            .lasting("vmlane", "workers and cpus of [daemon]; then restart the daemon: VMs continue");
    let finding = CHECK.slow(what, cost);
    Some(finding.evidence("vmlane status --json, twice: busy_seconds").remedy(remedy))
}

fn of_host(host: &Host) -> Vec<Finding> {
    let mut found: Vec<Finding> = host.workers.iter().filter_map(worker).collect();
    if host.all_vcpus > host.cpus {
        let what = format!("The VMs have {} virtual CPUs on {} CPUs of the host.", host.all_vcpus, host.cpus);
        let many = finding(Severity::Machine, what, 0.4, "they wait for each other");
        found.push(many.evidence("-smp of all of them"));
    }
    if host.governor.as_deref() == Some("powersave") {
        let what = "The host's CPU governor saves power.".to_owned();
        let seen = "scaling_governor: powersave; cpupower frequency-set -g performance changes it";
        found.push(finding(Severity::Machine, what, 0.3, "speed of the CPU").evidence(seen));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Device;

    fn found(change: impl FnOnce(&mut Host)) -> Vec<(Severity, String)> {
        let device = Device {
            socket: "/run/web.vmci".to_owned(),
            no_posted_writes: true,
            message_timeout: Some(60_000),
        };
        let vmm = Vmm {
            accelerator: Some("kvm".to_owned()),
            vcpus: 2,
            shared_memory: Some(true),
            huge_pages: true,
            devices: vec![device],
            vcpu_threads: vec![("CPU 0/KVM".to_owned(), "3".to_owned())],
            ..Vmm::default()
        };
        let vm = Vm {
            name: "web".to_owned(),
            sockets: vec!["/run/web.vmci".to_owned()],
            vmm: Some(vmm),
            ..Vm::default()
        };
        let worker = Worker { name: "worker-0".to_owned(), cpus: "2".to_owned(), ..Worker::default() };
        let mut host =
            Host { cpus: 4, all_vcpus: 2, workers: vec![worker], vms: vec![vm], ..Host::default() };
        change(&mut host);
        let evidence = Evidence { host: Some(host), ..Evidence::default() };
        examine(&evidence).into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    fn vmm(host: &mut Host) -> &mut Vmm {
        host.vms[0].vmm.as_mut().unwrap()
    }

    /// Another VM with both virtual CPUs on the CPU of the first.
    fn beside(host: &Host) -> Option<Vm> {
        let mut vm = Vm { name: "db".to_owned(), ..host.vms.first()?.clone() };
        let vmm = vm.vmm.as_mut()?;
        vmm.vcpu_threads.extend(vmm.vcpu_threads.clone());
        Some(vm)
    }

    fn quota(throttled: u64, lately_throttled: u64) -> Quota {
        let group = "machine.slice".to_owned();
        Quota {
            group,
            cpus: 0.5,
            periods: 1000,
            throttled,
            lately_periods: 20,
            lately_throttled,
            ..Quota::default()
        }
    }

    #[test]
    fn what_a_vmm_lacks_is_found() {
        assert!(found(|_| ()).is_empty());
        type Change = fn(&mut Host);
        let cases: [(Change, Severity, &str); 12] = [
            (|host| vmm(host).shared_memory = Some(false), Severity::Broken, "not shared"),
            (|host| vmm(host).devices[0].no_posted_writes = false, Severity::Broken, "posted writes"),
            (|host| vmm(host).devices[0].message_timeout = None, Severity::Advice, "only 5000 ms"),
            (|host| vmm(host).vcpu_threads[0].1 = "2".to_owned(), Severity::Slow, "may only run on CPU 2"),
            (
                |host| host.vms.extend(beside(host)),
                Severity::Slow,
                "VM web and one of VM db may only run on CPU 3",
            ),
            (|host| vmm(host).quotas = vec![quota(9, 0), quota(90, 2)], Severity::Slow, "quota of 0.50 CPUs"),
            (|host| vmm(host).quotas = vec![quota(100, 0)], Severity::Advice, "quota of 0.50 CPUs"),
            (|host| host.workers[0].busy = 0.97, Severity::Slow, "worker-0 has work all the time"),
            (|host| vmm(host).accelerator = Some("tcg".to_owned()), Severity::Machine, "emulated"),
            (|host| vmm(host).huge_pages = false, Severity::Machine, "small pages"),
            (|host| host.all_vcpus = 9, Severity::Machine, "9 virtual CPUs on 4"),
            (|host| host.governor = Some("powersave".to_owned()), Severity::Machine, "saves power"),
        ];
        for (change, severity, phrase) in cases {
            let listed = found(change);
            assert!(
                listed.len() == 1 && listed[0].0 == severity && listed[0].1.contains(phrase),
                "{phrase}: {listed:?}"
            );
        }
    }
}
