//! The calls of the control socket: one table, from which everything else is made.
//!
//! A client sends the structure of a call, which is its parameters; the daemon has a [`Call`], which it
//! matches: a call without a handler does not compile, nor does one with an answer of another type. The
//! rights, the description of the interface and the guide's list of calls are rows of the same table.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::answer::{Done, ErrorCode, Failure, LinkSet, Pong, Ports, Reloaded, Stats, Status};
use crate::capture::{CaptureRequest, Captured};
use crate::mirror::MirrorRequest;
use crate::ovn::{OvnEntries, OvnReport};
use crate::trace::{self, Trace};
use crate::vms::{VmAdded, VmList, VmRemoved};

/// What a process may at the control socket. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum May {
    /// See the VMs that it owns.
    Own,
    /// See everything.
    Observe,
    /// See and change everything.
    Admin,
}

impl May {
    pub fn name(self) -> &'static str {
        match self {
            May::Own => "own",
            May::Observe => "observe",
            May::Admin => "admin",
        }
    }
}

/// A call. The structure is its parameters, as they are on the wire.
pub trait Method: Serialize + DeserializeOwned {
    type Answer: Serialize + DeserializeOwned;
    const ROW: Row;

    /// Its answer as JSON.
    fn answer(&self, answer: Self::Answer) -> Result<String, Failure> {
        serde_json::to_string(&answer)
            .map_err(|error| Failure::internal(format!("this has no JSON: {error}")))
    }
}

/// The table's entry of a call.
#[derive(Debug)]
pub struct Row {
    /// On the wire, without the interface.
    pub name: &'static str,
    pub what: &'static [&'static str],
    /// What a process needs at least.
    pub needs: May,
    /// A descriptor comes with its answer, and what it belongs to lasts as long as the connection: the client
    /// must allow more answers than one.
    pub lasts: bool,
    pub(crate) takes: Trace,
    pub(crate) gives: Trace,
}

impl Row {
    /// What it does.
    pub fn what(&self) -> String {
        self.what.concat().trim_start().to_owned()
    }

