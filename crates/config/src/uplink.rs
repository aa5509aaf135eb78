//! `[[uplink]]`: a port of the switch that leads out of the host, and through what it does.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use vmlane_access::Owner;

use crate::notes::{Named, Notes, places};
use crate::owner;
use crate::port_group::{DEFAULT, MTUS};
use crate::raw::RawUplink;
use crate::role::{self, Role};
use crate::switch::{self, SwitchConfig};
use crate::vlan::{self, Vlan};
use crate::wire::{self, WireConfig};

/// The kernel's bound on names of interfaces, without the final zero.
const LONGEST_INTERFACE: usize = 15;
/// Bytes of the longest path of a Unix socket.
const LONGEST_SOCKET: usize = 107;
/// Bytes of the longest packet that goes to a vhost-user back end, unless `mtu` is set.
const USUAL_MTU: u16 = 1500;
/// Queues of an uplink, of any kind.
pub const MOST_QUEUES: u16 = 16;

/// One `[[uplink]]`: a port of the switch that leads out of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    pub name: String,
    pub kind: UplinkKind,
    /// Isolation group whose VMs it reaches.
    pub group: String,
    /// The switch that it is on, or its wire's network.
    pub switch: String,
    pub vlan: Vlan,
    /// The network behind it is notified where addresses are.
    pub notify: bool,
}

/// Through what an uplink leads out of the host. Each has a key of its own, and exactly one is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UplinkKind {
    /// `tap`: a TAP interface, which is made if it is not there.
    Tap {
        interface: String,
        /// Queues to use of an interface made with `multi_queue`; None: it has one.
        queues: Option<u16>,
        /// It belongs to one NIC, and what is behind it may not take super-frames.
        direct: bool,
    },
    /// `vhost_user`: another switch's vhost-user port.
    VhostUser {
        socket: String,
        /// The daemon makes the socket, and the other switch connects; None: the other switch listens.
        listens: Option<Listens>,
        /// Bytes of the longest packet that is no super-frame.
        mtu: u16,
    },
    /// `interface`: an interface of the host, by AF_XDP.
    Xdp {
        interface: String,
        /// How many of its queues; None: all.
        queues: Option<u16>,
    },
}

/// Of a socket that the daemon makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listens {
    /// Who may connect beside root and the daemon's user.
    pub owner: Option<Owner>,
}

impl UplinkConfig {
    /// The wire that it is an end of.
    pub fn wire(&self) -> Option<&str> {
        wire::of_network(&self.switch)
    }

    /// Is it one end of a cable, and a NIC the other?
    pub fn is_direct(&self) -> bool {
        self.kind.is_direct() || self.wire().is_some()
    }
}

impl UplinkKind {
    /// The keys.
    pub const KEYS: [&'static str; 3] = ["tap", "interface", "vhost_user"];

    /// Its key.
    pub fn key(&self) -> &'static str {
        match self {
            UplinkKind::Tap { .. } => "tap",
            UplinkKind::Xdp { .. } => "interface",
            UplinkKind::VhostUser { .. } => "vhost_user",
        }
    }

    /// Does a thread of its own connect it, at the start and whenever what it leads to is there again?
    pub fn connects_by_itself(&self) -> bool {
        matches!(self, UplinkKind::VhostUser { listens: None, .. })
    }

    /// Does the daemon make its socket in `directory`, or below?
    pub fn listens_in(&self, directory: &Path) -> bool {
        matches!(self, UplinkKind::VhostUser { socket, listens: Some(_), .. } if Path::new(socket).starts_with(directory))
    }

    /// Who else may connect to the socket that the daemon makes.
    pub fn owner(&self) -> Option<Owner> {
        match self {
            UplinkKind::VhostUser { listens, .. } => listens.and_then(|listens| listens.owner),
            _ => None,
        }
    }

