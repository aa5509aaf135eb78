//! Changes of what is served while the daemon runs: a reload of the configuration, VMs that are added and
//! removed, links that are set. All but the last make a configuration, and what differs from the one in force
//! is carried out.

use std::path::Path;

use vmlane_api::{Done, ErrorCode, Failure, LinkSet, Reloaded, VmAdded, VmRemoved};
use vmlane_config::added::{MOST_BYTES, MOST_VMS};
use vmlane_config::plan::{Conflict, Plan, plan};
use vmlane_config::sources::{Source, SourceKind};
use vmlane_config::{Config, VmPlace};

use crate::differences::differences;
use crate::extras::Provoked;
use crate::grants;
use crate::host::Host;
use crate::nic::ServedNic;
use crate::serve::device_name;
use crate::served::Served;
use crate::vm::ServedVm;

/// What the text of a VM that is to be added is called in messages.
const DESCRIPTION: &str = "description";

/// Why a configuration is not applied.
pub fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::internal(format!("{error}\nthe configuration before stays in force"))
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

/// Reads the configuration again and applies the difference.
pub fn reload(served: &mut Served, host: &Host) -> Result<Reloaded, Failure> {
    let sources = served.files.read().map_err(|error| failed(&error))?;
    let new = Config::check(&sources).map_err(|error| failed(&error))?;
    let plan = planned(served, &new, None).map_err(|error| failed(&error))?;
    served.files.in_force = sources;
    served.wires.reload(&plan.effective);
    Ok(carry_out(served, host, plan))
}

/// Serves a VM more, now and after every restart. Nothing else changes, also if the configuration's files
/// have changed since they were read.
pub fn add_vm(served: &mut Served, host: &Host, text: &str) -> Result<VmAdded, Failure> {
    if text.len() as u64 > MOST_BYTES {
        let length = text.len();
        return Err(bad(format!(
            "the description has {length} bytes, and may have {MOST_BYTES}; shorten it"
        )));
    }
    if let Some(why) = served.files.added.why_not() {
        return Err(Failure::internal(format!(
            "no VM can be added, because it could not be kept: {why}; see `vmlane daemon --help`, --state-dir"
        )));
    }
    if served.config.places.values().filter(|place| place.added).count() >= MOST_VMS {
        let text = format!(
            "{MOST_VMS} VMs were added already, which is the most; remove one, or put some into the configuration"
        );
        return Err(Failure::internal(text));
    }
    let source = |path: &Path| Source { path: path.to_owned(), text: text.to_owned(), kind: SourceKind::Vm };
    let described = Path::new(DESCRIPTION);
    let whole = served.files.in_force.clone().with([source(described)]);
    let checked = Config::check(&whole).map_err(|error| bad(error.to_string()))?;
    let added = checked.places.iter().find(|(_, place)| place.path == described);
    let (name, line) = added.map(|(name, place)| (name.clone(), place.line)).unwrap_or_default();
    let Some(vm) = checked.vm(&name) else { return Err(bad("there is no VM in the description".into())) };
    if let Some(place) = served.config.places.get(&name) {
        return Err(bad(format!(
            "vm {name:?} is still served ({place}): its removal was refused while it is attached"
        )));
    }
    let path = served.files.added.file(&name);
    let mut new = served.config.clone();
    new.vms.push(vm.clone());
    new.places.insert(name.clone(), VmPlace { path: path.clone(), line, added: true });
    let plan = planned(served, &new, None).map_err(|error| bad(error.to_string()))?;
    // First kept, then served: a daemon that is killed in between has a successor that serves it.
    let kept = served.files.added.keep(&name, text);
    kept.map_err(|cause| {
        Failure::internal(format!("vm {name:?} cannot be kept: {}: {cause}", path.display()))
    })?;
    let report = carry_out(served, host, plan);
    let Some(vm) = served.vms.iter().find(|vm| vm.name() == name) else {
        let forgotten =
            served.files.added.forget(&name).map_err(|cause| format!("{}: {cause}", path.display()));
        return Err(Failure::internal(
            [report.refused, forgotten.err().into_iter().collect()].concat().join("; "),
        ));
    };
    let file = path.display().to_string();
    let done = VmAdded { name, cid: vm.cid(), file, warnings: report.refused };
    served.files.in_force.0.push(source(&path));
    Ok(done)
}

