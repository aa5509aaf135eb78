//! What can be asked of the daemon.

use serde::{Deserialize, Serialize};

use crate::answer::{ErrorCode, Failure, to_line};
use crate::capture::CaptureRequest;
use crate::mirror::MirrorRequest;
use crate::ovn::OvnReport;
use crate::{MAX_REQUEST, VERSION};

/// A request. On the wire its name is the key `method`, and parameters stand beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Does a daemon answer, and what is its process id?
    Ping,
    /// The daemon and its VMs.
    Status,
    /// Every counter.
    Stats,
    /// Connections between VMs.
    Ports,
    /// Read the configuration again and apply what differs.
    Reload,
    /// Serve a VM more, which `description` describes: one table `[[vm]]` of a configuration. It lasts until it is removed.
    VmAdd { description: String },
    /// End a VM that was added so; with `force` also if a VMM is attached.
    VmRemove {
        name: String,
        #[serde(default)]
        force: bool,
    },
    /// All VMs, with where they are described.
    VmList,
    /// Take a VM's devices back into service after a quarantine.
    Release { vm: String },
    /// Set the link of a VM's NIC (`nicN`) up or down.
    Link { vm: String, nic: String, up: bool },
    /// Copy what passes some ports to another one, until it is removed or the daemon ends.
    MirrorAdd { mirror: MirrorRequest },
    /// End a mirror that was added so.
    MirrorRemove { name: String },
    /// Set the link of an uplink up or down.
    LinkUplink { uplink: String, up: bool },
    /// What the helper for OVN has found out about ports since it asked last. The answer says which are to be up.
    Ovn { reports: Vec<OvnReport> },
    /// Make a part of the daemon that serves a VM panic: its VMCI device at the next register access, or
    /// what `at` names (`vmci`, `stream`, `nicN`, `nicN-port`, `control`). For tests of containment; needs
    /// `fault_injection` in the configuration.
    DebugPanic {
        vm: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// The same, but it does nothing for so long.
    DebugStall { vm: String, at: String, milliseconds: u32 },
    /// The same, but it makes a system call that it has no use for. A confined daemon ends.
    DebugTrespass { vm: String, at: String },
    /// Have another worker of the switch move the frames of the NIC that `at` names (`nicN-port`), as the daemon does by itself
    /// with `balance` in the configuration.
    DebugMove { vm: String, at: String, worker: u32 },
    /// Lose, reorder or delay frames on their way to the NIC that `at` names (`nicN-port`): `loss` and `reorder` of
    /// 1000, each `delay_us` microseconds late, and all of more than `longest` bytes lost. All 0 ends it. The same `seed` does
    /// the same to the same frames.
    DebugImpair {
        vm: String,
        at: String,
        loss: u16,
        reorder: u16,
        delay_us: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        longest: Option<u32>,
        seed: u64,
    },
    /// Record what passes some points. The answer comes with a descriptor; the connection is the capture's from then on.
    Capture { capture: CaptureRequest },
    /// Stop the daemon.
    Shutdown,
    /// End at once and leave every VM to the daemon that asks, which knows state files of this layout.
    HandOver { layout: u32 },
}

/// Names of all methods, for errors.
pub const METHODS: [&str; 22] = [
    "ping",
    "status",
    "stats",
    "ports",
    "reload",
    "vm_add",
    "vm_remove",
    "vm_list",
    "release",
    "link",
    "link_uplink",
    "mirror_add",
    "mirror_remove",
    "ovn",
    "debug_panic",
    "debug_stall",
    "debug_move",
    "debug_trespass",
    "debug_impair",
    "capture",
    "shutdown",
    "hand_over",
];

impl Call {
    /// The name on the wire.
    pub fn method(&self) -> &'static str {
        match self {
            Call::Ping => "ping",
            Call::Status => "status",
            Call::Stats => "stats",
            Call::Ports => "ports",
            Call::Reload => "reload",
            Call::VmAdd { .. } => "vm_add",
            Call::VmRemove { .. } => "vm_remove",
            Call::VmList => "vm_list",
            Call::Release { .. } => "release",
            Call::Link { .. } => "link",
            Call::MirrorAdd { .. } => "mirror_add",
            Call::MirrorRemove { .. } => "mirror_remove",
            Call::LinkUplink { .. } => "link_uplink",
            Call::Ovn { .. } => "ovn",
            Call::DebugPanic { .. } => "debug_panic",
            Call::DebugStall { .. } => "debug_stall",
            Call::DebugMove { .. } => "debug_move",
            Call::DebugTrespass { .. } => "debug_trespass",
            Call::DebugImpair { .. } => "debug_impair",
            Call::Capture { .. } => "capture",
            Call::Shutdown => "shutdown",
            Call::HandOver { .. } => "hand_over",
        }
    }

    /// The request as a line, newline included.
    pub fn to_line(&self) -> String {
        #[derive(Serialize)]
        struct Request<'c> {
            version: u32,
            #[serde(flatten)]
            call: &'c Call,
        }
        to_line(&Request { version: VERSION, call: self })
    }

    /// Understands a request line. What is wrong is named, from the outside in: JSON, version,
    /// method, parameters.
    pub fn from_line(line: &[u8]) -> Result<Call, Failure> {
        let bad = |message: String| Failure { code: ErrorCode::BadRequest, message };
        if line.len() > MAX_REQUEST {
            return Err(Failure::request_too_long());
        }
        let value: serde_json::Value =
            serde_json::from_slice(line).map_err(|error| bad(format!("the request is not JSON: {error}")))?;
        let serde_json::Value::Object(mut request) = value else {
            return Err(bad(format!(
                "the request is not an object; send {{\"version\":{VERSION},\"method\":\"ping\"}}"
            )));
        };
        match request.remove("version") {
            Some(version) if version == VERSION => {}
            version => {
                let given = version.map_or("none".to_owned(), |version| version.to_string());
                let message = format!("version: {given} given, this daemon speaks {VERSION}");
                return Err(Failure { code: ErrorCode::WrongVersion, message });
            }
        }
        let method = request.get("method").and_then(|method| method.as_str()).unwrap_or_default().to_owned();
        if !METHODS.contains(&method.as_str()) {
            let message = format!("method: {method:?} is unknown; known are {}", METHODS.join(", "));
            return Err(Failure { code: ErrorCode::UnknownMethod, message });
        }
        serde_json::from_value(request.into()).map_err(|error| bad(format!("{method}: {error}")))
    }
}

