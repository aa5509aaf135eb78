//! What a reload does: the difference between two configurations, as far as running VMs allow it.
//!
//! A VM that a VMM is attached to cannot be taken away, because QEMU never comes back to a device it
//! lost; nor can its identity change. Such parts are refused, with a reason, and keep their old
//! state. The rest is applied. Nothing here acts: a plan is data.

use std::collections::HashMap;

use crate::names::nic_name;
use crate::{Config, DaemonConfig, HybridConfig, NicConfig, VmConfig, Vsock, ovn};

/// What to do, in this order, and what will be in force then.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names of VMs to withdraw.
    pub remove: Vec<String>,
    /// Names of VMs to offer.
    pub add: Vec<String>,
    /// Names of VMs whose forwards, limits or privileges change in place.
    pub update: Vec<String>,
    /// What was asked for and cannot be, each with its reason and the way out.
    pub refused: Vec<String>,
    /// The key `coalesce` of `[daemon]` is another one.
    pub coalesce_changes: bool,
    /// The key `hold` of `[daemon]` is another one.
    pub hold_changes: bool,
    /// The configuration in force when the plan is carried out.
    pub effective: Config,
}

/// The parts that had to be refused make the rest impossible; nothing is changed.
#[derive(Debug, thiserror::Error)]
#[error("nothing was changed, because {conflict}, and {}", refused.join("; "))]
pub struct Conflict {
    conflict: String,
    refused: Vec<String>,
}

/// Compares; `attached`: whether a VM of the old configuration has a VMM.
pub fn plan(old: &Config, new: &Config, attached: impl Fn(&str) -> bool) -> Result<Plan, Conflict> {
    let daemon = DaemonConfig { coalesce: new.daemon.coalesce, hold: new.daemon.hold, ..old.daemon.clone() };
    let mut plan = Plan {
        remove: Vec::new(),
        add: Vec::new(),
        update: Vec::new(),
        refused: daemon_changes(&old.daemon, &new.daemon),
        coalesce_changes: old.daemon.coalesce != new.daemon.coalesce,
        hold_changes: old.daemon.hold != new.daemon.hold,
        effective: Config { daemon, vms: Vec::new(), ..new.clone() },
    };
    for vm in &old.vms {
        if new.vm(&vm.name).is_some() {
            continue;
        }
        if attached(&vm.name) {
            plan.refused.push(format!(
                "vm {:?} is not removed: a VMM is attached to it; shut the guest down and reload again",
                vm.name
            ));
            plan.effective.vms.push(vm.clone());
            let place = old.places.get(&vm.name).cloned().unwrap_or_default();
            plan.effective.places.insert(vm.name.clone(), place);
        } else {
            plan.remove.push(vm.name.clone());
        }
    }
    for vm in &new.vms {
        let effective = match old.vm(&vm.name) {
            None => {
                plan.add.push(vm.name.clone());
                vm.clone()
            }
            Some(before) => plan.change(before, vm, attached(&vm.name)),
        };
        plan.effective.vms.push(effective);
    }
    plan.keep_port_groups(old);
    plan.keep_wires(old);
    plan.keep_direct_uplinks(old);
    if let Some(conflict) = conflict(&plan.effective) {
        return Err(Conflict { conflict, refused: plan.refused });
    }
    plan.update = changed_in_place(old, &plan);
    Ok(plan)
}

impl Plan {
    /// A VM that stays as it was stays in its port groups.
    fn keep_port_groups(&mut self, old: &Config) {
        let names: Vec<String> = self
            .effective
            .vms
            .iter()
            .flat_map(|vm| vm.nics.iter())
            .filter(|nic| nic.wire().is_none())
            .map(|nic| nic.port_group.clone())
            .collect();
        for name in names {
            if self.effective.port_group(&name).is_none()
                && let Some(group) = old.port_group(&name)
            {
                self.refused
                    .push(format!("port_group {name:?} is not removed: a NIC of an attached VM is in it"));
                self.effective.port_groups.push(group.clone());
            }
        }
    }

    /// Likewise, it stays on its wires.
    fn keep_wires(&mut self, old: &Config) {
        let nics = self.effective.vms.iter().flat_map(|vm| vm.nics.iter());
        let names: Vec<String> = nics.filter_map(|nic| nic.wire()).map(str::to_owned).collect();
        for name in names {
            if !self.effective.wires.iter().any(|wire| wire.name == name)
                && let Some(wire) = old.wires.iter().find(|wire| wire.name == name)
            {
                self.refused
                    .push(format!("wire {name:?} is not removed: a NIC of an attached VM is an end of it"));
                self.effective.wires.push(wire.clone());
            }
        }
    }

