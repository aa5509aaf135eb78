//! Changes of what is served while the daemon runs: a reload of the configuration, VMs that are added and removed. Each makes a
//! configuration, and what differs from the one in force is carried out.

use std::path::Path;

use vmlane_access::Owner;
use vmlane_api::{ErrorCode, Failure, ListedVm, Reloaded, VmAdded, VmList, VmRemoved};
use vmlane_config::added::{MOST_BYTES, MOST_VMS};
use vmlane_config::plan::{Plan, plan};
use vmlane_config::sources::{Kind, Source};
use vmlane_config::{Config, VmPlace};
use vmlane_vsock::HOST;

use super::{Daemon, State, host_rules, policy, set_routes};
use crate::grants;
use crate::vm::ServedVm;

/// What the text of a VM that is to be added is called in messages.
const DESCRIPTION: &str = "description";

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::internal(format!("{error}\nthe configuration before stays in force"))
}

fn bad(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

impl Daemon {
    /// Reads the configuration again and applies the difference.
    pub fn reload(&self) -> Result<Reloaded, Failure> {
        let mut state = self.running()?;
        let sources = state.files.read().map_err(|error| failed(&error))?;
        let new = Config::check(&sources).map_err(|error| failed(&error))?;
        let plan = state.plan(&new, None).map_err(|error| failed(&error))?;
        state.files.in_force = sources;
        Ok(self.carry_out(&mut state, plan))
    }

    /// Serves a VM more, now and after every restart. Nothing else changes, also if the configuration's files have changed
    /// since they were read.
    pub(super) fn add_vm(&self, text: &str) -> Result<VmAdded, Failure> {
        if text.len() as u64 > MOST_BYTES {
            let length = text.len();
            return Err(bad(format!(
                "the description has {length} bytes, and may have {MOST_BYTES}; shorten it"
            )));
        }
        let mut state = self.running()?;
        if let Some(why) = state.files.added.why_not() {
            return Err(Failure::internal(format!(
                "no VM can be added, because it could not be kept: {why}; see `vmlane daemon --help`, --state-dir"
            )));
        }
        if state.config.places.values().filter(|place| place.added).count() >= MOST_VMS {
            let text = format!(
                "{MOST_VMS} VMs were added already, which is the most; remove one, or put some into the configuration"
            );
            return Err(Failure::internal(text));
        }
        let source = |path: &Path| Source { path: path.to_owned(), text: text.to_owned(), kind: Kind::Vm };
        let described = Path::new(DESCRIPTION);
        let whole = state.files.in_force.clone().with([source(described)]);
        let checked = Config::check(&whole).map_err(|error| bad(error.to_string()))?;
        let added = checked.places.iter().find(|(_, place)| place.path == described);
        let (name, line) = added.map(|(name, place)| (name.clone(), place.line)).unwrap_or_default();
        let Some(vm) = checked.vm(&name) else { return Err(bad("there is no VM in the description".into())) };
        if let Some(place) = state.config.places.get(&name) {
            return Err(bad(format!(
                "vm {name:?} is still served ({place}): its removal was refused while it is attached"
            )));
        }
        let path = state.files.added.file(&name);
        let mut new = state.config.clone();
        new.vms.push(vm.clone());
        new.places.insert(name.clone(), VmPlace { path: path.clone(), line, added: true });
        let plan = state.plan(&new, None).map_err(|error| bad(error.to_string()))?;
        // First kept, then served: a daemon that is killed in between has a successor that serves it.
        let kept = state.files.added.keep(&name, text);
        kept.map_err(|cause| {
            Failure::internal(format!("vm {name:?} cannot be kept: {}: {cause}", path.display()))
        })?;
        let report = self.carry_out(&mut state, plan);
        let Some(served) = state.vms.iter().find(|vm| vm.name() == name) else {
            let forgotten =
                state.files.added.forget(&name).map_err(|cause| format!("{}: {cause}", path.display()));
            return Err(Failure::internal(
                [report.refused, forgotten.err().into_iter().collect()].concat().join("; "),
            ));
        };
        let file = path.display().to_string();
        let done = VmAdded { name, cid: served.cid(), file, warnings: report.refused };
        state.files.in_force.0.push(source(&path));
        Ok(done)
    }

    /// Ends a VM that was added: it is served no more, and by no later daemon. With `force` also if a VMM is attached.
    pub(super) fn remove_vm(&self, name: &str, force: bool) -> Result<VmRemoved, Failure> {
        let mut state = self.running()?;
        let Some(place) = state.config.places.get(name) else {
            let message = format!("there is no VM {name:?}; known are {}", state.config.names());
            return Err(Failure { code: ErrorCode::UnknownVm, message });
        };
        if !place.added {
            return Err(bad(format!(
                "vm {name:?} was not added at run time: it is of the configuration ({place}); remove it there, then `vmlane reload`"
            )));
        }
        if !force && state.has_session(name) {
            return Err(Failure::internal(format!(
                "vm {name:?} is not removed: a VMM is attached to it; shut the guest down, or use --force, which takes its devices \
                 away for good"
            )));
        }
        let path = place.path.clone();
        let mut rest = state.files.in_force.clone();
        rest.0.retain(|source| source.path != path);
        Config::check(&rest).map_err(|error| bad(format!("vm {name:?} is not removed: {error}")))?;
        let mut new = state.config.clone();
        new.vms.retain(|vm| vm.name != name);
        new.places.remove(name);
        let plan = state.plan(&new, Some(name)).map_err(|error| bad(error.to_string()))?;
        let forgotten = state.files.added.forget(name);
        forgotten.map_err(|cause| {
            Failure::internal(format!("vm {name:?} is not removed: {}: {cause}", path.display()))
        })?;
        state.files.in_force = rest;
        let report = self.carry_out(&mut state, plan);
        Ok(VmRemoved { name: name.into(), file: path.display().to_string(), warnings: report.refused })
    }

    /// All VMs, with where they are described.
    pub(super) fn list_vms(&self) -> VmList {
        let state = self.state.lock();
        let listed = state.config.vms.iter().map(|vm| {
            let place = state.config.places.get(&vm.name).cloned().unwrap_or_default();
            ListedVm {
                name: vm.name.clone(),
                cid: (vm.cid > HOST).then_some(vm.cid),
                group: vm.group.clone(),
                vsock: vm.vsock.name().into(),
                nics: vm.nics.len(),
                owner: vm.owner.map(shown),
                attached: state.attached(&vm.name),
                added: place.added,
                file: place.path.display().to_string(),
                line: place.line,
            }
        });
        VmList { vms: listed.collect() }
    }

    /// The state, unless no VM may be offered any more.
    fn running(&self) -> Result<parking_lot::MutexGuard<'_, State>, Failure> {
        let state = self.state.lock();
        if state.stopped { Err(failed(&"the daemon is stopping")) } else { Ok(state) }
    }

    /// Carries a plan out.
    fn carry_out(&self, state: &mut State, plan: Plan) -> Reloaded {
        let mut report = Reloaded { applied: Vec::new(), refused: plan.refused };
        let route_changes = state.config.route != plan.effective.route;
        state.config = plan.effective.clone();
        for name in &plan.remove {
            state.withdraw(self, name);
            report.applied.push(format!("vm {name:?}: removed"));
        }
        for name in &plan.add {
            match state.offer(self, &plan.effective, name) {
                Ok(_) => {
                    state.vms.iter().for_each(ServedVm::go);
                    report.applied.push(format!("vm {name:?}: added"));
                }
                Err(error) => {
                    state.config.vms.retain(|vm| vm.name != *name);
                    state.config.places.remove(name);
                    report.refused.push(error.to_string());
                }
            }
        }
        for vm in plan.effective.vms.iter().filter(|vm| plan.update.contains(&vm.name)) {
            if let Some(served) = state.vms.iter_mut().find(|served| served.name() == vm.name) {
                served.update(&self.host(), &plan.effective, vm);
            }
            report.applied.push(format!("vm {:?}: changed", vm.name));
        }
        // A VM more, or one that is given more, leaves less to the others.
        for (served, vm) in
            state.vms.iter().filter_map(|served| Some((served, plan.effective.vm(served.name())?)))
        {
            served.limit_memory(plan.effective.memory_limit(vm));
        }
        self.sockets.set_rules(host_rules(&plan.effective));
        *self.policy.lock() = policy(&plan.effective);
        if route_changes {
            match set_routes(&self.sockets, &self.paths, &plan.effective) {
                Ok(()) => report.applied.push("route: changed".into()),
                Err(error) => report.refused.push(error.to_string()),
            }
        }
        if plan.coalesce_changes {
            self.switch.set_coalesce(plan.effective.daemon.coalesce);
            report.applied.push(format!("daemon: coalesce = {}", plan.effective.daemon.coalesce));
        }
        report.refused.extend(grants::apply(&state.config, &self.paths).iter().map(ToString::to_string));
        let (applied, refused) = state.uplinks.change(&self.switch, &plan.effective.uplinks);
        report.applied.extend(applied);
        report.applied.extend(state.uplinks.set_teams(&self.switch, &plan.effective.teams));
        report.refused.extend(refused.iter().map(ToString::to_string));
        let (applied, refused) = state.mirrors.change(&self.switch, &plan.effective);
        report.applied.extend(applied);
        report.refused.extend(refused);
        report
    }
}

impl State {
    fn attached(&self, name: &str) -> bool {
        self.vms.iter().any(|vm| vm.name() == name && vm.attached())
    }

    fn has_session(&self, name: &str) -> bool {
        self.vms.iter().any(|vm| vm.name() == name && vm.has_session())
    }

    /// What leads from the configuration in force to `new`. `forced`: a VM that may be removed though it is attached.
    fn plan(&self, new: &Config, forced: Option<&str>) -> Result<Plan, vmlane_config::plan::Conflict> {
        plan(&self.config, new, |name| forced != Some(name) && self.has_session(name))
    }
}

/// As the configuration has it.
fn shown(owner: Owner) -> String {
    let number = |id: Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
    match owner.gid {
        Some(gid) => format!("{}:{gid}", number(owner.uid)),
        None => number(owner.uid),
    }
}
