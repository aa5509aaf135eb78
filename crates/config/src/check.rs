//! From what the file says to a configuration, or to everything that is wrong with it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use vmlane_device::vmci;

use super::merge::merge;
use super::raw::{RawConfig, RawDaemon, RawForward, RawHost, RawLimits, RawVm, Size};
use super::sources::{Kind, Sources};
use super::{
    Config, DaemonConfig, FaultLimit, ForwardConfig, HostRule, Limits, LogFormat, Mode, NicConfig, NicModel,
    PortGroupConfig, Problem, Role, RouteConfig, UplinkConfig, VmConfig, VmPlace, Vsock,
};
use crate::cpus::BadList;

/// CIDs a VM may have: 0 to 2 are the hypervisor, the guest itself and the host; the upper half is
/// kept free for contexts that are no VMs.
pub(crate) const CIDS: RangeInclusive<i64> = 3..=0x7fff_ffff;
/// The last port number means "any".
const PORTS: RangeInclusive<i64> = 0..=0xffff_fffe;
/// Users and groups; the last number means "none".
pub(crate) const IDS: RangeInclusive<i64> = 0..=0xffff_fffe;
const WORKERS: RangeInclusive<i64> = 1..=256;
const SPIN_US: RangeInclusive<i64> = 0..=1_000_000;
/// Frames to several that a NIC may send in a second; 0: any number.
pub(crate) const FLOODS: RangeInclusive<i64> = 0..=100_000_000;
/// Faults that put a VM into quarantine; 0: never.
const FAULTS: RangeInclusive<i64> = 0..=1_000_000;
const FAULT_WINDOW_S: RangeInclusive<i64> = 1..=86_400;
/// Bytes of VMs' memory that may be put into huge pages.
const HUGE_PAGES: RangeInclusive<u64> = 0..=1 << 46;
const LONGEST_NAME: usize = 64;
/// What a forward is led to instead of a VM and its port: the host's programs at the same port.
const HOST_PROGRAMS: &str = "host";
/// Linux accepts datagrams of this many bytes; an inbox must hold one and more.
const SMALLEST_INBOX: u64 = 128 << 10;
/// Bytes of memory that a device must be able to map.
const SMALLEST_SHARE: u64 = 1 << 30;

/// Checks the files of a configuration; `complete`: they are all that there are.
pub fn check(sources: &Sources, complete: bool) -> Result<Config, Vec<Problem>> {
    let raw = merge(sources)?;
    Checker::result(sources, |checker| {
        if !complete {
            checker.uncertain.insert(Named::Vm);
        }
        checker.config(&raw)
    })
}

/// Checks what the files say of uplinks, and no more.
pub fn check_uplinks(sources: &Sources) -> Result<Vec<UplinkConfig>, Vec<Problem>> {
    let raw = merge(sources)?;
    Checker::result(sources, |checker| checker.all_uplinks(&raw))
}

/// What others refer to by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Named {
    Vm,
    PortGroup,
    Uplink,
    Team,
}

impl Named {
    fn table(self) -> &'static str {
        match self {
            Named::Vm => "vm",
            Named::PortGroup => "port_group",
            Named::Uplink => "uplink",
            Named::Team => "team",
        }
    }
}

pub(crate) struct Checker<'t> {
    sources: &'t Sources,
    /// With their places, by which they are sorted.
    problems: Vec<(usize, Problem)>,
    /// One of these is missing because of a mistake of its own, so a name that is unknown may be right.
    uncertain: HashSet<Named>,
    marks: BTreeMap<String, (PathBuf, usize)>,
}

