//! What is reported to the daemon of each peer, for operators: a state, what is wrong, counters.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use vmlane_port::LogLimit;

use crate::link::Token;

/// Between attempts to reach a peer: it doubles up to the second.
pub const RETRY: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a peer. Those of the one without a name are of connections that proved no peer's name.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counts {
            fn write(&self, text: &mut String) {
                $( let _ = write!(text, concat!("\n", stringify!($name), " {}"), self.$name); )*
            }
        }
    };
}

counts! {
    /// Connections on which both ends have proved their names.
    links,
    /// Of those, that ended otherwise than by being closed.
    links_lost,
    /// Of those, because the peer sent what it must not.
    violations,
    /// Connections that ended before.
    handshakes_failed,
    /// Connections that ended, before or later, because a certificate had expired, or was not valid yet.
    certificates_expired,
    /// The same because a certificate was of a foreign authority.
    certificates_foreign,
    /// The same because a certificate was revoked, or is none of those that are pinned.
    certificates_revoked,
    /// Of those that ended before, because the name in the certificate is no peer's.
    unknown_names,
    /// Of those, because they took too long.
    handshakes_late,
    /// Connections for which there was no place: too many at a time, or within a second.
    over_handshakes,
    /// Bytes of streams, to the peer and from it.
    bytes_sent,
    bytes_received,
}

/// What an operator sees of one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub state: &'static str,
    pub problem: String,
    pub counts: Counts,
}

impl Status {
    /// As it is sent to the daemon.
    pub fn text(&self, name: &str) -> String {
        let problem: String =
            self.problem.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
        let mut text = format!("{name}\n{}\n{problem}", self.state);
        self.counts.write(&mut text);
        text
    }
}

/// What is known of a peer.
pub struct PeerState {
    /// Its connection, once it is up or if it was begun here.
    pub link: Option<Token>,
    pub retry: Instant,
    pub timeout: Duration,
    /// Where it has connected from.
    pub address: Option<IpAddr>,
    /// Limits on lines about its connections that come about, and that end.
    pub ups: LogLimit,
    pub downs: LogLimit,
    pub status: Status,
    /// What was last reported to the daemon; None: nothing.
    pub reported: Option<Status>,
}

impl Default for PeerState {
    fn default() -> PeerState {
        let status = Status { state: "down", ..Status::default() };
        PeerState {
            link: None,
            retry: Instant::now(),
            timeout: RETRY[0],
            address: None,
            ups: LogLimit::default(),
            downs: LogLimit::default(),
            status,
            reported: None,
        }
    }
}
