//! vsock addresses that do not lead where they seem to.

use crate::facts::Facts;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "vsock-address", examine };

/// `VMADDR_CID_LOCAL`.
const LOCAL: u32 = 1;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    if !evidence.is_vsock {
        return Vec::new();
    }
    let flags = evidence.ends().filter_map(|(end, facts)| needs_flag(evidence, end, facts));
    loopback(evidence).into_iter().chain(flags).collect()
}

fn loopback(evidence: &Evidence) -> Option<Finding> {
    let (vsock, why) = (&evidence.near.vsock, evidence.unreachable.as_ref()?);
    let cid = asked(&evidence.to)?;
    // VMCI connects a VM with itself.
    let is_own = vsock.cid == Some(cid) && vsock.has_virtio && !vsock.has_vmci;
    if !(cid == LOCAL || is_own) || has(&evidence.near, "vsock_loopback") {
        return None;
    }
    let name = evidence.name(PathEnd::Near);
    let what = format!(
        "CID {cid} is {name} itself, and the module vsock_loopback, which leads there, is not loaded."
    );
    let cost = Cost::measured(1.0, "no connection over vsock to the machine itself");
    let remedy = Remedy::new("load it")
        .run(&["modprobe", "vsock_loopback"])
        .lasting("modules-load.d", "/etc/modules-load.d/vsock.conf: vsock_loopback");
    let modules = format!("modules: {}", vsock.modules.join(", "));
    let finding = CHECK.broken(what, cost).at(PathEnd::Near);
    Some(finding.evidence(why.clone()).evidence(modules).remedy(remedy))
}

/// No setting of the network changes it, and whether a program sets the flag cannot be seen: kept apart.
fn needs_flag(evidence: &Evidence, end: PathEnd, facts: &Facts) -> Option<Finding> {
    let (kernel, vsock) = (version(&facts.machine.kernel)?, &facts.vsock);
    let name = evidence.name(end);
    let only_vmci = vsock.has_vmci && !vsock.has_virtio;
    let by_kernel = only_vmci && kernel >= (7, 1);
    let is_vm = vsock.has_vmci || vsock.has_virtio;
    let by_module = is_vm && ((5, 10)..(7, 1)).contains(&kernel) && has(facts, "vhost_vsock");
    if !by_kernel && !by_module {
        return None;
    }
    let what = format!("From {name}, a program reaches CIDs above 2 only if it sets VMADDR_FLAG_TO_HOST.");
    let cost = Cost::estimated(0.0, "ENODEV for programs that do not; none for this examination");
    let seen = format!("kernel {}, modules: {}", facts.machine.kernel, vsock.modules.join(", "));
    let mut remedy =
        Remedy::new("set svm_flags in the program, or let it connect to a port of CID 2 that is forwarded");
    if by_module {
        remedy = remedy.run(&["rmmod", "vhost_vsock"]);
    }
    let remedy =
        remedy.lasting("vmlane", "in the VM's [[vm]]: forward = [ { port = 5000, to = \"SERVER:5000\" } ]");
    Some(CHECK.machine(what, cost).at(end).evidence(seen).remedy(remedy))
}

/// The CID of vsock:CID:PORT.
fn asked(to: &str) -> Option<u32> {
    to.strip_prefix("vsock:")?.split(':').next()?.parse().ok()
}

fn has(facts: &Facts, module: &str) -> bool {
    facts.vsock.modules.iter().any(|loaded| loaded == module)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Vsock;
    use crate::testing;

    fn over_vsock(to: &str) -> Evidence {
        let mut evidence = testing::healthy();
        (evidence.is_vsock, evidence.to) = (true, to.to_owned());
        evidence
    }

    #[test]
    fn the_own_cid_needs_the_loopback_module() {
        let mut evidence = over_vsock("vsock:1:12900");
        assert!(examine(&evidence).is_empty(), "a server answered");
        evidence.unreachable = Some("connection refused".to_owned());
        assert_eq!(examine(&evidence)[0].severity, Severity::Broken);
        evidence.to = "vsock:4:12900".to_owned();
        assert!(examine(&evidence).is_empty(), "another machine");
        evidence.near.vsock = Vsock { cid: Some(4), has_virtio: true, ..Vsock::default() };
        assert_eq!(examine(&evidence).len(), 1);
        evidence.near.vsock.modules = vec!["vsock_loopback".to_owned()];
        assert!(examine(&evidence).is_empty());
    }

    #[test]
    fn kernels_and_modules_that_need_the_flag_are_distinguished() {
        let mut evidence = over_vsock("vsock:4:12900");
        evidence.near.vsock.has_vmci = true;
        for (kernel, expected) in
            [("6.12.107", 0), ("7.0.9", 0), ("7.1.0-rc3", 1), ("7.2.12", 1), ("10.0", 1), ("odd", 0)]
        {
            evidence.near.machine.kernel = kernel.to_owned();
            let found = examine(&evidence);
            assert_eq!(found.len(), expected, "{kernel}");
            assert!(found.iter().all(|finding| finding.severity == Severity::Machine));
        }
        evidence.near.machine.kernel = "6.12.107".to_owned();
        evidence.near.vsock.modules = vec!["vhost_vsock".to_owned()];
        assert_eq!(examine(&evidence).len(), 1);
        // A host has it for its own VMs.
        evidence.near.vsock.has_vmci = false;
        assert!(examine(&evidence).is_empty());
        evidence.is_vsock = false;
        evidence.near.vsock.has_vmci = true;
        assert!(examine(&evidence).is_empty());
    }
}
