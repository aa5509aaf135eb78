//! A port's transmit queues, one after the other: a busy queue must not keep the others from sending.

use crate::Token;

/// Frames taken from one queue before the next one has its turn.
const TURN: u32 = 16;

/// Whose turn it is among the transmit queues of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTurns {
    queue: usize,
    /// Frames that it may still have.
    left: u32,
}

impl Default for QueueTurns {
    fn default() -> QueueTurns {
        QueueTurns { queue: 0, left: TURN }
    }
}

impl QueueTurns {
    /// What [`FramePort::fetch`](crate::FramePort::fetch) does, for a port of `queues` queues: `fetch`
    /// describes the next frame of the queue of that number and returns its slot; `None` if none waits there.
    /// It ends when `tokens` is full or when all queues in a row had none.
    #[inline]
    pub fn fetch(
        &mut self,
        queues: usize,
        tokens: &mut [Token],
        mut fetch: impl FnMut(usize) -> Option<u16>,
    ) -> usize {
        let (mut count, mut idle) = (0, 0);
        while idle <= queues
            && let Some(place) = tokens.get_mut(count)
        {
            let slot = self.left.checked_sub(1).and_then(|left| {
                self.left = left;
                fetch(self.queue)
            });
            match slot {
                Some(slot) => {
                    *place = Token::of_slot(self.queue, slot);
                    (count, idle) = (count + 1, 0);
                }
                None => {
                    idle += 1;
                    self.next_queue(queues);
                }
            }
        }
        count
    }

    #[inline]
    fn next_queue(&mut self, queues: usize) {
        let next = self.queue + 1;
        *self = QueueTurns { queue: if next < queues { next } else { 0 }, left: TURN };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues with so many frames each; the tokens that one call returns.
    fn fetched(turns: &mut QueueTurns, waiting: &mut [u16], most: usize) -> Vec<(usize, u16)> {
        let mut tokens = vec![Token(0); most];
        let count = turns.fetch(waiting.len(), &mut tokens, |queue| {
            waiting[queue] = waiting[queue].checked_sub(1)?;
            Some(waiting[queue])
        });
        tokens[..count].iter().map(|token| token.slot()).collect()
    }

    #[test]
    fn a_busy_queue_yields_to_the_next_after_its_turn() {
        let (mut turns, mut waiting) = (QueueTurns::default(), [1000, 3, 1000]);
        let queues: Vec<usize> =
            fetched(&mut turns, &mut waiting, 40).into_iter().map(|(queue, _)| queue).collect();
        let expected = [(0, 16), (1, 3), (2, 16), (0, 5)];
        let expected: Vec<usize> =
            expected.into_iter().flat_map(|(queue, count)| vec![queue; count]).collect();
        assert_eq!(queues, expected);
        // The next call goes on in the middle of a turn.
        let next = fetched(&mut turns, &mut waiting, 12);
        assert_eq!(next.iter().filter(|(queue, _)| *queue == 0).count(), 11);
        assert_eq!(next.last(), Some(&(2, 983)), "the empty queue was passed over");
    }

    #[test]
    fn every_queue_is_asked_before_it_ends() {
        for at in 0..5 {
            let mut waiting = [0; 5];
            waiting[at] = 1;
            let mut turns = QueueTurns::default();
            assert_eq!(fetched(&mut turns, &mut waiting, 8), [(at, 0)]);
            assert_eq!(fetched(&mut turns, &mut waiting, 8), []);
        }
        assert_eq!(fetched(&mut QueueTurns::default(), &mut [5], 8).len(), 5);
    }

    #[test]
    fn a_port_without_queues_has_no_frames() {
        let mut tokens = [Token(0); 4];
        assert_eq!(QueueTurns::default().fetch(0, &mut tokens, |_| None), 0);
    }

    #[test]
    fn a_token_holds_any_slot() {
        for slot in [(0, 0), (3, 255), (65_535, 65_535)] {
            assert_eq!(Token::of_slot(slot.0, slot.1).slot(), slot);
        }
    }
}