    /// The host's interface whose link is its own.
    pub fn interface(&self) -> Option<&str> {
        match self {
            UplinkKind::Tap { interface, .. } | UplinkKind::Xdp { interface, .. } => Some(interface),
            UplinkKind::VhostUser { .. } => None,
        }
    }

    /// Is it one NIC's only?
    pub fn is_direct(&self) -> bool {
        matches!(self, UplinkKind::Tap { direct: true, .. })
    }

    /// What it leads to, as in the file: no two uplinks have the same.
    pub fn target(&self) -> &str {
        match self {
            UplinkKind::Tap { interface, .. } | UplinkKind::Xdp { interface, .. } => interface,
            UplinkKind::VhostUser { socket, .. } => socket,
        }
    }
}

impl fmt::Display for UplinkKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} = {:?}", self.key(), self.target())
    }
}

pub fn judge(
    raws: &[Spanned<RawUplink>],
    (switches, wires): (&[SwitchConfig], &[WireConfig]),
    notes: &mut Notes<'_>,
) -> Vec<UplinkConfig> {
    let mut uplinks: Vec<UplinkConfig> = Vec::new();
    for (index, spanned) in raws.iter().enumerate() {
        let raw = spanned.get_ref();
        let Some(name) = notes.name_of(Named::Uplink, index, spanned.span(), &raw.name) else { continue };
        notes.mark(format!("uplink {}", name.get_ref()), spanned.span());
        let key = format!("uplink {:?}", name.get_ref());
        let Some(kind) = kind(&key, spanned, notes) else {
            notes.leave_out(Named::Uplink);
            continue;
        };
        let taken =
            |other: &&UplinkConfig| other.name == *name.get_ref() || other.kind.target() == kind.target();
        if let Some(other) = uplinks.iter().find(taken) {
            let text = format!(
                "{key}: name and {} must be its own, and uplink {:?} has one of them",
                kind.key(),
                other.name
            );
            let values = [&raw.tap, &raw.interface, &raw.vhost_user];
            let of: Vec<_> = values.into_iter().flat_map(places).chain([name.span()]).collect();
            notes.conflict(name.span(), &of, text);
        }
        let group = raw.group.as_ref().map(|group| notes.name(&key, "group", group));
        let wire = wire::of_end(wires, name.get_ref());
        wire.iter().for_each(|wire| wire::judge_uplink(&key, raw, wire, notes));
        let network = wire.map(|wire| wire::network(&wire.name));
        uplinks.push(UplinkConfig {
            name: name.get_ref().clone(),
            kind,
            group: group.unwrap_or_else(|| DEFAULT.to_owned()),
            switch: network.unwrap_or_else(|| switch::of(&key, &raw.switch, switches, notes)),
            vlan: raw.vlan.as_ref().map_or(Vlan::TrunkAll, |vlan| vlan::judge(&key, vlan, notes)),
            notify: raw.notify.unwrap_or(true),
        });
    }
    uplinks
}

/// The one kind whose key is given.
fn kind(key: &str, spanned: &Spanned<RawUplink>, notes: &mut Notes<'_>) -> Option<UplinkKind> {
    let raw = spanned.get_ref();
    let values = [&raw.tap, &raw.interface, &raw.vhost_user];
    let given = UplinkKind::KEYS.iter().zip(values).filter_map(|(key, value)| Some((*key, value.as_ref()?)));
    let given: Vec<(&str, &Spanned<String>)> = given.collect();
    let (text, span) = match given[..] {
        [("vhost_user", socket)] => return Some(vhost_user(key, raw, socket, notes)),
        [(kind, name)] => return Some(interface(key, raw, kind, name, notes)),
        [] => (
            format!(
                "{key}: add tap = \"NAME\" for a TAP interface, interface = \"NAME\" for a card (AF_XDP), or vhost_user = \"SOCKET\" for \
                 another switch's port: what the uplink leads to is missing"
            ),
            spanned.span(),
        ),
        [(first, _), .., (last, value)] => (
            format!(
                "{key}: {first} and {last}: an uplink leads to one thing; remove one of them, or make it two uplinks"
            ),
            value.span(),
        ),
    };
    notes.problem(span, text);
    None
}

