//! A capture: what is asked for, what the daemon answers, and the connection that it lives on.
//!
//! The answer to `Capture` comes with a descriptor, the file of the ring that records go through. The
//! connection is the capture's from then on: the capture ends when the client closes its half, and once
//! nothing is recorded any more, the last answer comes. If the daemon closes it without one, the daemon has
//! ended.

use serde::{Deserialize, Serialize};

/// What to capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Names of points; none and no VM: all that there are.
    pub points: Vec<String>,
    /// All points of these VMs, too.
    pub vms: Vec<String>,
    /// Bytes of each frame.
    pub snap: u32,
    /// Bytes of records that may wait for the client.
    pub buffer: u64,
    pub vlan: Option<u16>,
    pub mac: Option<String>,
    pub cid: Option<u32>,
    pub port: Option<u32>,
    /// A packet filter as `tcpdump -ddd` prints it.
    pub program: Option<String>,
}

/// A capture that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Its points, in the order of their numbers.
    pub points: Vec<CapturePoint>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturePoint {
    pub name: String,
    /// `frames` or `streams`.
    pub kind: String,
}
