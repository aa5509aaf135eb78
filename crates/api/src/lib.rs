//! The control protocol of the daemon, and a client of it.
//!
//! One request, one answer, each a line of JSON on `RUNTIME_DIR/control.sock`:
//! `{"version":1,"method":"status"}` is answered by `{"version":1,"ok":{...}}` or
//! `{"version":1,"error":{"code":"...","message":"..."}}`. A connection may carry any number of them.
//! Every length is bounded at both ends; see [`mod@message`]. The same calls are there in Varlink's framing: [`varlink`].
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod answer;
mod calls;
mod capture;
mod client;
mod counters;
pub mod message;
mod mirror;
mod ovn;
pub mod varlink;
mod vms;

pub use answer::{
    Bound, Connection, Done, ErrorCode, Failure, LearnedMac, LinkSet, NicStats, NicStatus, Outcome,
    PeerStatus, Pong, Ports, Reloaded, Reply, Stats, Status, SwitchPort, TeamMemberStatus, TeamStats,
    TeamStatus, UplinkStats, UplinkStatus, VmStats, VmStatus, WorkerStatus, line_of, to_json,
};
pub use calls::{Call, METHODS};
pub use capture::{CaptureLink, CapturePoint, CaptureRequest, Captured, send_with_file};
pub use client::{Client, ClientError};
pub use counters::CounterList;
pub use mirror::{Mirror, MirrorRequest};
pub use ovn::{OvnEntries, OvnEntry, OvnReport, OvnStatus};
pub use vms::{ListedVm, VmAdded, VmList, VmRemoved};

use std::path::{Path, PathBuf};

/// Version of the protocol, of every answer and of every `--json` output made from one.
pub const VERSION: u32 = 1;
/// Where the daemon keeps its sockets unless told otherwise.
pub const RUNTIME_DIR: &str = "/run/vmlane";
/// Bytes a request may have, its newline included.
pub const MAX_REQUEST: usize = 64 << 10;
/// Bytes an answer may have, its newline included.
pub const MAX_ANSWER: usize = 16 << 20;

/// The control socket under a runtime directory.
pub fn control_socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("control.sock")
}