    /// Likewise, NICs keep the uplinks that are theirs alone.
    fn keep_direct_uplinks(&mut self, old: &Config) {
        for vm in &self.effective.vms {
            if old.vm(&vm.name).is_none_or(|before| before.nics != vm.nics) {
                continue;
            }
            for number in 0..vm.nics.len() {
                let name = ovn::uplink_name(&vm.name, number);
                let before = old.uplinks.iter().find(|uplink| uplink.name == name);
                let uplinks = &mut self.effective.uplinks;
                match (uplinks.iter_mut().find(|uplink| uplink.name == name), before) {
                    (Some(uplink), Some(before)) => uplink.clone_from(before),
                    (None, Some(before)) => uplinks.push(before.clone()),
                    (Some(_), None) => uplinks.retain(|uplink| uplink.name != name),
                    (None, None) => {}
                }
            }
        }
    }

    /// The state of a VM that both configurations have.
    fn change(&mut self, before: &VmConfig, vm: &VmConfig, attached: bool) -> VmConfig {
        let fixed = fixed_changes(before, vm);
        if fixed.is_empty() {
            return vm.clone();
        }
        if !attached {
            self.remove.push(vm.name.clone());
            self.add.push(vm.name.clone());
            return vm.clone();
        }
        self.refused.push(format!(
            "vm {:?}: {} cannot change while a VMM is attached to it; shut the guest down and reload again",
            vm.name,
            fixed.join(", ")
        ));
        let mut effective = vm.clone();
        effective.cid = before.cid;
        effective.vsock.clone_from(&before.vsock);
        effective.uml_pci = before.uml_pci;
        effective.nics.clone_from(&before.nics);
        effective.group.clone_from(&before.group);
        effective.limits.vmci.inbox_bytes = before.limits.vmci.inbox_bytes;
        effective.limits.vmci.overflow_bytes = before.limits.vmci.overflow_bytes;
        effective
    }
}

