//! What a server's sessions saw, as its client gets it.

use serde::{Deserialize, Serialize};

use crate::cpu::Machine;
use crate::datagrams::Datagrams;
use crate::meter::Tally;
use crate::report::TcpSummary;

/// The server's half of a result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub tallies: Vec<Tally>,
    /// CPUs busy on the whole machine during the window, if it can measure that.
    pub machine: Option<Machine>,
    /// The end's TCP connections, together.
    #[serde(default)]
    pub tcp: Option<TcpSummary>,
    /// What became of the datagrams of each session.
    #[serde(default)]
    pub datagrams: Vec<Datagrams>,
    /// Effective buffers of the last data connection (crr has none before it starts).
    pub send_buffer: Option<u64>,
    pub recv_buffer: Option<u64>,
}
