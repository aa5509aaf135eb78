//! By what a VM takes part in the CID space: its device or socket, and its CID.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;

use crate::hybrid::{self, HybridConfig};
use crate::notes::{Notes, places};
use crate::raw::RawVm;
use crate::role::{self, Role};

/// CIDs a VM may have: 0 to 2 are the hypervisor, the guest itself and the host; the upper half is
/// kept free for contexts that are no VMs.
pub const CIDS: RangeInclusive<i64> = 3..=0x7fff_ffff;

/// By what a VM takes part in the CID space: the key `vsock`, with the keys that go with one of its values
/// only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vsock {
    /// A VMCI device.
    Vmci,
    /// A virtio-vsock device. `role`: the daemon's, at its socket.
    Virtio { role: Role },
    /// Its VMM's own device, with a hybrid Unix socket.
    Hybrid(HybridConfig),
    /// By nothing.
    None,
}

impl Vsock {
    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            Vsock::Vmci => "vmci",
            Vsock::Virtio { .. } => "virtio",
            Vsock::Hybrid(_) => "hybrid",
            Vsock::None => "none",
        }
    }

    /// Is it a VMCI device?
    pub fn is_vmci(&self) -> bool {
        matches!(self, Vsock::Vmci)
    }

    /// The daemon's role at the socket of a virtio-vsock device.
    pub fn virtio(&self) -> Option<Role> {
        match self {
            Vsock::Virtio { role } => Some(*role),
            Vsock::Vmci | Vsock::Hybrid(_) | Vsock::None => None,
        }
    }

    pub fn hybrid(&self) -> Option<&HybridConfig> {
        match self {
            Vsock::Hybrid(hybrid) => Some(hybrid),
            Vsock::Vmci | Vsock::Virtio { .. } | Vsock::None => None,
        }
    }

    /// Is it a device of ours, which maps the guest's memory?
    pub fn is_device(&self) -> bool {
        match self {
            Vsock::Vmci | Vsock::Virtio { .. } => true,
            Vsock::Hybrid(_) | Vsock::None => false,
        }
    }
}

/// Also returns the CID: 0 for a VM without one.
pub fn judge(vm: &str, spanned: &Spanned<RawVm>, notes: &mut Notes<'_>) -> (Vsock, u32) {
    let raw = spanned.get_ref();
    let vsock = match raw.vsock.as_ref().map(|vsock| (vsock.span(), vsock.get_ref().as_str())) {
        None | Some((_, "vmci")) => Vsock::Vmci,
        Some((_, "virtio")) => {
            let role = role::judge(vm, "vsock_role", &raw.vsock_role, "the VMM", notes);
            Vsock::Virtio { role: role.unwrap_or_default() }
        }
        Some((_, "hybrid")) => Vsock::Hybrid(hybrid::judge(vm, raw, notes)),
        Some((span, "none")) => {
            without_vsock(vm, span, spanned, notes);
            Vsock::None
        }
        Some((span, other)) => {
            let text = format!(
                "{vm}: vsock = {other:?} is unknown; use \"vmci\", \"virtio\", \"hybrid\" or \"none\""
            );
            notes.problem(span, text);
            Vsock::None
        }
    };
    if let Some(role) = raw.vsock_role.as_ref().filter(|_| vsock.virtio().is_none()) {
        let text = format!("{vm}: vsock_role works with vsock = \"virtio\" only; remove it");
        notes.conflict(role.span(), &places(&raw.vsock), text);
    }
    if let Some(path) = raw.uds_path.as_ref().filter(|_| vsock.hybrid().is_none()) {
        let path_text = path.get_ref();
        let text = format!("{vm}: uds_path = {path_text:?}: works with vsock = \"hybrid\" only; remove it");
        notes.conflict(path.span(), &places(&raw.vsock), text);
    }
    let cid = if vsock == Vsock::None { 0 } else { cid(vm, spanned, notes) };
    (vsock, cid)
}

/// What a VM without an address may not have, and must.
fn without_vsock(vm: &str, vsock: Range<usize>, spanned: &Spanned<RawVm>, notes: &mut Notes<'_>) {
    let raw = spanned.get_ref();
    if raw.cid.is_some() || !raw.forward.is_empty() {
        let text = format!("{vm}: vsock = \"none\" has no use for cid and forward; remove them");
        notes.problem(vsock, text);
    } else if raw.nic.is_empty() {
        let text = format!("{vm}: with vsock = \"none\" and no nic there is nothing to serve; give it one");
        notes.problem(spanned.span(), text);
    }
}

fn cid(vm: &str, raw: &Spanned<RawVm>, notes: &mut Notes<'_>) -> u32 {
    let (span, text) = match &raw.get_ref().cid {
        None => (raw.span(), format!("{vm}: cid is missing; add a number from 3 on that no other VM has")),
        Some(cid) if (0..3).contains(cid.get_ref()) => {
            let cid_text = cid.get_ref();
            (cid.span(), format!("{vm}: cid = {cid_text}: CIDs 0, 1 and 2 are reserved; use 3 or more"))
        }
        given => return notes.number(vm, "cid", given, CIDS).unwrap_or(0),
    };
    notes.problem(span, text);
    0
}

/// `is_virtio`: it has a virtio-vsock device.
pub fn parent_cid(vm: &str, raw: &RawVm, is_virtio: bool, notes: &mut Notes<'_>) -> Option<u32> {
    let cid = raw.parent_cid.as_ref()?;
    let text = if !is_virtio {
        format!("{vm}: parent_cid works with vsock = \"virtio\" only; remove it")
    } else if raw.cid.as_ref().is_some_and(|own| own.get_ref() == cid.get_ref()) {
        format!("{vm}: parent_cid = {}: that is the VM's own cid; enclaves have 3 for it", cid.get_ref())
    } else {
        return notes.number(vm, "parent_cid", &raw.parent_cid, CIDS);
    };
    let of: Vec<_> = places(&raw.vsock).into_iter().chain([cid.span()]).collect();
    notes.conflict(cid.span(), &of, text);
    None
}
