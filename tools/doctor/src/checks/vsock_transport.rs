//! vsock without the module that it needs, or with two of them.

use crate::facts::Vsock;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "vsock-transport", examine };

const VMCI: &str = "vmw_vsock_vmci_transport";
const VIRTIO: &str = "vmw_vsock_virtio_transport";

fn examine(evidence: &Evidence) -> Vec<Finding> {
    evidence.ends().filter_map(|(end, facts)| of(evidence, end, &facts.vsock)).collect()
}

fn of(evidence: &Evidence, end: PathEnd, vsock: &Vsock) -> Option<Finding> {
    let loaded = |name: &str| vsock.modules.iter().any(|module| module == name);
    let name = evidence.name(end);
    let devices = match (vsock.has_vmci, vsock.has_virtio) {
        (true, true) => "a VMCI and a virtio-vsock device",
        (true, false) => "a VMCI device",
        (false, true) => "a virtio-vsock device",
        (false, false) => "no vsock device",
    };
    let seen = format!(
        "{devices}; modules: {}",
        if vsock.modules.is_empty() { "none".to_owned() } else { vsock.modules.join(", ") }
    );
    let missing = match (vsock.has_vmci && !loaded(VMCI), vsock.has_virtio && !loaded(VIRTIO)) {
        (true, _) => Some(VMCI),
        (_, true) => Some(VIRTIO),
        _ => None,
    };
    let cost = |text: &str| Cost::estimated(1.0, text);
    // Where vsock is not what is examined, it may be left alone on purpose.
    let severity = |when_used| if evidence.is_vsock { when_used } else { Severity::Advice };
    let finding = if vsock.has_vmci && vsock.has_virtio {
        let what = format!("{name} has two vsock devices, of which only one can be used.");
        let remedy = Remedy::new("remove one of the devices, or keep its module from being loaded")
            .run(&["rmmod", if missing == Some(VMCI) { VMCI } else { VIRTIO }])
            .lasting("modprobe.d", format!("/etc/modprobe.d/vsock.conf: blacklist {VIRTIO}"));
        let cost = cost("the device whose module came second does nothing");
        CHECK.found(severity(Severity::Slow), what, cost).remedy(remedy)
    } else if let Some(missing) = missing {
        let what = format!("{name} has {devices}, but the module {missing} is not loaded.");
        CHECK.found(severity(Severity::Broken), what, cost("no connection over vsock")).remedy(load(missing))
    } else if evidence.is_vsock
        && !vsock.has_vmci
        && !vsock.has_virtio
        && !loaded("vhost_vsock")
        && !loaded("hv_sock")
    {
        let what = format!("{name} has no vsock device.");
        let remedy =
            Remedy::new("give the VM one").lasting("vmlane", "vsock = \"vmci\" or \"virtio\" in its [[vm]]");
        CHECK.broken(what, cost("no connection over vsock")).remedy(remedy)
    } else {
        return None;
    };
    Some(finding.at(end).evidence(seen))
}

fn load(module: &str) -> Remedy {
    Remedy::new("load it")
        .run(&["modprobe", module])
        .lasting("modules-load.d", format!("/etc/modules-load.d/vsock.conf: {module}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_device_needs_its_module() {
        let mut evidence = testing::healthy();
        evidence.is_vsock = true;
        for facts in [&mut evidence.near, evidence.far.as_mut().unwrap()] {
            facts.vsock = Vsock { has_vmci: true, modules: vec![VMCI.to_owned()], ..Vsock::default() };
        }
        assert!(examine(&evidence).is_empty());
        evidence.near.vsock.modules.clear();
        assert_eq!(examine(&evidence)[0].severity, Severity::Broken);
        evidence.is_vsock = false;
        assert_eq!(examine(&evidence)[0].severity, Severity::Advice);
        evidence.near.vsock.has_virtio = true;
        assert!(examine(&evidence)[0].what.contains("two vsock devices"));
    }
}
