//! What one end reports of itself: settings, devices and counters of a Linux machine, read and never written.
//!
//! The same structure is read here and sent by a `vmlane bench server --doctor` at the other end. What comes
//! from there is bounded and escaped by [`Facts::from_answer`] before anything uses it.

mod cpu;
pub(crate) mod files;
mod interface;
mod limits;
mod machine;
mod path;
mod pauses;
mod tcp;
mod tools;
pub(crate) mod usual;
mod vsock;

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use cpu::{CpuTime, Load, Process, Snapshot};
pub use interface::{Coalescing, Feature, Interface, Interrupt, Rings, Spread};
pub use limits::{Limit, Limits, Neighbour, Route, counted};
pub use machine::Machine;
pub use path::Path;
pub use tcp::{Counters, SOFTNET_DROPS, Sysctls};
pub use vsock::Vsock;

use crate::text::tame;

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// For how long the machine is watched before anything is measured: who uses its CPUs?
pub const WATCHED: Duration = Duration::from_millis(300);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub version: u32,
    pub machine: Machine,
    pub sysctls: Sysctls,
    pub interfaces: Vec<Interface>,
    /// How the other end is reached; none over vsock.
    pub path: Option<Path>,
    pub vsock: Vsock,
    /// Of the way to the other end.
    pub limits: Limits,
    /// Before anything was measured.
    pub load: Load,
}

impl Facts {
    /// Of this machine. `here` and `there` are the addresses of the connection between both ends.
    pub fn read(here: Option<IpAddr>, there: Option<IpAddr>) -> Facts {
        Facts::read_with(Load::watch(WATCHED), here, there)
    }

    /// With what the machine did at rest.
    pub fn read_with(load: Load, here: Option<IpAddr>, there: Option<IpAddr>) -> Facts {
        let path = here.zip(there).and_then(|(here, there)| Path::find(here, there));
        Facts {
            version: VERSION,
            machine: Machine::read(),
            sysctls: tcp::sysctls(path.as_ref().map(|path| path.interface.as_str())),
            interfaces: interface::read(),
            vsock: vsock::read(),
            limits: Limits::read(there, path.as_ref().map(|path| path.interface.as_str())),
            path,
            load,
        }
    }

    /// What the other end sent, bounded and escaped.
    pub fn from_answer(answer: Value) -> Result<Facts, String> {
        let facts: Facts =
            serde_json::from_value(tame(answer)).map_err(|error| format!("unreadable facts: {error}"))?;
        match facts.version {
            VERSION => Ok(facts),
            other => Err(format!(
                "facts of version {other}, where this program knows {VERSION}: use the same vmlane on both ends"
            )),
        }
    }

    /// The interface that leads to the other end.
    pub fn path_interface(&self) -> Option<&Interface> {
        let path = self.path.as_ref()?;
        self.interfaces.iter().find(|interface| interface.name == path.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_this_machine_can_be_read_by_the_other_end() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let facts = Facts::read(Some(loopback), Some(loopback));
        let answer = serde_json::to_value(&facts).unwrap();
        assert!(
            answer.to_string().len() < vmlane_bench::control::MAX_MESSAGE,
            "{}",
            answer.to_string().len()
        );
        let parsed = Facts::from_answer(answer).unwrap();
        assert_eq!(parsed.path_interface().unwrap().name, "lo");
        assert!(parsed.path_interface().unwrap().feature("tx-tcp-segmentation").unwrap().on);
        assert!(parsed.machine.cpus >= 1 && !parsed.machine.kernel.is_empty(), "{:?}", parsed.machine);
        assert!(parsed.sysctls.number("net.ipv4.tcp_window_scaling").is_some(), "{:?}", parsed.sysctls);
    }

    #[test]
    fn hostile_facts_are_errors_or_harmless() {
        for bad in [
            serde_json::json!(7),
            serde_json::json!({ "version": 99 }),
            serde_json::json!({ "version": 1, "interfaces": 3 }),
        ] {
            assert!(Facts::from_answer(bad).is_err());
        }
        let odd =
            serde_json::json!({ "version": 1, "machine": { "host": "\u{1b}]0;x\u{7}" }, "unknown": [1] });
        assert!(!Facts::from_answer(odd).unwrap().machine.host.contains('\u{1b}'));
    }
}
