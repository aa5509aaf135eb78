//! Whether segments of a sender are worth holding, by what came of those before.

/// Whether a sender's segments were ever merged lately. Where they never are, hardly one is examined.
#[derive(Clone, Copy, Debug)]
pub struct MergeHistory {
    misses: u8,
    skipped: u16,
    /// Of so many frames, one may open a flow; doubled each time that this was in vain.
    skips: u16,
    /// Some were merged, and since then fewer than [`MergeHistory::MISSES`] flows in a row stayed alone.
    merges: bool,
}

impl Default for MergeHistory {
    fn default() -> MergeHistory {
        MergeHistory { misses: 0, skipped: 0, skips: MergeHistory::FEWEST_SKIPS, merges: false }
    }
}

/// What became of the flows of a burst: how many were merged, and of how many there was one segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub merged: u8,
    pub alone: u8,
}

impl MergeHistory {
    /// Flows of one segment in a row after which hardly any other is opened.
    const MISSES: u8 = 32;
    const FEWEST_SKIPS: u16 = 32;
    const MOST_SKIPS: u16 = 4096;

    /// May a flow be opened?
    #[inline]
    pub fn may_open(&mut self) -> bool {
        if self.misses < MergeHistory::MISSES {
            return true;
        }
        self.skipped += 1;
        let may = self.skipped >= self.skips;
        if may {
            self.skipped = 0;
        }
        may
    }

    /// Are segments merged these days?
    #[inline]
    pub fn merges(&self) -> bool {
        self.merges
    }

    pub fn note(&mut self, outcome: Outcome) {
        match outcome {
            Outcome { merged: 0, alone: 0 } => {}
            Outcome { merged: 0, alone } if self.misses < MergeHistory::MISSES => {
                self.misses = self.misses.saturating_add(alone).min(MergeHistory::MISSES);
                self.merges &= self.misses < MergeHistory::MISSES;
            }
            Outcome { merged: 0, .. } => self.skips = (2 * self.skips).min(MergeHistory::MOST_SKIPS),
            _ => *self = MergeHistory { merges: true, ..MergeHistory::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many frames, how many may open a flow.
    fn opened(history: &mut MergeHistory, frames: usize, outcome: Outcome) -> usize {
        let mut count = 0;
        for _ in 0..frames {
            if history.may_open() {
                count += 1;
                history.note(outcome);
            }
        }
        count
    }

    #[test]
    fn where_nothing_merges_ever_fewer_frames_open_a_flow_and_one_that_merges_changes_that() {
        let (alone, merged) = (Outcome { merged: 0, alone: 1 }, Outcome { merged: 1, alone: 0 });
        let mut history = MergeHistory::default();
        assert_eq!(opened(&mut history, 32, alone), 32);
        assert!(opened(&mut history, 100_000, alone) < 40);
        let last = opened(&mut history, 100_000, alone);
        assert!((20..30).contains(&last), "{last}: never none");
        assert!(opened(&mut history, 8192, merged) > 4000);
        assert_eq!(opened(&mut history, 32, merged), 32);
    }
}
