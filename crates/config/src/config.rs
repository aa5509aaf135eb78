//! The configuration as a whole: its sections in the order in which they are checked, and what others ask of
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use vmlane_vsock::{Forward, HOST, Rule as HostRule};

use crate::daemon::{self, DaemonConfig};
use crate::error::ConfigError;
use crate::forward::ForwardConfig;
use crate::limits::{self, Limits};
use crate::memory::{address_space, host_memory};
use crate::mirror::{self, MirrorConfig};
use crate::notes::{Named, Notes, check};
use crate::ovn::{self, OvnConfig};
use crate::port_group::{self, PortGroupConfig};
use crate::ports::Ports;
use crate::raw::{self, RawConfig};
use crate::route::{self, RouteConfig};
use crate::rules::{self, ControlRule};
use crate::sources::Sources;
use crate::switch::{self, SwitchConfig};
use crate::targets::{self, Targets};
use crate::team::{self, TeamConfig};
use crate::uplink::{self, UplinkConfig};
use crate::vm::{self, VmConfig, VmPlace};
use crate::wire::{self, WireConfig};
use crate::{ends, fits, memory, unique};

/// A configuration without mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub daemon: DaemonConfig,
    /// In the order of the files; names and CIDs are unique.
    pub vms: Vec<VmConfig>,
    /// Names are unique; each switch has one of its name.
    pub port_groups: Vec<PortGroupConfig>,
    /// Names are unique, and so are their ends.
    pub wires: Vec<WireConfig>,
    /// Those of the file, then those of NICs that are ports of OVN's, in the order of the VMs.
    pub uplinks: Vec<UplinkConfig>,
    /// Where OVN's integration bridge is.
    pub ovn: OvnConfig,
    /// Names are unique; no destination is a source.
    pub mirrors: Vec<MirrorConfig>,
    /// Names are unique, and each uplink is in one at most.
    pub teams: Vec<TeamConfig>,
    /// Which programs of the host may talk to VMs; root and the daemon's own user may anyway.
    pub hosts: Vec<HostRule>,
    /// Who may what at the control socket; root and the daemon's own user may everything.
    pub control: Vec<ControlRule>,
    /// Other hosts.
    pub route: Option<RouteConfig>,
    /// Where each VM is described, by its name.
    pub places: BTreeMap<String, VmPlace>,
    /// Where what warnings may be about is described, file and line: `daemon: user`, `uplink NAME`, `host N`,
    /// `control N`.
    pub marks: BTreeMap<String, (PathBuf, usize)>,
}