/// A port of another switch.
fn vhost_user(key: &str, raw: &RawUplink, socket: &Spanned<String>, notes: &mut Notes<'_>) -> UplinkKind {
    let listens = raw.role.as_ref().is_some_and(|role| role.get_ref() == "server");
    stray(key, "queues", raw.queues.as_ref(), "tap or interface", notes);
    stray(key, "owner", raw.owner.as_ref().filter(|_| !listens), "role = \"server\"", notes);
    let path = socket.get_ref();
    // One that a Unix socket can have, whatever the daemon's directory is.
    if !path.starts_with('/') || path.len() > LONGEST_SOCKET || path.contains('\0') {
        let text = format!(
            "{key}: vhost_user = {path:?}: use the absolute path of the socket, at most {LONGEST_SOCKET} bytes"
        );
        notes.problem(socket.span(), text);
    }
    if let Some(mtu) = raw.mtu.as_ref().filter(|mtu| !MTUS.contains(mtu.get_ref())) {
        let (least, most) = (MTUS.start(), MTUS.end());
        notes.problem(mtu.span(), format!("{key}: mtu = {}; use {least} to {most}", mtu.get_ref()));
    }
    let mtu = raw.mtu.as_ref().and_then(|mtu| u16::try_from(*mtu.get_ref()).ok());
    let role = role::judge(key, "role", &raw.role, "the other switch", notes);
    let owner = owner::judge(key, &raw.owner, notes);
    let listens = (role == Some(Role::Server)).then_some(Listens { owner });
    UplinkKind::VhostUser { socket: path.clone(), listens, mtu: mtu.unwrap_or(USUAL_MTU) }
}

/// A TAP interface, or a card.
fn interface(
    key: &str,
    raw: &RawUplink,
    kind: &str,
    name: &Spanned<String>,
    notes: &mut Notes<'_>,
) -> UplinkKind {
    stray(key, "mtu", raw.mtu.as_ref(), "vhost_user", notes);
    stray(key, "role", raw.role.as_ref(), "vhost_user", notes);
    let listens = raw.role.as_ref().is_some_and(|role| role.get_ref() == "server");
    stray(key, "owner", raw.owner.as_ref().filter(|_| !listens), "role = \"server\"", notes);
    let interface = notes.name(key, kind, name);
    if interface.len() > LONGEST_INTERFACE {
        let text = format!(
            "{key}: {kind} = {interface:?}: names of interfaces have at most {LONGEST_INTERFACE} bytes; use a shorter one"
        );
        notes.problem(name.span(), text);
    }
    let is_tap = kind == "tap";
    let what =
        if is_tap { "an interface made with multi_queue" } else { "the first queues of the interface" };
    let queues = raw.queues.as_ref().and_then(|queues| {
        let number = u16::try_from(*queues.get_ref()).ok();
        let fits = number.filter(|number| (1..=MOST_QUEUES).contains(number));
        if fits.is_none() {
            let text = format!(
                "{key}: queues = {}; use 1 to {MOST_QUEUES} for {what}, or leave it out",
                queues.get_ref()
            );
            notes.problem(queues.span(), text);
        }
        fits
    });
    match is_tap {
        true => UplinkKind::Tap { interface, queues, direct: false },
        false => UplinkKind::Xdp { interface, queues },
    }
}

/// A key that only uplinks of another kind have.
fn stray<T>(key: &str, name: &str, value: Option<&Spanned<T>>, kind: &str, notes: &mut Notes<'_>) {
    if let Some(value) = value {
        notes.problem(value.span(), format!("{key}: {name} is for uplinks with {kind}; leave it out"));
    }
}
