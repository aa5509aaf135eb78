//! Packets from which no conclusion is drawn: what they are, so that a report names what it has passed over.

use std::collections::BTreeMap;
use std::fmt;

use etherparse::IpNumber;

/// Kinds that a report lists.
const MOST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unexamined {
    /// Fewer bytes were kept than its headers have.
    Cut,
    /// Part of a datagram.
    Fragment,
    /// Recorded without a time, or by no interface.
    Timeless,
    Vsock,
    /// Of a link layer that is not known here, by its number.
    Link(u32),
    /// A tunnel of a kind or a version that is not known here.
    Tunnel(&'static str),
    TooDeep,
    NoIp,
    /// In IP, and not TCP.
    Protocol(IpNumber),
}

impl fmt::Display for Unexamined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unexamined::Cut => "cut",
            Unexamined::Fragment => "fragment",
            Unexamined::Timeless => "timeless",
            Unexamined::Vsock => "vsock",
            Unexamined::Link(number) => return write!(f, "link layer {number}"),
            Unexamined::Tunnel(kind) => return write!(f, "{kind} of an unknown form"),
            Unexamined::TooDeep => "tunnels in tunnels",
            Unexamined::NoIp => "other than IP",
            Unexamined::Protocol(IpNumber::ICMP) => "ICMP",
            Unexamined::Protocol(IpNumber::IPV6_ICMP) => "ICMPv6",
            Unexamined::Protocol(IpNumber::IGMP) => "IGMP",
            Unexamined::Protocol(IpNumber::UDP) => "UDP",
            Unexamined::Protocol(IpNumber::SCTP) => "SCTP",
            Unexamined::Protocol(IpNumber(50)) => "ESP (encrypted)",
            Unexamined::Protocol(IpNumber(number)) => return write!(f, "IP protocol {number}"),
        })
    }
}

/// How many of each kind.
#[derive(Default)]
pub struct Counts(BTreeMap<Unexamined, u64>);

impl Counts {
    pub fn add(&mut self, kind: Unexamined, count: u64) {
        if count > 0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub fn by_name(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(kind, count)| (kind.to_string(), *count)).collect()
    }

    /// A line for each kind, the most frequent first.
    pub fn notes(&self) -> Vec<String> {
        let mut kinds: Vec<(&Unexamined, &u64)> = self.0.iter().collect();
        kinds.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), **kind));
        let mut notes: Vec<String> =
            kinds.iter().take(MOST).map(|(kind, count)| note(kind, **count)).collect();
        let more = kinds.len().saturating_sub(MOST);
        if more > 0 {
            notes.push(format!("packets of {more} other kinds were not examined"));
        }
        notes
    }
}

fn note(kind: &Unexamined, count: u64) -> String {
    let (packets, were) = if count == 1 { ("packet", "was") } else { ("packets", "were") };
    match kind {
        Unexamined::Cut => format!(
            "{count} {packets} {were} recorded too short for their headers and not examined: capture at least 128 bytes of each (-s \
             128), in tunnels 256"
        ),
        Unexamined::Fragment => format!(
            "{count} {packets} of fragmented datagrams {were} not examined: fragments belong to no connection here"
        ),
        Unexamined::Timeless => format!("{count} {packets} recorded without a time {were} not examined"),
        Unexamined::Vsock => format!(
            "{count} {packets} of vsock {were} not examined: only TCP is; `vmlane doctor --to vsock:CID` measures between two VMs"
        ),
        Unexamined::Link(number) => {
            format!("{count} {packets} of a link layer that is not known here ({number}) {were} not examined")
        }
        Unexamined::Tunnel(_) | Unexamined::TooDeep => {
            format!("{count} {packets} of {kind} {were} not examined: TCP inside was not seen")
        }
        Unexamined::NoIp => {
            format!("{count} {packets} of protocols other than IP {were} not examined: only TCP is")
        }
        Unexamined::Protocol(_) => format!("{count} {packets} of {kind} {were} not examined: only TCP is"),
    }
}
