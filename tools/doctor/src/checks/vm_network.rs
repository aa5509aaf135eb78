//! On the host: a VM that is not joined to what it should reach.

use vmlane_api::UplinkStatus;

use crate::host::{Nic, Vm};
use crate::prelude::*;
use crate::text::printable;

pub const CHECK: Check = Check { name: "vm-network", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(host) = &evidence.host else { return Vec::new() };
    let mut found: Vec<Finding> = host.vms.iter().flat_map(of_vm).collect();
    found.extend(host.duplicates.iter().map(|(mac, one, other)| {
        let what = format!("{one} and {other} have the same MAC address {mac}.");
        let remedy = Remedy::new("give one of them another one, or none: each VM gets its own")
            .lasting("vmlane", "nic = [ { mac = \"...\" } ] in its [[vm]]");
        let found = finding(Severity::Broken, what, 0.9, "each gets the other's frames");
        found.evidence("vmlane status").remedy(remedy)
    }));
    if let [one, other] = host.vms.as_slice() {
        found.extend(apart(one, other));
    }
    found.extend(host.uplinks.iter().filter_map(uplink));
    found
}

fn finding(severity: Severity, what: String, share: f64, cost: &str) -> Finding {
    CHECK.found(severity, what, Cost::estimated(share, cost))
}

fn of_vm(vm: &Vm) -> Vec<Finding> {
    let name = &vm.name;
    if !vm.held.is_empty() {
        return [held(vm)].into_iter().chain(sockets(vm)).collect();
    }
    let broken = |what: String, seen: &str, remedy| {
        finding(Severity::Broken, what, 1.0, "it has no network").evidence(seen).remedy(remedy)
    };
    let mut found = Vec::new();
    if vm.quarantined {
        let what = format!("The devices of VM {name} are out of service: they failed too often.");
        let remedy = Remedy::new("read the daemon's log, then release it").run(&["vmlane", "release", name]);
        found.push(broken(what, "vmlane status: quarantined", remedy));
    }
    found.extend(sockets(vm));
    if !vm.attached && vm.state != "lost" && vm.nics.iter().all(|nic| !nic.attached) {
        let what = format!("No VMM is connected to the devices of VM {name}.");
        found.push(broken(what, "vmlane status: not attached", start(name)));
        return found;
    }
    found.extend(vm.nics.iter().filter_map(|nic| card(vm, nic)));
    found.extend(vm.refused.iter().map(|(bound, refused)| reached(name, bound, *refused)));
    found
}

fn start(name: &str) -> Remedy {
    let remedy = Remedy::new("start the VM with the arguments that vmlane prints");
    remedy.run(&["vmlane", "attach", name, "--for", "qemu"])
}

fn resume(name: &str) -> Remedy {
    Remedy::new("let the VM run again, if it is paused (in QEMU's monitor: cont)")
        .run(&["virsh", "resume", name])
}

/// No daemon runs.
fn held(vm: &Vm) -> Finding {
    let what = format!(
        "No daemon runs, and the keeper holds the sessions of VM {} ({}) for the next one.",
        vm.name,
        vm.held.join(", ")
    );
    let remedy =
        Remedy::new("start the daemon: the VM continues").run(&["systemctl", "start", "vmlane"]).lasting(
            "vmlane",
            "hold = SECONDS in [daemon]: how long virtio-vsock devices wait, at most; then vmlane reload",
        );
    let found = finding(Severity::Broken, what, 1.0, "no frame and no byte of a stream passes");
    found.evidence("vmlane status: held").remedy(remedy)
}

/// The device for sockets. Only of virtio's it is known that a driver has stopped it.
fn sockets(vm: &Vm) -> Option<Finding> {
    let name = &vm.name;
    let seen = format!("vmlane status: {}", vm.state);
    let found = match vm.state.as_str() {
        "lost" => {
            let what = format!(
                "The virtio-vsock device of VM {name} is dead: no daemon came for its session in time."
            );
            let remedy = Remedy::new("start the daemon, if none runs, then restart the VM's QEMU; have sessions held for longer, if need be")
                .lasting("vmlane", "hold = SECONDS in [daemon]; then vmlane reload");
            finding(Severity::Broken, what, 1.0, "no connection over vsock").remedy(remedy)
        }
        "stopped" => {
            let what = format!(
                "The virtio-vsock device of VM {name} has stopped: its guest is paused or reboots, or has unloaded the driver."
            );
            let load = Remedy::new("in the guest: load it").command("modprobe vmw_vsock_virtio_transport");
            finding(Severity::Broken, what, 0.9, "no connection over vsock").remedy(resume(name)).remedy(load)
        }
        _ => return None,
    };
    Some(found.evidence(seen))
}