/// Ends a VM that was added: it is served no more, and by no later daemon. With `force` also if a VMM is
/// attached.
pub fn remove_vm(served: &mut Served, host: &Host, name: &str, force: bool) -> Result<VmRemoved, Failure> {
    let Some(place) = served.config.places.get(name) else {
        let message = format!("there is no VM {name:?}; known are {}", served.config.names());
        return Err(Failure { code: ErrorCode::UnknownVm, message });
    };
    if !place.added {
        return Err(bad(format!(
            "vm {name:?} was not added at run time: it is of the configuration ({place}); remove it there, then `vmlane reload`"
        )));
    }
    if !force && served.has_session(name) {
        return Err(Failure::internal(format!(
            "vm {name:?} is not removed: a VMM is attached to it; shut the guest down, or use --force, which takes its devices \
             away for good"
        )));
    }
    let path = place.path.clone();
    let mut rest = served.files.in_force.clone();
    rest.0.retain(|source| source.path != path);
    Config::check(&rest).map_err(|error| bad(format!("vm {name:?} is not removed: {error}")))?;
    let mut new = served.config.clone();
    new.vms.retain(|vm| vm.name != name);
    new.places.remove(name);
    let plan = planned(served, &new, Some(name)).map_err(|error| bad(error.to_string()))?;
    let forgotten = served.files.added.forget(name);
    forgotten.map_err(|cause| {
        Failure::internal(format!("vm {name:?} is not removed: {}: {cause}", path.display()))
    })?;
    served.files.in_force = rest;
    let report = carry_out(served, host, plan);
    Ok(VmRemoved { name: name.into(), file: path.display().to_string(), warnings: report.refused })
}

/// Carries a plan out.
fn carry_out(served: &mut Served, host: &Host, plan: Plan) -> Reloaded {
    let mut report = Reloaded { applied: Vec::new(), refused: plan.refused };
    let route_changes = served.config.route != plan.effective.route;
    let of_wires =
        differences("wire", &served.config.wires, &plan.effective.wires, |wire| wire.name.as_str());
    served.config = plan.effective.clone();
    for name in &plan.remove {
        served.withdraw(host, name);
        report.applied.push(format!("vm {name:?}: removed"));
    }
    for name in &plan.add {
        match served.offer(host, &plan.effective, name) {
            Ok(_) => {
                report.refused.extend(served.wires.apply(&host.switch, &plan.effective));
                served.vms.iter().for_each(ServedVm::go);
                report.applied.push(format!("vm {name:?}: added"));
            }
            Err(error) => {
                served.config.vms.retain(|vm| vm.name != *name);
                served.config.places.remove(name);
                report.refused.push(error.to_string());
            }
        }
    }
    for vm in plan.effective.vms.iter().filter(|vm| plan.update.contains(&vm.name)) {
        if let Some(one) = served.vms.iter_mut().find(|one| one.name() == vm.name) {
            one.update(host, &plan.effective, vm);
        }
        report.applied.push(format!("vm {:?}: changed", vm.name));
    }
    // A VM more, or one that is given more, leaves less to the others.
    for (one, vm) in served.vms.iter().filter_map(|one| Some((one, plan.effective.vm(one.name())?))) {
        one.limit_memory(plan.effective.memory_limit(vm));
    }
    host.set_rules(&plan.effective);
    if route_changes {
        match host.set_routes(&plan.effective) {
            Ok(()) => report.applied.push("route: changed".into()),
            Err(error) => report.refused.push(error.to_string()),
        }
    }
    if plan.coalesce_changes {
        host.switch.set_coalesce(plan.effective.daemon.coalesce);
        report.applied.push(format!("daemon: coalesce = {}", plan.effective.daemon.coalesce));
    }
    if plan.hold_changes {
        served.vms.iter().for_each(|vm| vm.set_hold(host, &plan.effective));
        let seconds = plan.effective.daemon.hold.map_or(0, |time| time.as_secs());
        report.applied.push(format!("daemon: hold = {seconds}"));
    }
    report.refused.extend(grants::apply(&served.config, &host.paths).iter().map(ToString::to_string));
    let (applied, refused) = served.uplinks.change(&host.switch, &plan.effective.uplinks);
    report.applied.extend(applied);
    report.applied.extend(served.uplinks.set_teams(&host.switch, &plan.effective.teams));
    report.applied.extend(of_wires);
    report.refused.extend(served.wires.apply(&host.switch, &plan.effective));
    report.refused.extend(refused.iter().map(ToString::to_string));
    let (applied, refused) = served.mirrors.change(&host.switch, &plan.effective);
    report.applied.extend(applied);
    report.refused.extend(refused);
    report
}

