//! Other hosts, as this one knows them: CIDs that they own are endpoints like VMs. A helper process (`vmlane
//! route`) carries the streams; it asks, and is asked, at a socket of its own, in the records of
//! [`vmlane_wire::route`].
//!
//! The helper proves a peer's name and nothing else is taken from it: what a peer may speak for and reach is
//! checked here, for each stream.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use vmlane_access::Owner;
use vmlane_stats::{Counters, counters};

/// CIDs, the last one included.
pub type CidRange = (u32, u32);

/// What is configured of other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// CIDs that this host owns.
    pub cids: Vec<CidRange>,
    /// The one that its programs have for other hosts.
    pub host_cid: Option<u32>,
    /// Whose processes may be the helper, beside root's and those of the daemon's user.
    pub owner: Option<Owner>,
    /// Other hosts; their names are unique.
    pub peers: Vec<Peer>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As its certificate has it.
    pub name: String,
    /// CIDs that it owns.
    pub cids: Vec<CidRange>,
    /// Groups that it may reach, and that may reach it.
    pub groups: Vec<String>,
    /// Its word that a VM is trusted counts.
    pub trusted: bool,
}

fn within(cids: &[CidRange], cid: u32) -> bool {
    cids.iter().any(|&(first, last)| (first..=last).contains(&cid))
}

impl Routes {
    pub fn owns(&self, cid: u32) -> bool {
        within(&self.cids, cid)
    }

    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    /// The peer that owns `cid`.
    pub fn owner_of(&self, cid: u32) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.owns(cid))
    }
}

impl Peer {
    pub fn owns(&self, cid: u32) -> bool {
        within(&self.cids, cid)
    }
}

counters! {
    /// What became of the streams of one peer.
    pub struct PeerStats {
        /// Streams to it that were asked for here.
        calls,
        /// Of those, that did not come about.
        calls_refused,
        /// Streams that it asked for.
        opens,
        /// Of those, refused, for whatever reason.
        opens_refused,
        /// Of those, whose client has no CID of the peer's, or whose server none of this host's.
        forged,
        /// Of those, whose client is in no group that the peer may reach.
        forbidden,
        /// Streams of either direction for which no place was left.
        over_streams,
        /// Streams that came about.
        established,
    }
}

/// What several threads know of one peer.
#[derive(Default)]
pub struct PeerShared {
    /// The helper is connected with it.
    pub up: AtomicBool,
    /// Streams that have a place.
    pub streams: AtomicUsize,
    pub stats: PeerStats,
    pub report: Mutex<PeerReport>,
}

/// What the helper reports of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerReport {
    pub state: String,
    pub problem: String,
    pub counters: Vec<(String, u64)>,
}

/// What an operator may see of a peer. The one without a name is the helper itself: what it reports of
/// connections that no peer's name was proved for.
#[derive(Clone, Debug)]
pub struct PeerView {
    pub name: String,
    /// `up`, or what it is instead.
    pub state: String,
    /// What is wrong, if anything.
    pub problem: String,
    pub streams: usize,
    pub counters: Vec<(String, u64)>,
}

/// Counters of a helper that are kept, at most, and how long their names may be.
const MOST_COUNTERS: usize = 64;
const LONGEST_NAME: usize = 64;

impl PeerReport {
    /// The text of a status behind the peer's name. What is too long is cut.
    pub fn parse<'t>(mut lines: impl Iterator<Item = &'t str>) -> PeerReport {
        let mut line = |most: usize| lines.next().unwrap_or_default().chars().take(most).collect::<String>();
        let (state, problem) = (line(LONGEST_NAME), line(1024));
        let counter = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            let sound =
                name.len() <= LONGEST_NAME && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            sound.then_some(()).and(Some((name.to_owned(), count.parse().ok()?)))
        };
        PeerReport { state, problem, counters: lines.filter_map(counter).take(MOST_COUNTERS).collect() }
    }
}

impl PeerShared {
    pub fn view(&self, name: &str, helper: bool) -> PeerView {
        let report = self.report.lock().clone();
        let state = if helper { report.state } else { "no helper".into() };
        let own = self.stats.snapshot().into_iter().map(|(name, count)| (name.to_owned(), count));
        PeerView {
            name: name.into(),
            state: if state.is_empty() { "unknown".into() } else { state },
            problem: if helper { report.problem } else { String::new() },
            streams: self.streams.load(Ordering::Relaxed),
            counters: own.chain(report.counters).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_and_malformed_lines_in_it_are_not() {
        let report = PeerReport::parse("up\n\nbytes_sent 12\nBad name 1\nx y\nframes 3".lines());
        assert_eq!((report.state.as_str(), report.problem.as_str()), ("up", ""));
        assert_eq!(report.counters, [("bytes_sent".to_owned(), 12), ("frames".to_owned(), 3)]);
        let many = format!("down\nwhy\n{}", "a 1\n".repeat(1000));
        assert_eq!(PeerReport::parse(many.lines()).counters.len(), MOST_COUNTERS);
        assert_eq!(PeerReport::parse("".lines()), PeerReport::default());
    }
}