    /// Its name in messages: `VmAdd` is `vm_add`.
    pub fn plain_name(&self) -> String {
        let mut name = String::new();
        for (at, letter) in self.name.char_indices() {
            if at > 0 && letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

fn parse<M: Method>(parameters: Map<String, Value>) -> Result<M, Failure> {
    serde_json::from_value(parameters.into()).map_err(|error| {
        let message = format!("{}: {error}", M::ROW.plain_name());
        Failure { code: ErrorCode::BadRequest, message }
    })
}

macro_rules! calls {
    ($($(#[doc = $what:literal])+ $needs:ident $(, $more:ident)?: $name:ident { $($field:ident: $kind:ty),* $(,)? } -> $answer:ty;)+) => {
        /// The parameters of each call.
        pub mod call {
            use serde::{Deserialize, Serialize};

            use super::{CaptureRequest, MirrorRequest, OvnReport};

            $(
                $(#[doc = $what])+
                #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
                #[serde(deny_unknown_fields)]
                pub struct $name { $(pub $field: $kind),* }
            )+
        }

        /// A request.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Call { $($(#[doc = $what])+ $name(call::$name)),+ }

        /// All calls.
        pub const CALLS: &[Row] = &[$(call::$name::ROW),+];

        $(
            impl Method for call::$name {
                type Answer = $answer;
                const ROW: Row = Row {
                    name: stringify!($name),
                    what: &[$($what),+],
                    needs: May::$needs,
                    lasts: !concat!($(stringify!($more))?).is_empty(),
                    takes: trace::members::<call::$name>,
                    gives: trace::members::<$answer>,
                };
            }
        )+

        impl Call {
            /// The call of a name with these parameters. None: there is no such call.
            pub(crate) fn understand(name: &str, parameters: Map<String, Value>) -> Option<Result<Call, Failure>> {
                match name {
                    $(stringify!($name) => Some(parse(parameters).map(Call::$name)),)+
                    _ => None,
                }
            }

            pub fn row(&self) -> &'static Row {
                match self { $(Call::$name(_) => &call::$name::ROW),+ }
            }
        }
    };
}

// What it does; what it needs, and whether it lasts; its parameters; its answer.
calls! {
    /// Returns version and process id of the daemon.
    Own: Ping {} -> Pong;
    /// The daemon and its VMs; to a client with the permission "own": its own.
    Own: Status {} -> Status;
    /// Every counter.
    Own: Stats {} -> Stats;
    /// Connections between VMs, and ports of the switch.
    Own: Ports {} -> Ports;
    /// Reads the configuration again and applies what differs.
    Admin: Reload {} -> Reloaded;
    /// Adds a VM, described by one table `[[vm]]` of a configuration (TOML).
    // Who adds a VM chooses its group, CID and owner.
    Admin: VmAdd { description: String } -> VmAdded;
    /// Removes a VM that was added at run time; with force also if a VMM is attached.
    Admin: VmRemove { name: String, force: Option<bool> } -> VmRemoved;
    /// All VMs, with where they are described.
    Own: VmList {} -> VmList;
    /// Takes a VM's devices back into service after a quarantine.
    // That protects others from the VM.
    Admin: Release { vm: String } -> Done;
    /// Sets the link of a VM's NIC (nic0, nic1 ...) up or down.
    Admin: Link { vm: String, nic: String, up: bool } -> LinkSet;
    /// Sets the link of an uplink up or down.
    Admin: LinkUplink { uplink: String, up: bool } -> LinkSet;
    /// Changes what happens to frames on a wire until the next reload: keys of its table impair, as TOML;
    /// with to on their way to that end only.
    Admin: WireSet { wire: String, to: Option<String>, impair: String } -> Done;
    /// Cuts a wire, or joins it again: while it is cut, no frame passes, and its ends have no carrier.
    Admin: WireCut { wire: String, cut: bool } -> Done;
    /// Copies what passes some ports to another one, until that is removed or the daemon ends.
    // It shows to one VM what others send.
    Admin: MirrorAdd { mirror: MirrorRequest } -> Done;
    /// Removes a mirror that was added at run time.
    Admin: MirrorRemove { name: String } -> Done;
    /// For the helper of OVN: receives the state of ports, and returns the ports that are to be up.
    // It decides what others see of the ports.
    Admin: Ovn { reports: Vec<OvnReport> } -> OvnEntries;
    /// For tests, if the configuration has fault_injection: a part of the daemon that serves a VM panics.
    // Its VMCI device at the next register access, or what `at` names (`vmci`, `stream`, `nicN`, `nicN-port`,
    // `control`).
    Admin: DebugPanic { vm: String, at: Option<String> } -> Done;
    /// For tests: a part of the daemon that serves a VM does nothing for so long.
    Admin: DebugStall { vm: String, at: String, milliseconds: u32 } -> Done;
    /// For tests: another worker of the switch moves the frames of a NIC.
    Admin: DebugMove { vm: String, at: String, worker: u32 } -> Done;
    /// For tests: a part of the daemon that serves a VM makes a system call that it may not make.
    Admin: DebugTrespass { vm: String, at: String } -> Done;
    /// For tests: loses, reorders or delays frames on their way to a NIC; loss and reorder of 1000; longest:
    /// longer frames are lost.
    // All 0 ends it. The same seed does the same to the same frames.
    Admin: DebugImpair {
        vm: String,
        at: String,
        loss: u16,
        reorder: u16,
        delay_us: u32,
        longest: Option<u32>,
        seed: u64,
    } -> Done;
    /// Records what passes some points, in memory whose descriptor comes with the first answer, until the
    /// client closes its half of the connection; the last answer comes once nothing is recorded any more.
    // It shows what VMs send each other.
    Admin, more: Capture { capture: CaptureRequest } -> Captured;
    /// Stops the daemon, and ends the sessions of its VMs.
    Admin: Shutdown {} -> Done;
    /// Ends the daemon at once for another one that knows state files of this layout.
    Admin: HandOver { layout: u32 } -> Done;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_messages_are_those_of_the_command_line() {
        for (row, name) in
            [(call::Ping::ROW, "ping"), (call::VmAdd::ROW, "vm_add"), (call::DebugPanic::ROW, "debug_panic")]
        {
            assert_eq!(row.plain_name(), name);
        }
    }

    #[test]
    fn the_guide_lists_every_call_with_what_it_needs() {
        let page = include_str!("../../../docs/guide/control-protocol.md");
        let listed: Vec<&str> =
            page.lines().filter(|line| line.starts_with("| `") && line.contains("` | `")).collect();
        let rows =
            CALLS.iter().map(|row| format!("| `{}` | `{}` | {} |", row.name, row.needs.name(), row.what()));
        assert_eq!(listed, rows.collect::<Vec<_>>());
    }
}