/// A request of each method, with all its parameters.
#[cfg(test)]
pub(crate) fn samples() -> [Call; METHODS.len()] {
    [
        Call::Ping,
        Call::Status,
        Call::Stats,
        Call::Ports,
        Call::Reload,
        Call::VmAdd { description: "[[vm]]\nname = \"a\"".into() },
        Call::VmRemove { name: "a".into(), force: true },
        Call::VmList,
        Call::Release { vm: "web".into() },
        Call::Link { vm: "web".into(), nic: "nic0".into(), up: false },
        Call::LinkUplink { uplink: "lan".into(), up: true },
        Call::MirrorAdd {
            mirror: MirrorRequest {
                name: "m".into(),
                from: vec!["web/nic0".into()],
                to: "lan".into(),
                vlan: Some(900),
                ..MirrorRequest::default()
            },
        },
        Call::MirrorRemove { name: "m".into() },
        Call::Ovn {
            reports: vec![OvnReport {
                vm: "web".into(),
                nic: "nic0".into(),
                state: "waiting".into(),
                problem: "no port".into(),
                whole: true,
            }],
        },
        Call::DebugPanic { vm: "web".into(), at: Some("vmci".into()) },
        Call::DebugStall { vm: "web".into(), at: "nic0-port".into(), milliseconds: 5 },
        Call::DebugMove { vm: "web".into(), at: "nic0-port".into(), worker: 1 },
        Call::DebugTrespass { vm: "web".into(), at: "vmci".into() },
        Call::DebugImpair {
            vm: "web".into(),
            at: "nic0-port".into(),
            loss: 10,
            reorder: 5,
            delay_us: 300,
            longest: Some(1514),
            seed: 7,
        },
        Call::Capture {
            capture: CaptureRequest {
                points: vec!["web/nic0".into()],
                vlan: Some(7),
                ..CaptureRequest::default()
            },
        },
        Call::Shutdown,
        Call::HandOver { layout: 1 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_survives_the_wire() {
        let calls = samples();
        assert_eq!(calls.len(), METHODS.len());
        for (call, method) in calls.iter().zip(METHODS) {
            let line = call.to_line();
            assert!(line.contains(&format!("\"method\":\"{method}\"")), "{line}");
            assert_eq!(call.method(), method);
            assert_eq!(Call::from_line(line.as_bytes()).as_ref(), Ok(call));
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let table: [(&str, ErrorCode, &str); 8] = [
            ("{", ErrorCode::BadRequest, "not JSON"),
            ("[]", ErrorCode::BadRequest, "not an object"),
            (r#"{"method":"ping"}"#, ErrorCode::WrongVersion, "version: none given, this daemon speaks 1"),
            (r#"{"version":2,"method":"ping"}"#, ErrorCode::WrongVersion, "version: 2 given"),
            (r#"{"version":1}"#, ErrorCode::UnknownMethod, "known are ping, status"),
            (r#"{"version":1,"method":"dance"}"#, ErrorCode::UnknownMethod, "\"dance\" is unknown"),
            (r#"{"version":1,"method":"debug_panic"}"#, ErrorCode::BadRequest, "missing field `vm`"),
            (r#"{"version":1,"method":"debug_panic","vm":3}"#, ErrorCode::BadRequest, "expected a string"),
        ];
        for (line, code, text) in table {
            let failure = Call::from_line(line.as_bytes()).unwrap_err();
            assert_eq!(failure.code, code, "{line}: {failure:?}");
            assert!(failure.message.contains(text), "{line}: {failure:?}");
        }
    }

    #[test]
    fn an_endless_request_is_refused_before_it_is_parsed() {
        let line = vec![b'['; MAX_REQUEST + 1];
        assert_eq!(Call::from_line(&line).unwrap_err().code, ErrorCode::TooLong);
        let deep = vec![b'['; MAX_REQUEST];
        assert_eq!(Call::from_line(&deep).unwrap_err().code, ErrorCode::BadRequest);
    }
}