/// Keys that are settled when a VM is offered: its identity, and buffers that exist from then on.
fn fixed_changes(before: &VmConfig, after: &VmConfig) -> Vec<String> {
    let change = |key: &str, differs: bool, value: String| differs.then(|| format!("{key} = {value}"));
    [
        change("cid", before.cid != after.cid, after.cid.to_string()),
        vsock_change(&before.vsock, &after.vsock),
        change("uml_pci", before.uml_pci != after.uml_pci, after.uml_pci.to_string()),
        change("nic", !same_hardware(&before.nics, &after.nics), format!("[{} of them]", after.nics.len())),
        change("group", before.group != after.group, format!("{:?}", after.group)),
        change(
            "inbox_bytes",
            before.limits.vmci.inbox_bytes != after.limits.vmci.inbox_bytes,
            after.limits.vmci.inbox_bytes.to_string(),
        ),
        change(
            "overflow_bytes",
            before.limits.vmci.overflow_bytes != after.limits.vmci.overflow_bytes,
            after.limits.vmci.overflow_bytes.to_string(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The key that differs, and its value.
fn vsock_change(before: &Vsock, after: &Vsock) -> Option<String> {
    let of_key = match (before, after) {
        _ if before == after => return None,
        (Vsock::Virtio { .. }, Vsock::Virtio { role }) => format!("vsock_role = {:?}", role.name()),
        (Vsock::Hybrid(_), Vsock::Hybrid(HybridConfig { path: Some(path) })) => {
            format!("uds_path = {:?}", path.display().to_string())
        }
        (Vsock::Hybrid(_), Vsock::Hybrid(HybridConfig { path: None })) => "uds_path = (none)".into(),
        _ => format!("vsock = {:?}", after.name()),
    };
    Some(of_key)
}

/// What a guest cannot see change under it. A NIC's port group and policy can.
fn same_hardware(before: &[NicConfig], after: &[NicConfig]) -> bool {
    let hardware = |nic: &NicConfig| {
        (nic.model, nic.profile, nic.mac, nic.queues, nic.mtu, nic.trapped, nic.ovn.is_some())
    };
    before.iter().map(hardware).eq(after.iter().map(hardware))
}

/// The table `[daemon]` is read at start only, but for `coalesce` and `hold`.
fn daemon_changes(before: &DaemonConfig, after: &DaemonConfig) -> Vec<String> {
    let change = |key: &str, differs: bool| {
        differs.then(|| format!("daemon: {key} changes when the daemon is started again"))
    };
    [
        change("workers", before.workers != after.workers),
        change("cpus", before.cpus != after.cpus),
        change("balance", before.balance != after.balance),
        change("mode", before.mode != after.mode),
        change("spin_us", before.spin_us != after.spin_us),
        change("flood_limit", before.flood_limit != after.flood_limit),
        change("huge_pages", before.huge_pages != after.huge_pages),
        change("fault_limit", before.fault_limit.faults != after.fault_limit.faults),
        change("fault_window_s", before.fault_limit.within != after.fault_limit.within),
        change("fault_injection", before.fault_injection != after.fault_injection),
        change("user", before.user != after.user),
        change("log", before.log != after.log),
        change("log_format", before.log_format != after.log_format),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What does not fit together in a mix of an old and a new configuration that were each right.
fn conflict(config: &Config) -> Option<String> {
    let mut macs = HashMap::new();
    for (index, vm) in config.vms.iter().enumerate() {
        if let Some(other) = config.vms.iter().take(index).find(|other| vm.cid != 0 && other.cid == vm.cid) {
            return Some(format!("cid {} of vm {:?} still belongs to vm {:?}", vm.cid, vm.name, other.name));
        }
        for (number, nic) in vm.nics.iter().enumerate() {
            let name = nic_name(&vm.name, number);
            let of_nic = config.wires.iter().find(|wire| Some(&*wire.name) == nic.wire());
            if let Some(wire) = of_nic.filter(|wire| !wire.ends.contains(&name)) {
                return Some(format!(
                    "{name} is an end of wire {:?} still, which would join {}",
                    wire.name,
                    wire.ends.join(" and ")
                ));
            }
            if let Some(other) = macs.insert((&vm.group, &nic.switch, nic.mac), &vm.name) {
                let mac = nic.mac;
                return Some(format!("mac \"{mac}\" of vm {:?} still belongs to vm {other:?}", vm.name));
            }
        }
        for forward in &vm.forwards {
            let Some(to_vm) = &forward.to_vm else { continue };
            let target = config.vm(to_vm);
            let reaches = |cid: u32| config.route.as_ref().is_some_and(|route| route.reaches(cid, &vm.group));
            if target.is_none() && to_vm.parse().is_ok_and(reaches) {
                continue;
            }
            if target.is_none_or(|target| target.group != vm.group) {
                return Some(format!(
                    "forward {} of vm {:?} would lead to vm {to_vm:?} outside its group",
                    forward.port, vm.name
                ));
            }
        }
    }
    None
}

/// VMs that stay and whose record in the table of VMs changes: their own keys changed, or their targets'
/// CIDs.
fn changed_in_place(old: &Config, plan: &Plan) -> Vec<String> {
    let stays = |vm: &&VmConfig| !plan.add.contains(&vm.name);
    let differs = |vm: &&VmConfig| {
        let before = old.vm(&vm.name);
        before != Some(*vm)
            || before.is_none_or(|before| old.forwards(before) != plan.effective.forwards(vm))
            || vm
                .nics
                .iter()
                .any(|nic| old.port_group(&nic.port_group) != plan.effective.port_group(&nic.port_group))
    };
    plan.effective.vms.iter().filter(stays).filter(differs).map(|vm| vm.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const WEB: &str = "[[vm]]\nname = \"web\"\ncid = 3\n";
    const DB: &str = "[[vm]]\nname = \"db\"\ncid = 4\n";

    fn config(text: &str) -> Config {
        Config::parse(Path::new("t.toml"), text).unwrap()
    }

    fn planned(old: &str, new: &str, attached: &[&str]) -> Result<Plan, Conflict> {
        plan(&config(old), &config(new), |name| attached.contains(&name))
    }

    /// Removed, added, updated, refused parts.
    fn short(plan: &Plan) -> (String, String, String, usize) {
        (plan.remove.join(" "), plan.add.join(" "), plan.update.join(" "), plan.refused.len())
    }

    fn expect(removed: &str, added: &str, updated: &str, refused: usize) -> (String, String, String, usize) {
        (removed.into(), added.into(), updated.into(), refused)
    }

    #[test]
    fn nothing_changes_nothing() {
        let both = [WEB, DB].concat();
        let plan = planned(&both, &both, &["web"]).unwrap();
        assert_eq!(short(&plan), expect("", "", "", 0));
        assert_eq!(plan.effective, config(&both));
    }

    #[test]
    fn vms_come_and_go_unless_a_vmm_is_attached() {
        assert_eq!(short(&planned(WEB, DB, &[]).unwrap()), expect("web", "db", "", 0));
        let plan = planned(WEB, DB, &["web"]).unwrap();
        assert_eq!(short(&plan), expect("", "db", "", 1));
        assert!(plan.refused[0].contains("\"web\" is not removed: a VMM is attached"), "{:?}", plan.refused);
        assert_eq!(plan.effective.names(), "web, db");
    }

    #[test]
    fn forwards_limits_and_privileges_change_in_place() {
        for line in
            ["forward = [{port = 1, to = \"db:2\"}]", "limits = {connections = 5}", "restricted = true"]
        {
            let old = [WEB, DB].concat();
            let new = [WEB, line, "\n", DB].concat();
            let plan = planned(&old, &new, &["web", "db"]).unwrap();
            assert_eq!(short(&plan), expect("", "", "web", 0), "{line}");
            assert_eq!(plan.effective, config(&new));
        }
    }

    #[test]
    fn identity_changes_only_without_a_vmm() {
        for (key, line) in
            [("group", "group = \"g\""), ("overflow_bytes", "limits = {overflow_bytes = 0, connections = 9}")]
        {
            let new = [WEB, line].concat();
            assert_eq!(short(&planned(WEB, &new, &[]).unwrap()), expect("web", "web", "", 0));
            let plan = planned(WEB, &new, &["web"]).unwrap();
            assert!(plan.refused[0].contains(key) && plan.refused[0].contains("shut the guest down"));
            let update = if line.contains("connections") { "web" } else { "" };
            assert_eq!(short(&plan), expect("", "", update, 1), "the rest of the VM's changes is applied");
        }
        let moved = WEB.replace('3', "9");
        assert_eq!(planned(WEB, &moved, &["web"]).unwrap().effective, config(WEB));
        assert_eq!(planned(WEB, &moved, &[]).unwrap().effective, config(&moved));
    }

    #[test]
    fn a_forward_follows_its_target_to_another_cid() {
        let web = [WEB, "forward = [{port = 1, to = \"db:2\"}]\n"].concat();
        let old = [&web, DB].concat();
        let new = [&web, "[[vm]]\nname = \"db\"\ncid = 7\n"].concat();
        assert_eq!(short(&planned(&old, &new, &["web"]).unwrap()), expect("db", "db", "web", 0));
    }

    #[test]
    fn a_refused_part_that_spoils_the_rest_stops_everything() {
        // "db" takes the CID of "web", which cannot go.
        let error = planned(WEB, &DB.replace('4', "3"), &["web"]).unwrap_err().to_string();
        for word in
            ["nothing was changed", "cid 3 of vm \"db\" still belongs to vm \"web\"", "shut the guest down"]
        {
            assert!(error.contains(word), "{error}");
        }
        // The same with an address.
        let nic = "nic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\" }]\n";
        let error = planned(&[WEB, nic].concat(), &[DB, nic].concat(), &["web"]).unwrap_err().to_string();
        assert!(
            error.contains("mac \"52:54:00:00:00:03\" of vm \"db\" still belongs to vm \"web\""),
            "{error}"
        );
        // Both move to another group, but only "web" can.
        let forward = "forward = [{port = 1, to = \"db:2\"}]\n";
        let old = [WEB, forward, DB].concat();
        let new = [WEB, "group = \"g\"\n", forward, DB, "group = \"g\"\n"].concat();
        let error = planned(&old, &new, &["db"]).unwrap_err().to_string();
        assert!(error.contains("outside its group"), "{error}");
    }

    #[test]
    fn the_daemons_own_settings_need_a_restart() {
        let plan = planned("", "[daemon]\nworkers = 2\nmode = \"poll\"", &[]).unwrap();
        assert_eq!(plan.refused.len(), 2);
        assert!(plan.refused[0].contains("daemon: workers changes when the daemon is started again"));
        assert_eq!(plan.effective.daemon, DaemonConfig::default());
    }

    #[test]
    fn merging_is_switched_by_a_reload() {
        let plan = planned("", "[daemon]\ncoalesce = false", &[]).unwrap();
        assert!(plan.refused.is_empty() && plan.coalesce_changes && !plan.effective.daemon.coalesce);
        assert!(!planned("", "[daemon]\ncoalesce = true", &[]).unwrap().coalesce_changes);
    }

    #[test]
    fn how_long_sessions_are_held_is_changed_by_a_reload() {
        let plan = planned("", "[daemon]\nhold = 0", &[]).unwrap();
        assert!(plan.refused.is_empty() && plan.hold_changes && plan.effective.daemon.hold.is_none());
        assert!(!planned("", "[daemon]\nhold = 30", &[]).unwrap().hold_changes);
    }

    /// VMs `a`, `b` and `c` with a card each, and what follows.
    fn cards(more: &str) -> String {
        let vm = |(name, cid): (&str, u32)| {
            format!("[[vm]]\nname = {name:?}\ncid = {cid}\nnic = [{{ model = \"vmxnet3\" }}]\n")
        };
        [("a", 3), ("b", 4), ("c", 5)].map(vm).concat() + more
    }

    fn wire(one: &str, other: &str) -> String {
        format!("[[wire]]\nname = \"l\"\nends = [\"{one}\", \"{other}\"]\n")
    }

    #[test]
    fn wires_of_running_vms_come_change_and_go() {
        let all = ["a", "b", "c"];
        let (none, ab, ac) = (cards(""), cards(&wire("a/nic0", "b/nic0")), cards(&wire("a/nic0", "c/nic0")));
        let lan = |ends: &str| cards(&format!("[[uplink]]\nname = \"lan\"\ntap = \"t0\"\n{ends}"));
        for (old, new, updated) in [
            (&none, &ab, "a b"),
            (&ab, &none, "a b"),
            (&ab, &ac, "b c"),
            (&ab, &ab.replace("\"l\"", "\"k\""), "a b"),
            (&lan(""), &lan(&wire("lan", "b/nic0")), "b"),
        ] {
            let plan = planned(old, new, &all).unwrap();
            assert_eq!(short(&plan), expect("", "", updated, 0), "{new}");
            assert_eq!(plan.effective, config(new));
        }
    }

    #[test]
    fn a_wire_of_a_vm_that_cannot_change_stays_or_stops_everything() {
        let ab = cards(&wire("a/nic0", "b/nic0"));
        let without_a = "[[vm]]\nname = \"b\"\ncid = 4\nnic = [{ model = \"vmxnet3\" }]\n";
        let plan = planned(&ab, without_a, &["a", "b"]).unwrap();
        assert_eq!(plan.effective.wires, config(&ab).wires);
        assert_eq!((plan.update.join(" "), plan.refused.len()), ("b".into(), 2), "{:?}", plan.refused);
        // "b" cannot leave the wire that another one is to be an end of.
        let ac = cards(&wire("a/nic0", "c/nic0")).replace("cid = 4\n", "cid = 9\n");
        let error = planned(&ab, &ac, &["b"]).unwrap_err().to_string();
        assert!(
            error.contains("b/nic0 is an end of wire \"l\" still, which would join a/nic0 and c/nic0"),
            "{error}"
        );
    }

    #[test]
    fn a_nic_of_an_attached_vm_keeps_its_uplink() {
        let with = |nic: &str| config(&format!("{WEB}nic = [{{ model = \"virtio-net\"{nic} }}]\n{DB}"));
        let (ovn, queues, switched) =
            (with(", ovn = \"lsp\""), with(", ovn = \"lsp\", queues = 2"), with(""));
        for new in [&queues, &switched, &config(DB)] {
            let plan = plan(&ovn, new, |vm| vm == "web").unwrap();
            assert_eq!(plan.effective.uplinks, ovn.uplinks);
            assert_eq!(plan.refused.len(), 1, "{:?}", plan.refused);
        }
        assert!(plan(&switched, &ovn, |vm| vm == "web").unwrap().effective.uplinks.is_empty());
        assert!(super::plan(&ovn, &switched, |_| false).unwrap().effective.uplinks.is_empty());
        // Another logical port concerns the helper alone.
        let renamed = with(", ovn = \"other\"");
        let plan = super::plan(&ovn, &renamed, |vm| vm == "web").unwrap();
        assert!(plan.refused.is_empty() && plan.update == ["web"], "{plan:?}");
    }
}
