//! What TCP tells about an end's connections when the test is over.

use serde::{Deserialize, Serialize};

use crate::sys::TcpState;

/// The connections of one end together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSummary {
    /// Segments sent again, of all connections since they began.
    pub retransmits: u64,
    /// Bytes of the congestion window, mean of all.
    pub cwnd_bytes: u64,
    /// Bytes of a segment, the smallest of all.
    pub mss: u64,
    /// Smoothed round trip, mean of all.
    pub rtt_us: f64,
}

impl TcpSummary {
    /// None without connections.
    pub fn of(states: impl Iterator<Item = TcpState>) -> Option<TcpSummary> {
        let all: Vec<TcpState> = states.collect();
        let count = all.len() as u64;
        let mss = all.iter().map(|state| state.mss).min()?;
        let windows = all.iter().map(|state| state.cwnd_segments.saturating_mul(state.mss));
        Some(TcpSummary {
            retransmits: all.iter().map(|state| state.retransmits).fold(0, u64::saturating_add),
            cwnd_bytes: windows.fold(0, u64::saturating_add) / count,
            mss,
            rtt_us: all.iter().map(|state| state.rtt_us as f64).sum::<f64>() / count as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_add_up() {
        assert_eq!(TcpSummary::of(std::iter::empty()), None);
        let one = TcpState { retransmits: 1, cwnd_segments: 10, mss: 1000, rtt_us: 100 };
        let two = TcpState { retransmits: 2, cwnd_segments: 20, mss: 1500, rtt_us: 300 };
        let told = TcpSummary::of([one, two].into_iter()).unwrap();
        assert_eq!(told, TcpSummary { retransmits: 3, cwnd_bytes: 20_000, mss: 1000, rtt_us: 200.0 });
    }
}
