//! `[[vm]]`: one VM.

use std::fmt;
use std::path::PathBuf;

use toml::Spanned;
use vmlane_access::Owner;

use crate::forward::{self, ForwardConfig};
use crate::limits::{self, Limits};
use crate::nic::{self, NicConfig};
use crate::notes::{Named, Notes};
use crate::owner;
use crate::paths::{Paths, TooLong};
use crate::port_group::{DEFAULT, PortGroupConfig};
use crate::raw::RawVm;
use crate::sources::{SourceKind, Sources};
use crate::vsock::{self, Vsock};
use crate::wire::WireConfig;

/// Bytes of a libvirt domain's name.
const LONGEST_DOMAIN: usize = 255;

/// One `[[vm]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    pub name: String,
    /// Name or UUID (in small letters) of its libvirt domain; None: the VM's name.
    pub domain: Option<String>,
    /// Who may open its sockets, beside root and the daemon's own user.
    pub owner: Option<Owner>,
    pub group: String,
    pub vsock: Vsock,
    /// 0 without an address.
    pub cid: u32,
    pub nics: Vec<NicConfig>,
    pub forwards: Vec<ForwardConfig>,
    /// The CID by which the guest knows the host, beside 2, as enclaves do.
    pub parent_cid: Option<u32>,
    /// Its PCI functions are for User Mode Linux, over virtio, and not by vfio-user.
    pub uml_pci: bool,
    /// It is to be moved between hosts while it runs.
    pub movable: bool,
    pub restricted: bool,
    pub trusted: bool,
    pub limits: Limits,
    /// Bytes of guest memory that each of its devices may map; None: see `memory_limit` of the configuration.
    pub memory: Option<u64>,
}

/// Where a VM is described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmPlace {
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// It was added at run time.
    pub added: bool,
}

impl VmPlace {
    /// The VM whose description begins at this place.
    pub fn of(sources: &Sources, place: usize) -> VmPlace {
        let found = sources.at(place).map(|(source, line)| VmPlace {
            path: source.path.clone(),
            line,
            added: source.kind == SourceKind::Vm,
        });
        found.unwrap_or_default()
    }
}

impl fmt::Display for VmPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.path.display(), self.line)
    }
}

impl VmConfig {
    /// Has it an address in the CID space?
    pub fn takes_connections(&self) -> bool {
        self.vsock != Vsock::None
    }

    /// How many devices map its memory.
    pub fn devices(&self) -> u64 {
        u64::from(self.vsock.is_device()) + self.nics.len() as u64
    }

    /// The number of a NIC's root port, which guests name it after; None: it has none, and QEMU places it.
    ///
    /// Its `slot`; else, from [`FIRST_NICS`](crate::FIRST_NICS) on, its own number, or that and a multiple
    /// of [`MOST_NICS`](crate::MOST_NICS) if another NIC is given that slot.
    pub fn port_slot(&self, number: usize) -> Option<u16> {
        nic::port_slot(&self.nics, number)
    }

    /// Where its VMM makes its hybrid socket.
    pub fn hybrid_socket(&self, paths: &Paths) -> Result<PathBuf, TooLong> {
        match self.vsock.hybrid().and_then(|hybrid| hybrid.path.clone()) {
            Some(path) => Ok(path),
            None => paths.hybrid(&self.name),
        }
    }

    /// The socket by which it takes part in the CID space, if it does.
    pub fn vsock_socket(&self, paths: &Paths) -> Result<Option<PathBuf>, TooLong> {
        match self.vsock {
            Vsock::Vmci => paths.vmci(&self.name).map(Some),
            Vsock::Virtio { .. } => paths.vsock(&self.name).map(Some),
            Vsock::Hybrid(_) => self.hybrid_socket(paths).map(Some),
            Vsock::None => Ok(None),
        }
    }
}

/// What can be checked of a VM without the others. `defaults`: those of `[limits]`.
pub fn judge(
    index: usize,
    spanned: &Spanned<RawVm>,
    defaults: (Limits, Option<u64>),
    networks: (&[PortGroupConfig], &[WireConfig]),
    notes: &mut Notes<'_>,
) -> VmConfig {
    let raw = spanned.get_ref();
    let name = notes.name_of(Named::Vm, index, spanned.span(), &raw.name);
    let name = name.map(|name| name.get_ref().clone()).unwrap_or_default();
    let vm = raw.label(index);
    let group = raw.group.as_ref().map(|group| notes.name(&vm, "group", group));
    let (vsock, cid) = vsock::judge(&vm, spanned, notes);
    let (limits, memory) = limits::judge(&format!("{vm}: limits"), &raw.limits, defaults, notes);
    let is_hybrid = vsock.hybrid().is_some();
    let forwards = raw.forward.iter();
    VmConfig {
        name,
        domain: raw.domain.as_ref().and_then(|name| domain(&vm, name, notes)),
        owner: owner::judge(&vm, &raw.owner, notes),
        group: group.unwrap_or_else(|| DEFAULT.to_owned()),
        cid,
        nics: nic::judge(&vm, raw, networks, notes),
        forwards: forwards.filter_map(|one| forward::judge(&vm, one, is_hybrid, notes)).collect(),
        parent_cid: vsock::parent_cid(&vm, raw, vsock.virtio().is_some(), notes),
        vsock,
        uml_pci: raw.uml_pci.as_ref().is_some_and(|on| *on.get_ref()),
        movable: raw.movable.as_ref().is_some_and(|on| *on.get_ref()),
        restricted: raw.restricted,
        trusted: raw.trusted,
        limits,
        memory,
    }
}

/// A domain's name, or a UUID.
fn domain(vm: &str, domain: &Spanned<String>, notes: &mut Notes<'_>) -> Option<String> {
    let text = domain.get_ref();
    let wrong = |letter: char| letter.is_control() || letter == '/';
    if text.is_empty() || text.len() > LONGEST_DOMAIN || text.contains(wrong) {
        let text = format!(
            "{vm}: domain = {text:?}: write the name or the UUID of its libvirt domain, of 1 to {LONGEST_DOMAIN} bytes"
        );
        notes.problem(domain.span(), text);
        return None;
    }
    let groups = text.split('-').map(str::len);
    let is_uuid =
        groups.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    Some(if is_uuid { text.to_ascii_lowercase() } else { text.clone() })
}
