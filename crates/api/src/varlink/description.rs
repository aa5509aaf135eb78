//! The description of the interface: what each call takes, and what it gives.
//!
//! What calls give is found from the types of the answers ([`trace`](super::trace)). What they take is a table; a test holds it to
//! [`Call`](crate::Call).

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::trace::{self, Kind, Types, Untraceable};
use super::{INTERFACE, camel};
use crate::answer::{Done, ErrorCode, LinkSet, Pong, Ports, Reloaded, Stats, Status};
use crate::mirror::MirrorRequest;
use crate::ovn::{OvnEntries, OvnReport};
use crate::vms::{VmAdded, VmList, VmRemoved};

/// One call.
pub(super) struct Described {
    /// As in [`crate::METHODS`].
    pub method: &'static str,
    says: &'static str,
    /// Names and kinds of parameters.
    pub takes: &'static [(&'static str, &'static str)],
    gives: fn(&mut Types) -> Result<Kind, Untraceable>,
}

const NAME: (&str, &str) = ("name", "string");
const VM: (&str, &str) = ("vm", "string");
const AT: (&str, &str) = ("at", "string");
const UP: (&str, &str) = ("up", "bool");

/// Every call but `capture`, whose answer comes with a descriptor.
pub(super) const CALLS: [Described; 21] = [
    of("ping", "Does a daemon answer, and what is its process id?", &[], trace::kind::<Pong>),
    of(
        "status",
        "The daemon and its VMs; to a client with the permission \"own\": its own.",
        &[],
        trace::kind::<Status>,
    ),
    of("stats", "Every counter.", &[], trace::kind::<Stats>),
    of("ports", "Connections between VMs, and ports of the switch.", &[], trace::kind::<Ports>),
    of("reload", "Reads the configuration again and applies what differs.", &[], trace::kind::<Reloaded>),
    of(
        "vm_add",
        "Serves a VM more, which the description describes: one table [[vm]] of a configuration (TOML).",
        &[("description", "string")],
        trace::kind::<VmAdded>,
    ),
    of(
        "vm_remove",
        "Ends a VM that was added so; with force also if a VMM is attached.",
        &[NAME, ("force", "?bool")],
        trace::kind::<VmRemoved>,
    ),
    of("vm_list", "All VMs, with where they are described.", &[], trace::kind::<VmList>),
    of("release", "Takes a VM's devices back into service after a quarantine.", &[VM], trace::kind::<Done>),
    of(
        "link",
        "Sets the link of a VM's NIC (nic0, nic1 ...) up or down.",
        &[VM, ("nic", "string"), UP],
        trace::kind::<LinkSet>,
    ),
    of(
        "link_uplink",
        "Sets the link of an uplink up or down.",
        &[("uplink", "string"), UP],
        trace::kind::<LinkSet>,
    ),
    of(
        "mirror_add",
        "Copies what passes some ports to another one, until that is removed or the daemon ends.",
        &[("mirror", "MirrorRequest")],
        trace::kind::<Done>,
    ),
    of("mirror_remove", "Ends a mirror that was added so.", &[NAME], trace::kind::<Done>),
    of(
        "ovn",
        "For the helper of OVN: it tells what it has found out about ports, and hears which are to be up.",
        &[("reports", "[]OvnReport")],
        trace::kind::<OvnEntries>,
    ),
    of(
        "debug_panic",
        "For tests, if the configuration has fault_injection: a part of the daemon that serves a VM panics.",
        &[VM, ("at", "?string")],
        trace::kind::<Done>,
    ),
    of(
        "debug_stall",
        "The same, but it does nothing for so long.",
        &[VM, AT, ("milliseconds", "int")],
        trace::kind::<Done>,
    ),
    of(
        "debug_move",
        "For tests: another worker of the switch moves the frames of a NIC.",
        &[VM, AT, ("worker", "int")],
        trace::kind::<Done>,
    ),
    of(
        "debug_trespass",
        "The same, but it makes a system call that it may not make.",
        &[VM, AT],
        trace::kind::<Done>,
    ),
    of(
        "debug_impair",
        "Loses, reorders or delays frames on their way to a NIC; loss and reorder of 1000; longest: longer frames are lost.",
        &[
            VM,
            AT,
            ("loss", "int"),
            ("reorder", "int"),
            ("delay_us", "int"),
            ("longest", "?int"),
            ("seed", "int"),
        ],
        trace::kind::<Done>,
    ),
    of("shutdown", "Stops the daemon, and ends the sessions of its VMs.", &[], trace::kind::<Done>),
    of(
        "hand_over",
        "Ends the daemon at once for another one that knows state files of this layout.",
        &[("layout", "int")],
        trace::kind::<Done>,
    ),
];

const fn of(
    method: &'static str,
    says: &'static str,
    takes: &'static [(&'static str, &'static str)],
    gives: fn(&mut Types) -> Result<Kind, Untraceable>,
) -> Described {
    Described { method, says, takes, gives }
}

/// The description of [`INTERFACE`] in Varlink's language.
pub fn description() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| write().unwrap_or_else(|error| format!("# {error}\n")));
    &TEXT
}

pub(super) fn write() -> Result<String, Untraceable> {
    let mut types = Types::new();
    trace::kind::<MirrorRequest>(&mut types)?;
    trace::kind::<OvnReport>(&mut types)?;
    let mut methods = String::new();
    let mut answers = Vec::new();
    for call in &CALLS {
        let Kind::Named(answer) = (call.gives)(&mut types)? else { return Err(Untraceable) };
        answers.push(answer);
        let takes =
            call.takes.iter().map(|(name, kind)| format!("{name}: {kind}")).collect::<Vec<_>>().join(", ");
        let gives = members(types.get(answer).ok_or(Untraceable)?);
        let _ = write!(methods, "\n# {}\nmethod {}({takes}) -> {gives}\n", call.says, camel(call.method));
    }
    let mut text = format!(
        "# The daemon's control socket. A process may call what [[control]] of the configuration grants to it; root and the\n\
         # daemon's user may call everything. Captures need a descriptor and are not offered here.\ninterface {INTERFACE}\n"
    );
    for (name, fields) in types.iter().filter(|(name, _)| !answers.contains(name)) {
        let _ = write!(text, "\ntype {name} {}\n", members(fields));
    }
    text += &methods;
    text.push('\n');
    for code in ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::UnknownMethod) {
        let _ = writeln!(text, "error {} (message: string)", camel(code.name()));
    }
    Ok(text)
}

fn members(fields: &trace::Members) -> String {
    if fields.is_empty() {
        return "()".into();
    }
    let lines: Vec<String> = fields.iter().map(|(name, kind)| format!("  {name}: {kind}")).collect();
    format!("(\n{}\n)", lines.join(",\n"))
}
