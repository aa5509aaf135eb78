//! RSTs that come again once their connection is over.
//!
//! Linux sends one when its peer has shut the connection down both ways. From then on the same ports may have
//! a new connection. It sends another one when its program closes the old socket, however late
//! (`virtio_transport_recv_connected` and `virtio_transport_close` in
//! net/vmw_vsock/virtio_transport_common.c). No field of a packet names the connection it is of; so the
//! second one would end a new connection. But both carry the credit of the old socket, whose program has
//! taken all that it was sent; a refusal (`virtio_transport_reset_no_sock`) has none.

use vmlane_port::Bounded;
use vmlane_wire::virtio_vsock::Header;

/// So many are expected of one guest. Beyond, the oldest is not recognized when it comes.
const MOST: usize = 128;

/// A packet's credit: the sender's buffer, and the bytes that it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    pub room: u32,
    pub taken: u32,
}

impl Credit {
    pub fn of(header: &Header) -> Credit {
        Credit { room: header.buf_alloc.get(), taken: header.fwd_cnt.get() }
    }
}

/// RSTs that a guest may still send for connections that are over, by the connections' names.
#[derive(Debug)]
pub struct Repeats<N>(Bounded<(N, Credit)>);

impl<N> Default for Repeats<N> {
    fn default() -> Repeats<N> {
        Repeats(Bounded::new(MOST))
    }
}

impl<N: Copy + Eq> Repeats<N> {
    /// The connection `name` is over. One RST with this credit may follow.
    pub fn expect(&mut self, name: N, credit: Credit) {
        if credit.room == 0 {
            return;
        }
        if !self.0.has_room(1) {
            self.0.pop();
        }
        let _ = self.0.push((name, credit));
    }

    /// Is this RST one of them? It is not expected again then. `ends`: the connection that has the name now,
    /// if there is one, is about to end with such an RST.
    pub fn take(&mut self, name: &N, reset: &Header, ends: bool) -> bool {
        if ends {
            return false;
        }
        let expected = (*name, Credit::of(reset));
        let mut found = false;
        self.0.retain(|one| {
            let is_it = !found && *one == expected;
            found |= is_it;
            !is_it
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use vmlane_wire::virtio_vsock::{kind, op};

    use super::*;

    #[test]
    fn each_is_recognized_once_and_by_its_credit() {
        let mut repeats = Repeats::<u32>::default();
        let reset = Header::new((4, 2), (3, 1), kind::STREAM, op::RST);
        let with = |room: u32, taken: u32| Header { buf_alloc: room.into(), fwd_cnt: taken.into(), ..reset };
        let credit = Credit { room: 100, taken: 7 };
        repeats.expect(1, credit);
        repeats.expect(1, Credit { room: 0, taken: 0 });
        assert!(!repeats.take(&1, &reset, false), "a refusal has no credit");
        assert!(!repeats.take(&1, &with(100, 8), false) && !repeats.take(&2, &with(100, 7), false));
        assert!(!repeats.take(&1, &with(100, 7), true) && repeats.take(&1, &with(100, 7), false));
        assert!(!repeats.take(&1, &with(100, 7), false), "that was it");
        let (oldest, newest) = (10, 10 + MOST as u32);
        (oldest..=newest).for_each(|name| repeats.expect(name, credit));
        assert!(!repeats.take(&oldest, &with(100, 7), false) && repeats.take(&newest, &with(100, 7), false));
    }
}