/// Sets the link of a VM's NIC up or down.
pub fn set_link(served: &Served, host: &Host, name: &str, nic: &str, up: bool) -> Result<LinkSet, Failure> {
    let vm = served.vm(name)?;
    let Some(found) = vm.nics.iter().find(|found| found.name() == nic) else {
        let known: Vec<&str> = vm.nics.iter().map(ServedNic::name).collect();
        return Err(bad(format!("vm {name:?} has no {nic:?}; its NICs are {}", known.join(", "))));
    };
    let guest_notified = found.set_link(host, name, up);
    tracing::info!(device = device_name(name, nic), up, "link set by the operator");
    Ok(LinkSet { port: format!("{name}/{nic}"), link: if up { "up" } else { "down" }.into(), guest_notified })
}

/// Sets the link of an uplink up or down.
pub fn set_uplink_link(served: &mut Served, host: &Host, name: &str, up: bool) -> Result<LinkSet, Failure> {
    if !served.uplinks.set_link(&host.switch, name, up) {
        return Err(bad(format!(
            "there is no uplink {name:?}; known are {}; a card is named VM/nicN",
            served.uplinks.names()
        )));
    }
    tracing::info!(uplink = name, up, "link set by the operator");
    Ok(LinkSet { port: name.into(), link: if up { "up" } else { "down" }.into(), guest_notified: false })
}

/// Has another worker move the frames of a VM's NIC, whose port is named.
pub fn move_nic(served: &Served, host: &Host, name: &str, at: &str, worker: u32) -> Result<Done, Failure> {
    let vm = served.vm(name)?;
    let nic = at.strip_suffix("-port").and_then(|nic| vm.nics.iter().find(|served| served.name() == nic));
    let nic = nic.ok_or_else(|| bad(format!("vm {name:?} has no {at:?}; known are nicN-port")))?;
    let count = host.switch.heartbeats().len();
    if worker as usize >= count {
        return Err(bad(format!("there is no worker {worker}; the switch has {count}, from 0 on")));
    }
    if !nic.move_to(&host.switch, worker as usize) {
        return Err(bad(format!(
            "{name}/{at} stays: it is that worker's, or is joined to an uplink, or frames on their way to or from it come to no end"
        )));
    }
    Ok(Done {})
}

/// Makes a part of what serves a VM go wrong, where that is possible.
pub fn provoke(served: &Served, host: &Host, name: &str, at: &str, what: Provoked) -> Result<Done, Failure> {
    let Some(faults) = &host.extras.faults else {
        let message = "faults on request need fault_injection = true in the table [daemon] of the configuration, \
                       which vmlane-labdaemon can have, and a restart";
        return Err(Failure { code: ErrorCode::Forbidden, message: message.into() });
    };
    faults.provoke(&served.vm(name)?.target(host), at, what)
}

/// What leads from the configuration in force to `new`. `forced`: a VM that may be removed though it is
/// attached.
fn planned(served: &Served, new: &Config, forced: Option<&str>) -> Result<Plan, Conflict> {
    plan(&served.config, new, |name| forced != Some(name) && served.has_session(name))
}
