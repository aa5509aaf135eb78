//! The queries that the switch sends by itself: a guest reports its groups when it is asked.
//!
//! IGMPv3 and MLDv2, which older versions understand as their own (RFC 3376, section 7; RFC 3810, section 8).
//! Their source address is 0.0.0.0 or a link-local one, so that routers that ask as well stay in charge (RFC
//! 4541, section 2.1.1).

use std::time::Duration;

use vmlane_wire::ethernet::{HEADER, Mac, ether_type};

/// The switch's own address: locally administered.
const OWN: Mac = Mac([0x02, 0x76, 0x6d, 0x6c, 0x61, 0x6e]);
const ALL_HOSTS: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);
const ALL_NODES: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
/// Of the querier: how many messages may be lost.
const ROBUSTNESS: u8 = 2;
/// Between two queries of the switch.
pub const QUERY_EVERY: Duration = Duration::from_secs(125);
const EVERY: u8 = QUERY_EVERY.as_secs() as u8;

const V4: usize = 24;
const IGMP: usize = 12;
const V6: usize = 40;
const OPTIONS: usize = 8;
const MLD: usize = 28;

/// How soon guests answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Spread over ten seconds.
    Spread,
    /// Within a second: someone has left.
    Soon,
}

/// The Internet checksum (RFC 1071) of `parts`, each of an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words.map(|word| word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// Puts `bytes` into `frame` from `at` on.
fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn ethernet(frame: &mut [u8], to: Mac, kind: u16) {
    put(frame, 0, &to.0);
    put(frame, 6, &OWN.0);
    put(frame, 12, &kind.to_be_bytes());
}

/// A frame that asks for all groups of IPv4.
pub fn igmp(answers: Answers) -> [u8; HEADER + V4 + IGMP] {
    let mut frame = [0; HEADER + V4 + IGMP];
    ethernet(&mut frame, ALL_HOSTS, ether_type::IPV4);
    // Internet control, TTL 1, from no one to all hosts, with a router alert.
    let mut ip =
        [0x46, 0xc0, 0, (V4 + IGMP) as u8, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0];
    let sum = checksum(&[&ip]);
    put(&mut ip, 10, &sum);
    let tenths = if answers == Answers::Soon { 10 } else { 100 };
    let mut igmp = [0x11, tenths, 0, 0, 0, 0, 0, 0, ROBUSTNESS, EVERY, 0, 0];
    let sum = checksum(&[&igmp]);
    put(&mut igmp, 2, &sum);
    put(&mut frame, HEADER, &ip);
    put(&mut frame, HEADER + V4, &igmp);
    frame
}

/// A frame that asks for all groups of IPv6.
pub fn mld(answers: Answers) -> [u8; HEADER + V6 + OPTIONS + MLD] {
    let mut frame = [0; HEADER + V6 + OPTIONS + MLD];
    ethernet(&mut frame, ALL_NODES, ether_type::IPV6);
    let [a, b, c, d, e, f] = OWN.0;
    let own = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    put(&mut frame, HEADER, &[0x60, 0, 0, 0, 0, (OPTIONS + MLD) as u8, 0, 1]);
    put(&mut frame, HEADER + 8, &own);
    put(&mut frame, HEADER + 24, &all);
    // A router alert (RFC 2711), padded.
    put(&mut frame, HEADER + V6, &[58, 0, 5, 2, 0, 0, 1, 0]);
    let milliseconds: u16 = if answers == Answers::Soon { 1000 } else { 10_000 };
    let mut mld = [0; MLD];
    mld[0] = 130;
    put(&mut mld, 4, &milliseconds.to_be_bytes());
    put(&mut mld, 24, &[ROBUSTNESS, EVERY]);
    let sum = checksum(&[&own, &all, &[0, 0, 0, MLD as u8, 0, 0, 0, 58], &mld]);
    put(&mut mld, 2, &sum);
    put(&mut frame, HEADER + V6 + OPTIONS, &mld);
    frame
}
