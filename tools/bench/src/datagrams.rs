//! What becomes of datagrams: our header in each, and the receiver's account of loss, order and jitter.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::spec::DATAGRAM;

/// Bytes of [`Header`].
pub const HEADER: usize = DATAGRAM.0 as usize;

/// What a datagram belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Warmup = 0,
    Counted = 1,
    Cooldown = 2,
    /// Nothing comes after it. Sent several times.
    End = 3,
    /// Announces its client to a server's socket.
    Hello = 4,
}

/// In front of every datagram of a stream. Little endian: number (u64), sender's nanoseconds since its start
/// (u64), token of the test (u32), phase (u8), three bytes of nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub number: u64,
    pub sent_ns: u64,
    pub token: u32,
    pub phase: Phase,
}

impl Header {
    pub fn hello(token: u32) -> Header {
        Header { number: 0, sent_ns: 0, token, phase: Phase::Hello }
    }

    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.token.to_le_bytes());
        bytes[20] = self.phase as u8;
        bytes
    }

    /// None: a stranger's.
    pub fn parse(datagram: &[u8], token: u32) -> Option<Header> {
        let u64_at = |at: usize| Some(u64::from_le_bytes(datagram.get(at..at + 8)?.try_into().ok()?));
        let theirs = u32::from_le_bytes(datagram.get(16..20)?.try_into().ok()?);
        let phase = match datagram.get(20)? {
            0 => Phase::Warmup,
            1 => Phase::Counted,
            2 => Phase::Cooldown,
            3 => Phase::End,
            4 => Phase::Hello,
            _ => return None,
        };
        let header = Header { number: u64_at(0)?, sent_ns: u64_at(8)?, token: theirs, phase };
        (theirs == token && datagram.len() >= HEADER).then_some(header)
    }
}

/// One session's datagrams. A sender fills in `sent` and `refused`, a receiver the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Datagrams {
    pub sent: u64,
    /// Sends that the kernel refused because its queue was full; they were tried again.
    pub refused: u64,
    pub received: u64,
    /// Came after one with a higher number.
    pub reordered: u64,
    pub duplicated: u64,
    /// Interarrival jitter at the end, in microseconds (RFC 3550, section 6.4.1).
    pub jitter_us: f64,
}

impl Datagrams {
    /// Sums; the jitter is the worst of both.
    pub fn add(self, other: Datagrams) -> Datagrams {
        Datagrams {
            sent: self.sent.saturating_add(other.sent),
            refused: self.refused.saturating_add(other.refused),
            received: self.received.saturating_add(other.received),
            reordered: self.reordered.saturating_add(other.reordered),
            duplicated: self.duplicated.saturating_add(other.duplicated),
            jitter_us: self.jitter_us.max(other.jitter_us),
        }
    }

    /// Sent and never seen.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// 0 to 100.
    pub fn lost_percent(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 100.0 * self.lost() as f64 / self.sent as f64 }
    }
}

/// Numbers by which duplicates are recognised: older ones count as reordered.
const WINDOW: u64 = 4096;