impl Config {
    /// Reads and checks a file, and those of `conf.d` beside it.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::check(&Sources::read(path)?)
    }

    /// Checks the text of a single file; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        Config::check(&Sources::of(path, text))
    }

    /// What a file may have, as JSON Schema.
    pub fn schema() -> serde_json::Value {
        raw::schema()
    }

    /// Checks files that were read.
    pub fn check(sources: &Sources) -> Result<Config, ConfigError> {
        check(sources, |raw, notes| judge(raw, sources, notes))
    }

    /// The same of files that may lack VMs to which they refer.
    pub fn check_without_added(sources: &Sources) -> Result<Config, ConfigError> {
        check(sources, |raw, notes| {
            notes.leave_out(Named::Vm);
            judge(raw, sources, notes)
        })
    }

    /// Checks the uplinks of files, whatever else is in them.
    pub fn uplinks(sources: &Sources) -> Result<Vec<UplinkConfig>, ConfigError> {
        check(sources, uplinks)
    }

    /// Bytes of guest memory that each device of a VM may map: as configured, or as much as the
    /// host has, as far as the address space goes.
    pub fn memory_limit(&self, vm: &VmConfig) -> u64 {
        vm.memory.unwrap_or_else(|| address_space(&self.vms, vm).min(host_memory()))
    }

    /// All ports of the switch, for mirrors.
    pub fn ports(&self) -> Ports<'_> {
        Ports { vms: &self.vms, uplinks: &self.uplinks, port_groups: &self.port_groups }
    }

    /// A VM's forwards with the CIDs of their targets. Targets that the configuration lacks lead nowhere; a
    /// checked one has none.
    pub fn forwards(&self, vm: &VmConfig) -> Vec<Forward> {
        let forward = |forward: &ForwardConfig| {
            let to_cid = match &forward.to_vm {
                Some(to_vm) => match self.vm(to_vm) {
                    Some(target) => Some(target.cid).filter(|&cid| cid != 0)?,
                    // The CID of another host.
                    None => to_vm.parse().ok().filter(|_| self.route.is_some())?,
                },
                None => HOST,
            };
            Some(Forward { port: forward.port, to_cid, to_port: forward.to_port })
        };
        vm.forwards.iter().filter_map(forward).collect()
    }

    /// Directories outside the runtime directory in which VMMs make hybrid sockets.
    pub fn hybrid_directories(&self) -> Vec<PathBuf> {
        let paths = self.vms.iter().filter_map(|vm| vm.vsock.hybrid()?.path.as_ref()?.parent());
        paths.map(Path::to_owned).collect()
    }

    pub fn vm(&self, name: &str) -> Option<&VmConfig> {
        self.vms.iter().find(|vm| vm.name == name)
    }

    pub fn port_group(&self, name: &str) -> Option<&PortGroupConfig> {
        self.port_groups.iter().find(|group| group.name == name)
    }

    /// The names of all VMs, for messages.
    pub fn names(&self) -> String {
        if self.vms.is_empty() {
            return "none".into();
        }
        self.vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// All sections. What belongs to several is checked once each of them is known by itself: what does not fit
/// together is no mistake of its own where one of them has one.
fn judge(raw: &RawConfig, sources: &Sources, notes: &mut Notes<'_>) -> Config {
    let defaults = limits::judge("limits", &raw.limits, (Limits::default(), None), notes);
    let daemon = daemon::judge(&raw.daemon, notes);
    let switches = switch::judge(&raw.switch, notes);
    let port_groups = port_group::judge(&raw.port_group, &switches, notes);
    let wires = wire::judge(&raw.wire, notes);
    let uplinks = uplinks_of(raw, &switches, &wires, notes);
    let teams = team::judge(&raw.team, &uplinks, notes);
    let ovn = ovn::judge(&raw.ovn, notes);
    let hosts = each(&raw.host, |index, rule| rules::host(index, rule, notes));
    let control = each(&raw.control, |index, rule| rules::control(index, rule, notes));
    let vms = each(&raw.vm, |index, vm| vm::judge(index, vm, defaults, (&port_groups, &wires), notes));
    let ports = Ports { vms: &vms, uplinks: &uplinks, port_groups: &port_groups };
    ends::judge(&raw.wire, &ports, notes);
    unique::logical_ports(&raw.vm, notes);
    unique::names_and_cids(&raw.vm, notes);
    let before_route = notes.count();
    let route = route::judge(&raw.route, &raw.peer, &raw.vm, notes);
    let hosts_are_known = notes.count() == before_route;
    unique::uds_paths(&raw.vm, notes);
    let targets = Targets { vms: &vms, raws: &raw.vm, route: route.as_ref(), hosts_are_known };
    for (index, (vm, raw)) in vms.iter().zip(&raw.vm).enumerate() {
        targets::judge(index, &targets, notes);
        fits::judge(vm, raw.get_ref(), notes);
    }
    unique::macs(&vms, &raw.vm, notes);
    unique::domains(&vms, &raw.vm, notes);
    memory::judge(&vms, &raw.vm, notes);
    let mirrors = each(&raw.mirror, |index, mirror| mirror::judge(index, mirror, notes));
    mirror::judge_ports(&mirrors, &ports, &raw.mirror, notes);
    let place = |raw: &Spanned<_>| VmPlace::of(sources, raw.span().start);
    let places = vms.iter().zip(&raw.vm).map(|(vm, raw)| (vm.name.clone(), place(raw))).collect();
    let marks = std::mem::take(&mut notes.marks);
    Config {
        daemon,
        vms,
        port_groups,
        wires,
        uplinks,
        ovn,
        mirrors,
        teams,
        hosts,
        control,
        route,
        places,
        marks,
    }
}

fn each<R, T>(raws: &[Spanned<R>], mut judge: impl FnMut(usize, &Spanned<R>) -> T) -> Vec<T> {
    raws.iter().enumerate().map(|(index, raw)| judge(index, raw)).collect()
}

fn uplinks(raw: &RawConfig, notes: &mut Notes<'_>) -> Vec<UplinkConfig> {
    let switches = switch::judge(&raw.switch, notes);
    let wires = wire::judge(&raw.wire, notes);
    uplinks_of(raw, &switches, &wires, notes)
}

/// Those of the files, then those of NICs.
fn uplinks_of(
    raw: &RawConfig,
    switches: &[SwitchConfig],
    wires: &[WireConfig],
    notes: &mut Notes<'_>,
) -> Vec<UplinkConfig> {
    let mut uplinks = uplink::judge(&raw.uplink, (switches, wires), notes);
    uplinks.extend(ovn::uplinks(&raw.vm));
    uplinks
}
