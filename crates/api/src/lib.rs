//! The control protocol of the daemon, and a client of it.
//!
//! It is [Varlink](https://varlink.org) on `RUNTIME_DIR/control.sock`:
//! `{"method":"io.vmlane.Control.Status","parameters":{}}` is answered by `{"parameters":{...}}` or
//! `{"error":"io.vmlane.Control.Forbidden","parameters":{"message":"..."}}`, each ended by a zero byte. A
//! connection may carry any number of them. [`calls`] is the table of what can be asked, [`varlink`] reads
//! and writes requests and answers, [`message`] cuts them out of a socket; every length is bounded at both
//! ends.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod answer;
pub mod calls;
mod capture;
mod client;
mod counters;
pub mod message;
mod mirror;
mod ovn;
mod trace;
pub mod varlink;
mod vms;

pub use answer::{
    Bound, Connection, Done, ErrorCode, Failure, LearnedMac, LinkSet, NicStats, NicStatus, PeerStatus, Pong,
    Ports, Reloaded, Stats, Status, SwitchPort, TeamMemberStatus, TeamStats, TeamStatus, UplinkStats,
    UplinkStatus, VmStats, VmStatus, Wire, WireEnd, WireImpairment, WorkerStatus,
};
pub use calls::{CALLS, Call, May, Method, Row, call};
pub use capture::{CapturePoint, CaptureRequest, Captured};
pub use client::{CaptureLink, Client, ClientError};
pub use counters::CounterList;
pub use mirror::{Mirror, MirrorRequest};
pub use ovn::{OvnEntries, OvnEntry, OvnReport, OvnStatus};
pub use vms::{ListedForward, ListedVm, VmAdded, VmList, VmRemoved};

use std::path::{Path, PathBuf};

/// Version of every `--json` output that is made of an answer.
pub const VERSION: u32 = 1;
/// Where the daemon keeps its sockets by default.
pub const RUNTIME_DIR: &str = "/run/vmlane";
/// Bytes a request may have, its end included.
pub const MAX_REQUEST: usize = 64 << 10;
/// Bytes an answer may have, its end included.
pub const MAX_ANSWER: usize = 16 << 20;

/// The control socket under a runtime directory.
pub fn control_socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("control.sock")
}