fn card(vm: &Vm, nic: &Nic) -> Option<Finding> {
    let name = &vm.name;
    let card = format!("{} of VM {name}", nic.name);
    let (what, share, cost, seen, remedy) = if nic.link_down {
        let up = Remedy::new("set it up").run(&["vmlane", "link", &format!("{name}/{}", nic.name), "up"]);
        let what = format!("The link of {card} was set down.");
        (what, 1.0, "no frame passes", "vmlane status", up)
    } else if !nic.attached {
        let what = format!("The VMM of VM {name} does not have {}.", nic.name);
        (what, 0.9, "the card is missing", "vmlane status: not attached", start(name))
    } else if nic.state == "stopped" {
        let what = format!("A driver has used {card} and does not now: the guest is paused or reboots.");
        (what, 0.9, "no frame passes", "vmlane status: stopped", resume(name))
    } else if !nic.active {
        let what = format!("The guest's driver has not set up {card}.");
        let up = Remedy::new("in the guest: load the driver and set the interface up")
            .command("ip link set dev INTERFACE up");
        (what, 0.9, "no frame passes", "vmlane status: not active", up)
    } else {
        return None;
    };
    Some(finding(Severity::Broken, what, share, cost).evidence(seen).remedy(remedy))
}

fn reached(vm: &str, bound: &str, refused: u64) -> Finding {
    let what = format!("VM {vm} has reached its bound {bound}.");
    let seen = format!("vmlane stats: refused {refused} times");
    let found = finding(Severity::Advice, what, 0.3, "what is beyond it is refused").evidence(seen);
    let name = bound.rsplit('.').next().unwrap_or_default();
    // Others are fixed.
    let key = match name {
        "memory_bytes" => "memory",
        "queue_pairs" | "queue_pair_bytes" | "connections" | "doorbells" | "inbox_bytes"
        | "overflow_bytes" => name,
        _ => return found,
    };
    let setting =
        format!("limits = {{ {key} = ... }} in its [[vm]], or {key} in [limits]; then vmlane reload");
    found.remedy(Remedy::new("allow it more, if that is meant").lasting("vmlane", setting))
}

fn uplink(uplink: &UplinkStatus) -> Option<Finding> {
    let (name, to) = (printable(&uplink.name), printable(&uplink.to));
    let (what, remedy) = if uplink.link_down {
        let up = Remedy::new("set it up").run(&["vmlane", "link", &name, "up"]);
        (format!("The link of uplink {name} was set down."), up)
    } else if !uplink.attached {
        let remedy = Remedy::new("make what it leads to, or correct its name")
            .lasting("vmlane", format!("[[uplink]] \"{name}\" ({to}); then vmlane reload"));
        (format!("Uplink {name} ({to}) is not attached."), remedy)
    } else {
        return None;
    };
    let seen = format!("vmlane status: {}", printable(&uplink.how));
    let found = finding(Severity::Advice, what, 0.6, "no frame passes between the VMs and what is behind it");
    Some(found.evidence(seen).remedy(remedy))
}