/// The receiver's account.
#[derive(Debug)]
pub struct Account {
    start: Instant,
    datagrams: Datagrams,
    bytes: u64,
    /// The highest number seen, and of the `WINDOW` before it those that were.
    highest: Option<u64>,
    seen: [u64; WINDOW as usize / 64],
    transit: Option<f64>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Account {
    pub fn new(start: Instant) -> Account {
        Account {
            start,
            datagrams: Datagrams::default(),
            bytes: 0,
            highest: None,
            seen: [0; WINDOW as usize / 64],
            transit: None,
            first: None,
            last: None,
        }
    }

    /// A counted datagram of `bytes` has come. False: it had come before.
    pub fn receive(&mut self, header: &Header, bytes: usize, now: Instant) -> bool {
        if !self.note(header.number) {
            self.datagrams.duplicated += 1;
            return false;
        }
        self.datagrams.received += 1;
        self.bytes += bytes as u64;
        self.first.get_or_insert(now);
        self.last = Some(now);
        // The clocks' difference drops out: only its change counts.
        let arrival = now.saturating_duration_since(self.start).as_nanos() as f64;
        let transit = arrival - header.sent_ns as f64;
        if let Some(before) = self.transit.replace(transit) {
            let change = (transit - before).abs() / 1000.0;
            self.datagrams.jitter_us += (change - self.datagrams.jitter_us) / 16.0;
        }
        true
    }

    /// Takes a number down. False: it was there.
    fn note(&mut self, number: u64) -> bool {
        let Some(highest) = self.highest else {
            self.highest = Some(number);
            return self.mark(number);
        };
        if number > highest {
            // What lies between was not seen; whatever stood there before is too old.
            let gap = (number - highest).min(WINDOW);
            for step in 1..=gap {
                let slot = (number - gap + step) % WINDOW;
                if let Some(word) = self.seen.get_mut(slot as usize / 64) {
                    *word &= !(1 << (slot % 64));
                }
            }
            self.highest = Some(number);
            return self.mark(number);
        }
        self.datagrams.reordered += 1;
        if highest - number >= WINDOW {
            return true;
        }
        let fresh = self.mark(number);
        if !fresh {
            self.datagrams.reordered -= 1;
        }
        fresh
    }

    fn mark(&mut self, number: u64) -> bool {
        let slot = number % WINDOW;
        let Some(word) = self.seen.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// The account, with the bytes and the time from the first to the last.
    pub fn close(self) -> (Datagrams, u64, Duration) {
        let time = match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        };
        (self.datagrams, self.bytes, time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64) -> Header {
        Header { number, sent_ns: number.wrapping_mul(1000), token: 7, phase: Phase::Counted }
    }

    fn account(numbers: &[u64]) -> Datagrams {
        let start = Instant::now();
        let mut account = Account::new(start);
        for &number in numbers {
            account.receive(
                &header(number),
                100,
                start + Duration::from_nanos((number % 1_000_000_000) * 1000),
            );
        }
        account.close().0
    }

    #[test]
    fn headers_read_back_and_strangers_are_known() {
        let bytes = header(1 << 40).to_bytes();
        assert_eq!(Header::parse(&bytes, 7), Some(header(1 << 40)));
        assert_eq!(Header::parse(&bytes, 8), None);
        let mut wrong = bytes;
        wrong[20] = 9;
        assert_eq!(Header::parse(&wrong, 7), None);
        for len in 0..HEADER {
            assert_eq!(Header::parse(&bytes[..len], 7), None, "{len}");
        }
    }

    #[test]
    fn loss_order_and_duplicates() {
        let counted = account(&[0, 1, 2, 5, 4, 4, 9, 9, 3]);
        assert_eq!((counted.received, counted.reordered, counted.duplicated), (7, 2, 2));
        let both = counted.add(Datagrams { sent: 10, ..Datagrams::default() });
        assert_eq!((both.lost(), both.lost_percent()), (3, 30.0));
        // Far jumps, and stragglers too old to be distinguished from duplicates.
        let counted = account(&[0, 1_000_000, 5, u64::MAX, 999_999]);
        assert_eq!((counted.received, counted.reordered, counted.duplicated), (5, 2, 0));
        let wrapped: Vec<u64> = (0..3 * WINDOW).collect();
        let counted = account(&wrapped);
        assert_eq!((counted.received, counted.reordered, counted.duplicated), (3 * WINDOW, 0, 0));
    }

    #[test]
    fn a_steady_stream_has_no_jitter_and_an_unsteady_one_has() {
        assert!(account(&(0..100).collect::<Vec<_>>()).jitter_us < 0.01);
        let start = Instant::now();
        let mut account = Account::new(start);
        for number in 0..100u64 {
            let late = if number % 2 == 0 { 0 } else { 500_000 };
            account.receive(&header(number), 1, start + Duration::from_nanos(number * 1000 + late));
        }
        assert!((400.0..510.0).contains(&account.close().0.jitter_us));
    }
}
