//! `forward` of a VM: where its connects to the host lead instead.

use std::ops::RangeInclusive;

use toml::Spanned;

use crate::notes::{Notes, shown};
use crate::raw::RawForward;

/// The last port number means "any".
const PORTS: RangeInclusive<i64> = 0..=0xffff_fffe;
/// What a forward is led to instead of a VM and its port: the host's programs at the same port.
const HOST_PROGRAMS: &str = "host";

/// One element of `forward`: connects of this VM to {CID 2, `port`} reach `to_port` of VM `to_vm`, which may
/// be the CID of another host's; None: of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    pub port: u32,
    pub to_vm: Option<String>,
    pub to_port: u32,
}

impl ForwardConfig {
    /// Its key `to`.
    pub fn to(&self) -> String {
        self.to_vm.as_ref().map_or_else(|| HOST_PROGRAMS.into(), |vm| format!("{vm}:{}", self.to_port))
    }
}

/// `is_hybrid`: the VM's VMM has a hybrid socket.
pub fn judge(
    vm: &str,
    raw: &Spanned<RawForward>,
    is_hybrid: bool,
    notes: &mut Notes<'_>,
) -> Option<ForwardConfig> {
    let (port, to) = match raw.get_ref() {
        RawForward { port: Some(port), to: Some(to) } => (port, to),
        RawForward { port, .. } => {
            let (key, example) = if port.is_none() { ("port", "5000") } else { ("to", "\"db:5000\"") };
            let text = format!("{vm}: forward: {key} is missing; write for example {key} = {example}");
            notes.problem(raw.span(), text);
            return None;
        }
    };
    if to == HOST_PROGRAMS && PORTS.contains(port) {
        if !is_hybrid {
            let text = format!(
                "{vm}: forward: to = {to:?}: with this kind of vsock, programs of the host are reached at CID 2 without a \
                 forward; remove it"
            );
            notes.problem(raw.span(), text);
        }
        let port = *port as u32;
        return Some(ForwardConfig { port, to_vm: None, to_port: port });
    }
    let target = to.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<i64>().ok()?)));
    let text = match target.filter(|(name, _)| !name.is_empty()) {
        Some((name, to_port)) if PORTS.contains(&to_port) && PORTS.contains(port) => {
            let to_vm = Some(name.to_owned());
            return Some(ForwardConfig { port: *port as u32, to_vm, to_port: to_port as u32 });
        }
        Some(_) if !PORTS.contains(port) => {
            format!("{vm}: forward: port = {port} is no vsock port; use {}", shown(&PORTS))
        }
        _ => format!("{vm}: forward: to = {to:?} is not \"VM:PORT\"; write for example to = \"db:5000\""),
    };
    notes.problem(raw.span(), text);
    None
}