/// What keeps two VMs apart.
fn apart(one: &Vm, other: &Vm) -> Vec<Finding> {
    let mut found = Vec::new();
    let is_list = |nic: &Nic| !["untagged", ""].contains(&&*nic.vlan) && nic.vlan.parse::<u16>().is_err();
    let meet = |mine: &Nic, its: &Nic| {
        mine.switch == its.switch && (mine.vlan == its.vlan || is_list(mine) || is_list(its))
    };
    let share = one.nics.iter().any(|mine| other.nics.iter().any(|its| meet(mine, its)));
    let places = |vm: &Vm| {
        let place = |nic: &Nic| {
            format!("{} on switch {}, port group {}, VLAN {}", nic.name, nic.switch, nic.port_group, nic.vlan)
        };
        format!("{}: {}", vm.name, vm.nics.iter().map(place).collect::<Vec<_>>().join("; "))
    };
    if !one.nics.is_empty() && !other.nics.is_empty() && !share {
        let what = format!(
            "VM {} and VM {} have no card in one VLAN of one switch: a router must be between them.",
            one.name, other.name
        );
        let remedy = Remedy::new("if that is not meant, put both into one port group")
            .lasting("vmlane", "port_group of the NICs; then vmlane reload");
        let apart = finding(Severity::Advice, what, 0.6, "no frame of one reaches the other");
        found.push(apart.evidence(places(one)).evidence(places(other)).remedy(remedy));
    }
    if one.group != other.group {
        let what = format!(
            "VM {} and VM {} are in different isolation groups: neither frames nor connections pass between them.",
            one.name, other.name
        );
        let seen = format!("groups \"{}\" and \"{}\"", one.group, other.group);
        let remedy = Remedy::new("if that is not meant, put both into one group")
            .lasting("vmlane", "group = \"...\" in their [[vm]]; then vmlane reload");
        found.push(finding(Severity::Advice, what, 0.7, "all of it").evidence(seen).remedy(remedy));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    fn vm(name: &str) -> Vm {
        let nic = Nic {
            name: "nic0".to_owned(),
            port_group: "lan".to_owned(),
            vlan: "untagged".to_owned(),
            attached: true,
            active: true,
            ..Nic::default()
        };
        Vm {
            name: name.to_owned(),
            cid: Some(3),
            group: "default".to_owned(),
            attached: true,
            ready: true,
            nics: vec![nic],
            ..Vm::default()
        }
    }

    fn found(change: impl FnOnce(&mut Host)) -> Vec<String> {
        let mut host = Host { vms: vec![vm("web"), vm("db")], ..Host::default() };
        change(&mut host);
        let evidence = Evidence { host: Some(host), ..Evidence::default() };
        examine(&evidence).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_keeps_a_vm_apart_is_found() {
        assert!(found(|_| ()).is_empty());
        type Change = fn(&mut Host);
        fn uplink(how: &str, is_there: bool) -> UplinkStatus {
            UplinkStatus {
                name: "lan".to_owned(),
                switch: "default".to_owned(),
                to: "tap = \"vmlane0\"".to_owned(),
                attached: is_there,
                how: how.to_owned(),
                link_down: is_there,
                since: None,
            }
        }
        let cases: [(Change, &str); 16] = [
            (|host| host.vms[0].quarantined = true, "out of service"),
            (|host| host.vms[0].nics[0].active = false, "has not set up nic0"),
            (|host| host.vms[0].nics[0].attached = false, "does not have nic0"),
            (|host| host.vms[0].state = "lost".to_owned(), "vsock device of VM web is dead"),
            (
                |host| host.vms[0].held.push("vsock".to_owned()),
                "the keeper holds the sessions of VM web (vsock)",
            ),
            (|host| host.vms[0].state = "stopped".to_owned(), "virtio-vsock device of VM web has stopped"),
            (
                |host| host.vms[0].nics[0].state = "stopped".to_owned(),
                "has used nic0 of VM web and does not now",
            ),
            (|host| host.vms[0].nics[0].link_down = true, "was set down"),
            (
                |host| host.uplinks.push(uplink("no such interface", false)),
                "Uplink lan (tap = \"vmlane0\") is not attached",
            ),
            (|host| host.uplinks.push(uplink("TAP", true)), "The link of uplink lan was set down"),
            (|host| host.vms[1].nics[0].vlan = "7".to_owned(), "no card in one VLAN"),
            (|host| host.vms[1].nics[0].switch = "other".to_owned(), "no card in one VLAN of one switch"),
            (|host| host.vms[1].group = "other".to_owned(), "different isolation groups"),
            (|host| host.vms[1].refused.push(("connections".to_owned(), 3)), "its bound connections"),
            (
                |host| host.duplicates.push(("02:1".to_owned(), "web/nic0".to_owned(), "db/nic0".to_owned())),
                "same MAC",
            ),
            (
                |host| {
                    host.vms[0].attached = false;
                    host.vms[0].nics[0].attached = false;
                },
                "No VMM is connected",
            ),
        ];
        for (change, phrase) in cases {
            let sentences = found(change);
            assert!(sentences.len() == 1 && sentences[0].contains(phrase), "{phrase}: {sentences:?}");
        }
        let trunk = found(|host| host.vms[1].nics[0].vlan = "trunk".to_owned());
        assert!(trunk.is_empty(), "{trunk:?}");
    }
}
