//! What TCP reports about an end's connections when the test is over.

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
    /// Smallest round trip, of all.
    #[serde(default)]
    pub min_rtt_us: u64,
    /// How long connections had something to send, together; zero where the kernel does not report it (before
    /// 4.10).
    #[serde(default)]
    pub busy_us: u64,
    /// How much of that they waited for the receiver's window,
    #[serde(default)]
    pub rwnd_limited_us: u64,
    /// and for room in their send buffers.
    #[serde(default)]
    pub sndbuf_limited_us: u64,
}

impl TcpSummary {
    /// None without connections.
    pub fn of(states: impl Iterator<Item = TcpState>) -> Option<TcpSummary> {
        let all: Vec<TcpState> = states.collect();
        let count = all.len() as u64;
        let mss = all.iter().map(|state| state.mss).min()?;
        let windows = all.iter().map(|state| state.cwnd_segments.saturating_mul(state.mss));
        let sum = |of: fn(&TcpState) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        Some(TcpSummary {
            retransmits: sum(|state| state.retransmits),
            cwnd_bytes: windows.fold(0, u64::saturating_add) / count,
            mss,
            rtt_us: all.iter().map(|state| state.rtt_us as f64).sum::<f64>() / count as f64,
            min_rtt_us: all.iter().map(|state| state.min_rtt_us).min().unwrap_or(0),
            busy_us: sum(|state| state.busy_us),
            rwnd_limited_us: sum(|state| state.rwnd_limited_us),
            sndbuf_limited_us: sum(|state| state.sndbuf_limited_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_add_up() {
        assert_eq!(TcpSummary::of(std::iter::empty()), None);
        let one = TcpState {
            retransmits: 1,
            cwnd_segments: 10,
            mss: 1000,
            rtt_us: 100,
            min_rtt_us: 90,
            busy_us: 1,
            ..TcpState::default()
        };
        let two = TcpState {
            retransmits: 2,
            cwnd_segments: 20,
            mss: 1500,
            rtt_us: 300,
            min_rtt_us: 80,
            busy_us: 2,
            ..TcpState::default()
        };
        let summary = TcpSummary::of([one, two].into_iter()).unwrap();
        let expected = TcpSummary {
            retransmits: 3,
            cwnd_bytes: 20_000,
            mss: 1000,
            rtt_us: 200.0,
            min_rtt_us: 80,
            busy_us: 3,
            ..TcpSummary::default()
        };
        assert_eq!(summary, expected);
    }
}
