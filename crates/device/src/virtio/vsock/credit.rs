//! The credit of one direction: how many bytes are under way, and when to ask what of them was taken.
//!
//! A Linux receiver announces that it has taken bytes only when little of its buffer is left
//! (virtio_transport_stream_do_dequeue). Its sender has stopped by then, and neither end does anything until
//! its credit has gone all the way back. CREDIT_REQUEST (virtio 1.2, 5.10.6.3) makes it announce that at
//! once; asked in the middle of the buffer, it does while the sender still has credit.

use vmlane_wire::virtio_vsock::Header;

use super::repeats::Credit;

/// Bytes that a guest may have sent and its peer that is no virtio guest not taken: what a Linux socket has
/// by default.
pub const CREDIT: usize = 256 << 10;
/// Bytes between two questions, at least.
const LEAST: u32 = 16 << 10;

/// What is known of one direction of a connection. All counts are bytes modulo 2^32, as on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// Sent, by the sender.
    sent: u32,
    /// Taken of them, and room for untaken ones, as the receiver last announced.
    taken: u32,
    room: u32,
    /// `sent` when the receiver was last asked.
    asked: u32,
    /// It began before this daemon did: how much was sent is not known until the receiver announces what it
    /// has taken.
    is_unknown: bool,
}

impl Flow {
    /// That of a connection of which a previous daemon has noted no more than that it is there.
    pub fn unknown() -> Flow {
        Flow { is_unknown: true, ..Flow::default() }
    }

    /// That of one of which as much was sent before this daemon; the receiver is to announce what it takes.
    pub fn resumed(sent: u32) -> Flow {
        Flow { sent, taken: sent, asked: sent, ..Flow::default() }
    }

    /// The receiver's packets carry what it has taken.
    #[inline]
    pub fn update(&mut self, header: &Header) {
        (self.room, self.taken) = (header.buf_alloc.get(), header.fwd_cnt.get());
        if self.is_unknown {
            // Too little, by what was under way: its receiver is asked a little later than others.
            (self.sent, self.asked, self.is_unknown) = (self.taken, self.taken, false);
        }
    }

    /// What a receiver announces once it has taken all of it.
    pub fn all_taken(&self) -> Credit {
        Credit { room: self.room, taken: self.sent }
    }

    /// Bytes that may still be sent.
    #[inline]
    pub fn left(&self) -> u32 {
        self.room.saturating_sub(self.sent.wrapping_sub(self.taken))
    }

    /// `len` bytes are sent. True if the receiver should be asked: half of its buffer is under way, and a
    /// quarter of it since the last question.
    #[inline]
    pub fn sends(&mut self, len: u32) -> bool {
        self.sent = self.sent.wrapping_add(len);
        let asks = self.sent.wrapping_sub(self.taken) >= self.room / 2
            && self.sent.wrapping_sub(self.asked) >= (self.room / 4).max(LEAST);
        if asks {
            self.asked = self.sent;
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use vmlane_wire::virtio_vsock::{kind, op};

    use super::*;

    fn credit(room: u32, taken: u32) -> Header {
        let header = Header::new((4, 2), (3, 1), kind::STREAM, op::CREDIT_UPDATE);
        Header { buf_alloc: room.into(), fwd_cnt: taken.into(), ..header }
    }

    #[test]
    fn it_asks_in_the_middle_and_not_too_often() {
        let mut flow = Flow::default();
        flow.update(&credit(256 << 10, 0));
        let asked: Vec<u32> = (1..=64).filter(|_| flow.sends(4 << 10)).collect();
        assert_eq!(asked, [32, 48, 64]);
        assert_eq!(flow.left(), 0);
        flow.update(&credit(256 << 10, 256 << 10));
        assert_eq!(flow.left(), 256 << 10);
        let asked: Vec<u32> = (1..=40).filter(|_| flow.sends(4 << 10)).collect();
        assert_eq!(asked, [32]);
    }

    #[test]
    fn counts_wrap_and_lies_do_not_matter() {
        let at = u32::MAX - 10;
        let mut flow = Flow { sent: at, taken: at, room: 100, asked: at, is_unknown: false };
        assert!(!flow.sends(100), "asked too soon");
        assert_eq!(flow.left(), 0);
        flow.update(&credit(100, 50));
        assert_eq!(flow.left(), 61);
        // It has taken more than was sent; its buffer is tiny, or there is none.
        for (room, taken) in [(100, 1000), (1, 89), (0, 89)] {
            flow.update(&credit(room, taken));
            assert!(flow.left() <= room);
            let questions = (0..1000).filter(|_| flow.sends(100)).count();
            assert!(questions <= 100_000 / LEAST as usize, "{questions}");
        }
    }
}
