//! What a running test reports of itself.

use serde::{Deserialize, Serialize};

/// What moved in a part of the test, as this end saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Seconds since the end of the warm-up; negative within it.
    pub from: f64,
    pub to: f64,
    pub bytes: u64,
    pub transactions: u64,
    pub throughput_bps: f64,
    pub transactions_per_second: f64,
}
