//! `[[uplink]]`: a port of the switch that leads out of the host, and through what it does.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use vmlane_access::Owner;

use super::check::{Checker, Named, places};
use super::net::{DEFAULT, MTUS};
use super::raw::RawUplink;
use super::{Role, Vlan};

/// The kernel's bound on names of interfaces, without the final zero.
const LONGEST_INTERFACE: usize = 15;
/// Bytes of the longest path of a Unix socket.
const LONGEST_SOCKET: usize = 107;
/// Bytes of the longest packet that goes to a vhost-user back end, unless `mtu` says otherwise.
const USUAL_MTU: u16 = 1500;
/// Queues of an uplink.
const MOST_QUEUES: u16 = vmlane_host::uplink::TapOptions::MOST_QUEUES;
const _: () = assert!(MOST_QUEUES == vmlane_host::uplink::xdp::XdpOptions::MOST_QUEUES);

/// One `[[uplink]]`: a port of the switch that leads out of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    pub name: String,
    pub kind: UplinkKind,
    /// Isolation group whose VMs it reaches.
    pub group: String,
    pub vlan: Vlan,
    /// The network behind it is told where addresses are.
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

    /// What it leads to, as the file says: no two uplinks have the same.
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

impl Checker<'_> {
    pub(crate) fn uplinks(&mut self, raws: &[Spanned<RawUplink>]) -> Vec<UplinkConfig> {
        let mut uplinks: Vec<UplinkConfig> = Vec::new();
        for (index, spanned) in raws.iter().enumerate() {
            let raw = spanned.get_ref();
            let Some(name) = self.name_of(Named::Uplink, index, spanned.span(), raw.name.as_ref()) else {
                continue;
            };
            self.mark(format!("uplink {}", name.get_ref()), spanned.span());
            let key = format!("uplink {:?}", name.get_ref());
            let Some(kind) = self.uplink_kind(&key, spanned) else {
                self.leave_out(Named::Uplink);
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
                self.conflict(name.span(), &of, text);
            }
            if let Some(group) = &raw.group {
                self.name(&format!("{key}: group"), group);
            }
            uplinks.push(UplinkConfig {
                name: name.get_ref().clone(),
                kind,
                group: raw.group.as_ref().map_or(DEFAULT, |group| group.get_ref()).to_owned(),
                vlan: raw.vlan.as_ref().map_or(Vlan::TrunkAll, |vlan| self.vlan(&key, vlan)),
                notify: raw.notify.unwrap_or(true),
            });
        }
        uplinks
    }

    /// The one kind whose key is given.
    fn uplink_kind(&mut self, key: &str, spanned: &Spanned<RawUplink>) -> Option<UplinkKind> {
        let raw = spanned.get_ref();
        let values = [&raw.tap, &raw.interface, &raw.vhost_user];
        let given =
            UplinkKind::KEYS.iter().zip(values).filter_map(|(key, value)| Some((*key, value.as_ref()?)));
        let given: Vec<(&str, &Spanned<String>)> = given.collect();
        if let [(kind, _)] = given[..] {
            let is_peer = kind == "vhost_user";
            self.belongs(key, "mtu", raw.mtu.as_ref().filter(|_| !is_peer), "vhost_user");
            self.belongs(key, "role", raw.role.as_ref().filter(|_| !is_peer), "vhost_user");
            self.belongs(key, "queues", raw.queues.as_ref().filter(|_| is_peer), "tap or interface");
            let listens = raw.role.as_ref().is_some_and(|role| role.get_ref() == "server");
            self.belongs(key, "owner", raw.owner.as_ref().filter(|_| !listens), "role = \"server\"");
        }
        match given[..] {
            [("vhost_user", socket)] => {
                self.socket(key, socket);
                let mtu = raw.mtu.as_ref().map_or(USUAL_MTU, |mtu| self.peer_mtu(key, mtu));
                let role = raw.role.as_ref();
                let role = role.map(|role| self.role(&format!("{key}: role"), role, "the other switch"));
                let owner = self.owner(key, raw.owner.as_ref());
                let listens = (role == Some(Role::Server)).then_some(Listens { owner });
                Some(UplinkKind::VhostUser { socket: socket.get_ref().clone(), listens, mtu })
            }
            [("tap", interface)] => {
                self.interface(&format!("{key}: tap"), interface);
                let what = "an interface made with multi_queue";
                let queues = raw.queues.as_ref().and_then(|queues| self.uplink_queues(key, queues, what));
                Some(UplinkKind::Tap { interface: interface.get_ref().clone(), queues, direct: false })
            }
            [("interface", interface)] => {
                self.interface(&format!("{key}: interface"), interface);
                let what = "the first queues of the interface";
                let queues = raw.queues.as_ref().and_then(|queues| self.uplink_queues(key, queues, what));
                Some(UplinkKind::Xdp { interface: interface.get_ref().clone(), queues })
            }
            [(other, value)] => {
                let text = format!(
                    "{key}: {other} = {:?}: this version has no uplinks of this kind; use tap = \"INTERFACE\", or \
                     vhost_user = \"SOCKET\"",
                    value.get_ref()
                );
                self.problem(value.span(), text);
                None
            }
            [] => {
                let text = format!(
                    "{key}: add tap = \"NAME\" for a TAP interface, interface = \"NAME\" for a card (AF_XDP), or vhost_user = \"SOCKET\" for \
                     another switch's port: what the uplink leads to is missing"
                );
                self.problem(spanned.span(), text);
                None
            }
            [(first, _), .., (last, value)] => {
                let text = format!(
                    "{key}: {first} and {last}: an uplink leads to one thing; remove one of them, or make it two uplinks"
                );
                self.problem(value.span(), text);
                None
            }
        }
    }

    /// A name that an interface can have.
    fn interface(&mut self, key: &str, name: &Spanned<String>) {
        self.name(key, name);
        if name.get_ref().len() > LONGEST_INTERFACE {
            let text = format!(
                "{key} = {:?}: names of interfaces have at most {LONGEST_INTERFACE} bytes; use a shorter one",
                name.get_ref()
            );
            self.problem(name.span(), text);
        }
    }

    /// A key that only uplinks of another kind have.
    fn belongs<T>(&mut self, key: &str, name: &str, value: Option<&Spanned<T>>, kind: &str) {
        if let Some(value) = value {
            let text = format!("{key}: {name} is for uplinks with {kind}; leave it out");
            self.problem(value.span(), text);
        }
    }

    /// A path that a Unix socket can have, whatever the daemon's directory is.
    fn socket(&mut self, key: &str, path: &Spanned<String>) {
        let text = path.get_ref();
        let fits = text.starts_with('/') && text.len() <= LONGEST_SOCKET && !text.contains('\0');
        if !fits {
            let text = format!(
                "{key}: vhost_user = {text:?}: use the absolute path of the socket, at most {LONGEST_SOCKET} bytes"
            );
            self.problem(path.span(), text);
        }
    }

    fn peer_mtu(&mut self, key: &str, mtu: &Spanned<i64>) -> u16 {
        if !MTUS.contains(mtu.get_ref()) {
            let (least, most) = (MTUS.start(), MTUS.end());
            let text = format!("{key}: mtu = {}; use {least} to {most}", mtu.get_ref());
            self.problem(mtu.span(), text);
        }
        u16::try_from(*mtu.get_ref()).unwrap_or(USUAL_MTU)
    }

    fn uplink_queues(&mut self, key: &str, queues: &Spanned<i64>, what: &str) -> Option<u16> {
        let number = u16::try_from(*queues.get_ref()).ok();
        let fits = number.filter(|number| (1..=MOST_QUEUES).contains(number));
        if fits.is_none() {
            let text = format!(
                "{key}: queues = {}; use 1 to {MOST_QUEUES} for {what}, or leave it out",
                queues.get_ref(),
            );
            self.problem(queues.span(), text);
        }
        fits
    }
}