impl Checker<'_> {
    /// What `check` makes of the files, unless it finds problems.
    fn result<T>(sources: &Sources, check: impl FnOnce(&mut Checker<'_>) -> T) -> Result<T, Vec<Problem>> {
        let mut checker =
            Checker { sources, problems: Vec::new(), uncertain: HashSet::new(), marks: BTreeMap::new() };
        let made = check(&mut checker);
        let mut problems = checker.problems;
        problems.sort_by_key(|(place, _)| *place);
        if problems.is_empty() {
            Ok(made)
        } else {
            Err(problems.into_iter().map(|(_, problem)| problem).collect())
        }
    }

    pub(crate) fn problem(&mut self, span: Range<usize>, text: String) {
        self.problems.push((span.start, Problem::at(self.sources, span.start, text)));
    }

    /// A mistake that several values make together. It is not reported if one of them is wrong by itself: what it was meant
    /// to be is not known.
    pub(crate) fn conflict(&mut self, span: Range<usize>, of: &[Range<usize>], text: String) {
        if !of.iter().any(|span| self.is_wrong(span)) {
            self.problem(span, text);
        }
    }

    /// Has a mistake been found there?
    pub(crate) fn is_wrong(&self, span: &Range<usize>) -> bool {
        self.problems.iter().any(|(place, _)| span.contains(place))
    }

    /// A name that none of that kind has.
    pub(crate) fn unknown(&mut self, kind: Named, span: Range<usize>, text: String) {
        if !self.is_uncertain(kind) {
            self.problem(span, text);
        }
    }

    /// Is one of that kind missing because of a mistake of its own?
    pub(crate) fn is_uncertain(&self, kind: Named) -> bool {
        self.uncertain.contains(&kind)
    }

    /// What has this name is left out because of its mistakes.
    pub(crate) fn leave_out(&mut self, kind: Named) {
        self.uncertain.insert(kind);
    }

    /// The name of an element of a list, which must have one.
    pub(crate) fn name_of<'n>(
        &mut self,
        kind: Named,
        index: usize,
        span: Range<usize>,
        name: Option<&'n Spanned<String>>,
    ) -> Option<&'n Spanned<String>> {
        let table = kind.table();
        match name {
            Some(name) => self.name(&format!("{table}: name"), name),
            None => {
                let text = format!("{table} number {}: name is missing; add name = \"...\"", index + 1);
                self.problem(span, text);
                self.leave_out(kind);
            }
        }
        name
    }

    /// Remembers where something is described, for warnings.
    pub(crate) fn mark(&mut self, what: String, span: Range<usize>) {
        if let Some((file, line)) = self.sources.line(span.start)
            && let Some(source) = self.sources.0.get(file)
        {
            self.marks.insert(what, (source.path.clone(), line));
        }
    }

    /// A place, in a message about another one.
    pub(crate) fn shown(&self, place: usize, near: usize) -> String {
        self.sources.shown(place, near)
    }

    fn config(&mut self, raw: &RawConfig) -> Config {
        let daemon = self.daemon(&raw.daemon);
        let defaults = self.limits("limits", &raw.limits, (Limits::default(), None));
        let port_groups = self.port_groups(&raw.port_group);
        let uplinks = self.all_uplinks(raw);
        let teams = self.teams(&raw.team, &uplinks);
        let ovn = self.ovn(raw.ovn.as_ref());
        let hosts = raw.host.iter().enumerate().map(|(index, rule)| self.host(index, rule)).collect();
        let vms: Vec<VmConfig> =
            raw.vm.iter().enumerate().map(|(index, vm)| self.vm(index, vm, defaults, &port_groups)).collect();
        let control =
            raw.control.iter().enumerate().map(|(index, rule)| self.control(index + 1, rule)).collect();
        self.unique_logical_ports(raw);
        self.unique(&raw.vm);
        let before_route = self.problems.len();
        let route = self.route(raw.route.as_ref(), &raw.peer, &raw.vm);
        let hosts_are_known = self.problems.len() == before_route;
        self.unique_uds_paths(&raw.vm);
        for (index, (vm, raw_vm)) in vms.iter().zip(&raw.vm).enumerate() {
            self.targets(index, &vms, &raw.vm, route.as_ref(), hosts_are_known);
            self.owner_and_roles(vm, raw_vm.get_ref());
            self.uml_pci(vm, raw_vm.get_ref());
            self.movable(vm, raw_vm.get_ref());
        }
        self.unique_macs(&vms, &raw.vm);
        self.unique_domains(&vms, &raw.vm);
        let mirrors = self.mirrors(&raw.mirror);
        let places = vms.iter().zip(&raw.vm).map(|(vm, raw)| (vm.name.clone(), self.vm_place(raw))).collect();
        let marks = std::mem::take(&mut self.marks);
        let config = Config {
            hosts,
            control,
            daemon,
            vms,
            port_groups,
            uplinks,
            ovn,
            teams,
            mirrors,
            route,
            places,
            marks,
        };
        self.shares(&config, raw);
        self.mirrored(&config, &raw.mirror);
        config
    }

    /// Those of the file, then those of NICs.
    fn all_uplinks(&mut self, raw: &RawConfig) -> Vec<UplinkConfig> {
        let mut uplinks = self.uplinks(&raw.uplink);
        uplinks.extend(self.ovn_uplinks(raw));
        uplinks
    }

    /// What the file of a place may contain.
    pub(crate) fn kind_at(&self, place: usize) -> Option<Kind> {
        let (file, _) = self.sources.line(place)?;
        self.sources.0.get(file).map(|source| source.kind)
    }

    /// Where a VM is described.
    fn vm_place(&self, raw: &Spanned<RawVm>) -> VmPlace {
        let (file, line) = self.sources.line(raw.span().start).unwrap_or_default();
        let source = self.sources.0.get(file);
        VmPlace {
            path: source.map(|source| source.path.clone()).unwrap_or_default(),
            line,
            added: source.is_some_and(|source| source.kind == Kind::Vm),
        }
    }

    /// One permission of host programs.
    fn host(&mut self, index: usize, spanned: &Spanned<RawHost>) -> HostRule {
        self.mark(format!("host {index}"), spanned.span());
        let raw = spanned.get_ref();
        let uid = raw.uid.as_ref().map(|uid| self.number("host: uid", uid, IDS) as u32);
        let gid = raw.gid.as_ref().map(|gid| self.number("host: gid", gid, IDS) as u32);
        let mut named = |groups: &Vec<Spanned<String>>| {
            groups.iter().for_each(|group| self.name("host: groups", group));
            groups.iter().map(|group| group.get_ref().clone()).collect()
        };
        HostRule {
            uid,
            gid,
            groups: raw.groups.as_ref().map(&mut named),
            connect: raw.connect.unwrap_or(true),
            listen: raw.listen.unwrap_or(true),
            privileged: raw.privileged,
        }
    }

    fn daemon(&mut self, raw: &RawDaemon) -> DaemonConfig {
        let default = DaemonConfig::default();
        let workers = raw.workers.as_ref().map(|value| self.number("daemon: workers", value, WORKERS));
        let cpus = raw.cpus.as_ref().and_then(|cpus| match cpus.get_ref().parse() {
            Ok(list) => Some(list),
            Err(error) => {
                let error: BadList = error;
                self.problem(cpus.span(), format!("daemon: cpus = {:?} {error}", cpus.get_ref()));
                None
            }
        });
        let spin_us = raw.spin_us.as_ref().map(|value| self.number("daemon: spin_us", value, SPIN_US));
        let floods = raw.flood_limit.as_ref().map(|value| self.number("daemon: flood_limit", value, FLOODS));
        let faults = raw.fault_limit.as_ref().map(|value| self.number("daemon: fault_limit", value, FAULTS));
        let window = raw.fault_window_s.as_ref();
        let window = window.map(|value| self.number("daemon: fault_window_s", value, FAULT_WINDOW_S));
        let huge_pages = raw.huge_pages.as_ref();
        let huge_pages = huge_pages.and_then(|value| self.size("daemon: huge_pages", value, HUGE_PAGES));
        let mode = match raw.mode.as_ref().map(|mode| (mode, mode.get_ref().as_str())) {
            None | Some((_, "adaptive")) => Mode::Adaptive,
            Some((_, "poll")) => Mode::Poll,
            Some((mode, unknown)) => {
                let text = format!("daemon: mode = {unknown:?} is unknown; use \"adaptive\" or \"poll\"");
                self.problem(mode.span(), text);
                Mode::Adaptive
            }
        };
        if let Some(user) = &raw.user {
            self.mark("daemon: user".into(), user.span());
        }
        let log_format = raw.log_format.as_ref().map(|name| match LogFormat::of_name(name.get_ref()) {
            Some(format) => format,
            None => {
                let text =
                    format!("daemon: log_format = {:?} is unknown; use \"text\" or \"json\"", name.get_ref());
                self.problem(name.span(), text);
                LogFormat::default()
            }
        });
        DaemonConfig {
            workers: workers.map_or(default.workers, |value| value as u16),
            cpus,
            balance: raw.balance.unwrap_or(default.balance),
            mode,
            spin_us: spin_us.map_or(default.spin_us, |value| value as u64),
            flood_limit: floods.map_or(default.flood_limit, |value| value as u32),
            coalesce: raw.coalesce.unwrap_or(default.coalesce),
            huge_pages: huge_pages.unwrap_or(default.huge_pages),
            fault_limit: FaultLimit {
                faults: faults.map_or(default.fault_limit.faults, |value| value as u32),
                within: window.map_or(default.fault_limit.within, |value| Duration::from_secs(value as u64)),
            },
            fault_injection: raw.fault_injection.unwrap_or(default.fault_injection),
            user: raw.user.as_ref().map(|user| user.get_ref().clone()),
            log: raw.log.clone(),
            log_format: log_format.unwrap_or(default.log_format),
        }
    }

    fn vm(
        &mut self,
        index: usize,
        spanned: &Spanned<RawVm>,
        defaults: (Limits, Option<u64>),
        port_groups: &[PortGroupConfig],
    ) -> VmConfig {
        let raw = spanned.get_ref();
        let name = self.name_of(Named::Vm, index, spanned.span(), raw.name.as_ref());
        let name = name.map(|name| name.get_ref().clone()).unwrap_or_default();
        let vm = label(index, raw);
        if let Some(group) = &raw.group {
            self.name(&format!("{vm}: group"), group);
        }
        let vsock = self.vsock(&vm, spanned);
        let (limits, memory) = self.limits(&format!("{vm}: limits"), &raw.limits, defaults);
        VmConfig {
            domain: raw.domain.as_ref().and_then(|domain| self.domain(&vm, domain)),
            owner: self.owner(&vm, raw.owner.as_ref()),
            group: raw.group.as_ref().map_or("default", |group| group.get_ref()).to_owned(),
            cid: if vsock == Vsock::None { 0 } else { self.cid(&vm, spanned) },
            nics: self.nics(&vm, &name, raw, port_groups),
            forwards: raw
                .forward
                .iter()
                .filter_map(|forward| self.forward(&vm, forward, vsock.hybrid().is_some()))
                .collect(),
            parent_cid: self.parent_cid(&vm, raw, vsock.virtio().is_some()),
            vsock,
            uml_pci: raw.uml_pci.as_ref().is_some_and(|on| *on.get_ref()),
            movable: raw.movable.as_ref().is_some_and(|on| *on.get_ref()),
            restricted: raw.restricted,
            trusted: raw.trusted,
            limits,
            memory,
            name,
        }
    }

    /// By what the VM takes part in the CID space.
    fn vsock(&mut self, vm: &str, spanned: &Spanned<RawVm>) -> Vsock {
        let raw = spanned.get_ref();
        let vsock = match raw.vsock.as_ref().map(|vsock| (vsock.span(), vsock.get_ref().as_str())) {
            None | Some((_, "vmci")) => Vsock::Vmci,
            Some((_, "virtio")) => Vsock::Virtio { role: self.vsock_role(vm, raw) },
            Some((_, "hybrid")) => Vsock::Hybrid(self.hybrid(vm, raw)),
            Some((span, "none")) => {
                self.without_vsock(vm, span, spanned);
                Vsock::None
            }
            Some((span, other)) => {
                let text = format!(
                    "{vm}: vsock = {other:?} is unknown; use \"vmci\", \"virtio\", \"hybrid\" or \"none\""
                );
                self.problem(span, text);
                Vsock::None
            }
        };
        if let Some(role) = raw.vsock_role.as_ref().filter(|_| vsock.virtio().is_none()) {
            let text = format!("{vm}: vsock_role works with vsock = \"virtio\" only; remove it");
            self.conflict(role.span(), &places(&raw.vsock), text);
        }
        if let Some(path) = raw.uds_path.as_ref().filter(|_| vsock.hybrid().is_none()) {
            let path_text = path.get_ref();
            let text =
                format!("{vm}: uds_path = {path_text:?}: works with vsock = \"hybrid\" only; remove it");
            self.conflict(path.span(), &places(&raw.vsock), text);
        }
        vsock
    }

    /// What a VM without an address may not have, and must.
    fn without_vsock(&mut self, vm: &str, vsock: Range<usize>, spanned: &Spanned<RawVm>) {
        let raw = spanned.get_ref();
        if raw.cid.is_some() || !raw.forward.is_empty() {
            let text = format!("{vm}: vsock = \"none\" has no use for cid and forward; remove them");
            self.problem(vsock, text);
        } else if raw.nic.is_empty() {
            let text =
                format!("{vm}: with vsock = \"none\" and no nic there is nothing to serve; give it one");
            self.problem(spanned.span(), text);
        }
    }

    fn cid(&mut self, vm: &str, raw: &Spanned<RawVm>) -> u32 {
        let Some(cid) = &raw.get_ref().cid else {
            self.problem(
                raw.span(),
                format!("{vm}: cid is missing; add a number from 3 on that no other VM has"),
            );
            return 0;
        };
        if (0..3).contains(cid.get_ref()) {
            let text = format!("{vm}: cid = {}: CIDs 0, 1 and 2 are reserved; use 3 or more", cid.get_ref());
            self.problem(cid.span(), text);
            return 0;
        }
        self.number(&format!("{vm}: cid"), cid, CIDS) as u32
    }

    /// Of a virtio-vsock device.
    fn vsock_role(&mut self, vm: &str, raw: &RawVm) -> Role {
        let Some(role) = raw.vsock_role.as_ref() else { return Role::Server };
        self.role(&format!("{vm}: vsock_role"), role, "the VMM")
    }

    /// It changes how PCI functions are attached; there must be one.
    fn uml_pci(&mut self, vm: &VmConfig, raw: &RawVm) {
        let is_pci = |nic: &NicConfig| matches!(nic.model, NicModel::Vmxnet3);
        if let Some(on) = raw.uml_pci.as_ref().filter(|on| *on.get_ref())
            && !vm.vsock.is_vmci()
            && !vm.nics.iter().any(is_pci)
        {
            let text = format!(
                "vm {:?}: uml_pci = true: it has no PCI device, neither vsock = \"vmci\" nor a nic with model = \"vmxnet3\"; \
                 remove it",
                vm.name
            );
            let nics = raw.nic.iter().map(Spanned::span);
            let of: Vec<_> = places(&raw.vsock).into_iter().chain(nics).collect();
            self.conflict(on.span(), &of, text);
        }
    }

    /// Who listens at a vhost-user socket: the daemon, or `peer`.
    pub(crate) fn role(&mut self, key: &str, role: &Spanned<String>, peer: &str) -> Role {
        match role.get_ref().as_str() {
            "server" => Role::Server,
            "client" => Role::Client,
            other => {
                let text = format!(
                    "{key} = {other:?} is unknown; use \"server\" (the daemon listens) or \"client\" ({peer} does)"
                );
                self.problem(role.span(), text);
                Role::Server
            }
        }
    }

    fn parent_cid(&mut self, vm: &str, raw: &RawVm, virtio: bool) -> Option<u32> {
        let cid = raw.parent_cid.as_ref()?;
        let text = if !virtio {
            format!("{vm}: parent_cid works with vsock = \"virtio\" only; remove it")
        } else if raw.cid.as_ref().is_some_and(|own| own.get_ref() == cid.get_ref()) {
            format!("{vm}: parent_cid = {}: that is the VM's own cid; enclaves have 3 for it", cid.get_ref())
        } else {
            return Some(self.number(&format!("{vm}: parent_cid"), cid, CIDS) as u32);
        };
        let of: Vec<_> = places(&raw.vsock).into_iter().chain([cid.span()]).collect();
        self.conflict(cid.span(), &of, text);
        None
    }

    fn forward(&mut self, vm: &str, raw: &Spanned<RawForward>, hybrid: bool) -> Option<ForwardConfig> {
        let (port, to) = match raw.get_ref() {
            RawForward { port: Some(port), to: Some(to) } => (port, to),
            RawForward { port, .. } => {
                let (key, example) = if port.is_none() { ("port", "5000") } else { ("to", "\"db:5000\"") };
                self.problem(
                    raw.span(),
                    format!("{vm}: forward: {key} is missing; write for example {key} = {example}"),
                );
                return None;
            }
        };
        if to == HOST_PROGRAMS && PORTS.contains(port) {
            if !hybrid {
                let text = format!(
                    "{vm}: forward: to = {to:?}: with this kind of vsock, programs of the host are reached at CID 2 without a \
                     forward; remove it"
                );
                self.problem(raw.span(), text);
            }
            let port = *port as u32;
            return Some(ForwardConfig { port, to_vm: None, to_port: port });
        }
        let target = to.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<i64>().ok()?)));
        let text = match target {
            Some((name, to_port)) if PORTS.contains(&to_port) && PORTS.contains(port) && !name.is_empty() => {
                return Some(ForwardConfig {
                    port: *port as u32,
                    to_vm: Some(name.to_owned()),
                    to_port: to_port as u32,
                });
            }
            Some((name, _)) if !PORTS.contains(port) && !name.is_empty() => {
                format!("{vm}: forward: port = {port} is no vsock port; use {}", shown(&PORTS))
            }
            _ => format!("{vm}: forward: to = {to:?} is not \"VM:PORT\"; write for example to = \"db:5000\""),
        };
        self.problem(raw.span(), text);
        None
    }

    /// No name and no CID twice, over all groups: sockets are named after the one, packets
    /// addressed by the other.
    fn unique(&mut self, raws: &[Spanned<RawVm>]) {
        let mut names: HashMap<&str, Range<usize>> = HashMap::new();
        let mut cids: HashMap<i64, (usize, Range<usize>)> = HashMap::new();
        for (index, raw) in raws.iter().enumerate() {
            let vm = raw.get_ref();
            if let Some(name) = &vm.name {
                match names.entry(name.get_ref().as_str()) {
                    Entry::Vacant(free) => {
                        free.insert(name.span());
                    }
                    Entry::Occupied(first) => {
                        let place = self.shown(first.get().start, name.span().start);
                        let text = format!(
                            "vm: name = {:?} is taken by the VM of {place}; rename one",
                            name.get_ref()
                        );
                        self.conflict(name.span(), &[name.span(), first.get().clone()], text);
                    }
                }
            }
            if let Some(cid) = &vm.cid {
                match cids.entry(*cid.get_ref()) {
                    Entry::Vacant(free) => {
                        free.insert((index, cid.span()));
                    }
                    Entry::Occupied(first) => {
                        let (other, first) = first.get().clone();
                        let text = format!(
                            "{}: cid = {} is taken by VM {:?} ({}); give one another",
                            label(index, vm),
                            cid.get_ref(),
                            raws.get(other).map_or("", |other| name(other.get_ref())),
                            self.shown(first.start, cid.span().start)
                        );
                        self.conflict(cid.span(), &[cid.span(), first], text);
                    }
                }
            }
        }
    }

    /// Every forward leads to another VM of the same group, or to a CID of another host that the group may reach, and no port leads to two.
    /// `hosts_are_known`: what is said of other hosts is right.
    fn targets(
        &mut self,
        index: usize,
        all: &[VmConfig],
        raws: &[Spanned<RawVm>],
        route: Option<&RouteConfig>,
        hosts_are_known: bool,
    ) {
        let (Some(vm), Some(raw)) = (all.get(index), raws.get(index).map(Spanned::get_ref)) else { return };
        let raw_of = |other: &VmConfig| raws.iter().map(Spanned::get_ref).find(|raw| name(raw) == other.name);
        if let Some(cid) = &raw.parent_cid
            && let Some(other) =
                all.iter().find(|other| vm.parent_cid == Some(other.cid) && other.name != vm.name)
        {
            let text = format!(
                "vm {:?}: parent_cid = {} is the cid of VM {:?}, which the guest reaches by itself; remove it",
                vm.name,
                cid.get_ref(),
                other.name
            );
            let of: Vec<_> =
                raw_of(other).iter().flat_map(|other| places(&other.cid)).chain([cid.span()]).collect();
            self.conflict(cid.span(), &of, text);
        }
        let mut ports = HashMap::new();
        for spanned in &raw.forward {
            let RawForward { port: Some(port), to: Some(to) } = spanned.get_ref() else { continue };
            let key = format!("{}: forward {port} -> {to:?}", label(index, raw));
            if let Some((other, first)) = ports.insert(*port, (to, spanned.span())) {
                let text = format!("{key}: port {port} leads to {other:?} already; remove one");
                self.conflict(spanned.span(), &[spanned.span(), first], text);
            }
            let Some(target) = to.rsplit_once(':').map(|(name, _)| name).filter(|name| !name.is_empty())
            else {
                continue; // reported by `forward`
            };
            // Without the other hosts, every CID may be one of theirs.
            let elsewhere =
                |cid: u32| !hosts_are_known || route.is_some_and(|route| route.reaches(cid, &vm.group));
            let Some(other) = all.iter().find(|other| other.name == target) else {
                if !target.parse().is_ok_and(elsewhere) {
                    let known: Vec<_> = all.iter().map(|other| other.name.as_str()).collect();
                    let text = format!("{key}: there is no VM {target:?}; known are {}", known.join(", "));
                    self.unknown(Named::Vm, spanned.span(), text);
                }
                continue;
            };
            let of_other = raw_of(other);
            let (text, of) = if other.name == vm.name {
                (format!("{key}: a VM cannot be its own target"), Vec::new())
            } else if other.group != vm.group {
                let text = format!(
                    "{key}: {:?} is in group {:?} and {target:?} in group {:?}; no traffic crosses groups, \
                     put both into one",
                    vm.name, vm.group, other.group
                );
                (text, of_other.into_iter().chain([raw]).flat_map(|vm| places(&vm.group)).collect())
            } else if !other.takes_connections() {
                let text = format!(
                    "{key}: {target:?} takes no connections; give it vsock = \"vmci\", \"virtio\" or \"hybrid\""
                );
                (text, of_other.map(|other| places(&other.vsock)).unwrap_or_default())
            } else {
                continue;
            };
            self.conflict(spanned.span(), &of, text);
        }
    }

    /// A size. None: it is out of the range, which is a problem.
    fn size(&mut self, key: &str, value: &Spanned<Size>, range: RangeInclusive<u64>) -> Option<u64> {
        let Size { value: bytes, written, .. } = value.get_ref();
        let bytes = bytes.filter(|bytes| range.contains(bytes));
        if bytes.is_none() {
            let text = format!("{key} = {written}; use a number (or \"64M\") {}", shown(&range));
            self.problem(value.span(), text);
        }
        bytes
    }

    /// The limits of a VM's connections, and of its memory: `base` and `memory` where `raw` says nothing.
    fn limits(
        &mut self,
        table: &str,
        raw: &RawLimits,
        (base, memory): (Limits, Option<u64>),
    ) -> (Limits, Option<u64>) {
        let mut limit = |key: &str, value: &Option<Spanned<Size>>, base: u64, range: RangeInclusive<u64>| {
            let checked =
                value.as_ref().and_then(|value| self.size(&format!("{table}: {key}"), value, range));
            checked.unwrap_or(base)
        };
        const MANY: u64 = 1 << 16;
        let memory = match &raw.memory {
            Some(_) => Some(limit("memory", &raw.memory, 1 << 20, 1 << 20..=Config::SHARED_OUT)),
            None => memory,
        };
        let connections = limit("connections", &raw.connections, base.connections as u64, 1..=MANY) as usize;
        let base = base.vmci;
        let vmci = vmci::Limits {
            queue_pairs: limit("queue_pairs", &raw.queue_pairs, base.queue_pairs as u64, 1..=MANY) as usize,
            queue_pair_bytes: raw.queue_pair_bytes.as_ref().map_or(base.queue_pair_bytes, |_| {
                Some(limit("queue_pair_bytes", &raw.queue_pair_bytes, 4096, 4096..=1 << 40))
            }),
            doorbells: limit("doorbells", &raw.doorbells, base.doorbells as u64, 0..=MANY) as usize,
            inbox_bytes: limit(
                "inbox_bytes",
                &raw.inbox_bytes,
                base.inbox_bytes as u64,
                SMALLEST_INBOX..=1 << 30,
            ) as usize,
            spill_bytes: limit("spill_bytes", &raw.spill_bytes, base.spill_bytes as u64, 0..=1 << 40)
                as usize,
        };
        (Limits { connections, vmci }, memory)
    }

    /// What VMs may map is one address space.
    fn shares(&mut self, config: &Config, raw: &RawConfig) {
        let too_small = |vm: &&VmConfig| vm.devices() > 0 && config.address_space(vm) < SMALLEST_SHARE;
        let sum = config.vms.iter().map(|vm| vm.memory.unwrap_or(0).saturating_mul(vm.devices()));
        let sum = sum.fold(0, u64::saturating_add);
        let Some(last) = raw.vm.last() else { return };
        if sum > Config::SHARED_OUT {
            let most = Config::SHARED_OUT >> 30;
            let text = format!(
                "limits: memory: the devices of all VMs together may map {most}G, not {}G; lower the key memory",
                sum >> 30
            );
            self.problem(last.span(), text);
        } else if let Some(vm) = config.vms.iter().filter(|vm| vm.memory.is_none()).find(too_small) {
            let text = format!(
                "vm {:?}: limits: memory: the keys of other VMs leave it less than 1G; lower them, or give it one",
                vm.name
            );
            self.problem(last.span(), text);
        }
    }

    /// Names become parts of paths and of addresses such as `db:5000`.
    pub(crate) fn name(&mut self, key: &str, value: &Spanned<String>) {
        let name = value.get_ref();
        let good = name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= LONGEST_NAME
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !good {
            let text = format!(
                "{key} = {name:?}: use up to {LONGEST_NAME} letters, digits, '.', '_' and '-', a letter or digit first"
            );
            self.problem(value.span(), text);
        }
    }

    pub(crate) fn number(&mut self, key: &str, value: &Spanned<i64>, range: RangeInclusive<i64>) -> i64 {
        if !range.contains(value.get_ref()) {
            self.problem(
                value.span(),
                format!("{key} = {}; use a number {}", value.get_ref(), shown(&range)),
            );
        }
        *value.get_ref()
    }
}

/// Where a value stands, if it is given.
pub(crate) fn places<T>(value: &Option<Spanned<T>>) -> Vec<Range<usize>> {
    value.iter().map(Spanned::span).collect()
}

/// The name of a VM as it is written; empty if it has none.
pub(crate) fn name(vm: &RawVm) -> &str {
    vm.name.as_ref().map_or("", |name| name.get_ref())
}

/// How messages call a VM.
pub(crate) fn label(index: usize, vm: &RawVm) -> String {
    match &vm.name {
        Some(name) => format!("vm {:?}", name.get_ref()),
        None => format!("vm number {}", index + 1),
    }
}

fn shown<T: std::fmt::Display>(range: &RangeInclusive<T>) -> String {
    format!("from {} to {}", range.start(), range.end())
}
