//! What both ends have counted at a moment.

use crate::facts::Counters;

#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub near: Counters,
    /// None, if the other machine did not answer.
    pub far: Option<Counters>,
}

impl Counted {
    /// What each end has counted since `before`; nothing of an end that was not read at both moments: what it
    /// has counted since its start is no change.
    pub fn since(&self, before: &Counted) -> (Counters, Counters) {
        let far = self.far.as_ref().zip(before.far.as_ref()).map(|(now, then)| now.since(then));
        (self.near.since(&before.near), far.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_read_once_has_counted_nothing() {
        let counters =
            |count| Counters { stack: [("Tcp.RetransSegs".to_owned(), count)].into(), ..Counters::default() };
        let counted = |far: Option<u64>| Counted { near: counters(7), far: far.map(counters) };
        for (before, after, change) in [(Some(100), Some(103), 3), (None, Some(103), 0), (Some(100), None, 0)]
        {
            let (near, far) = counted(after).since(&counted(before));
            assert_eq!((near.stack("Tcp.RetransSegs"), far.stack("Tcp.RetransSegs")), (0, change));
        }
    }
}
