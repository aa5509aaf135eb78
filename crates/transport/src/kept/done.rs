//! The record of what was carried out.

use vmlane_state::{Journal, Reader, Records, Writer};

use super::message_file::StoredAnswer;

/// Kind of the record.
const DONE: u32 = 1;

/// The last request that was carried out, and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub number: u64,
    /// Bytes of the request.
    pub size: usize,
    /// Nothing is to be sent if it is empty.
    pub stored: StoredAnswer,
}

impl Done {
    /// Valid with the next commit.
    pub fn stage(&self, log: &Journal) {
        let mut record = Writer::new();
        record.u64(self.number).u64(self.size as u64).u64(self.stored.at).u64(self.stored.len);
        log.stage((DONE, 0, 0), &record.0);
    }

    /// What a previous daemon recorded.
    pub fn of(records: &Records) -> Option<Done> {
        let (_, record) = records.iter().find(|((kind, ..), _)| *kind == DONE)?;
        let mut reader = Reader::new(record);
        let (number, size) = (reader.u64()?, usize::try_from(reader.u64()?).ok()?);
        let stored = StoredAnswer { at: reader.u64()?, len: reader.u64()? };
        reader.end()?;
        Some(Done { number, size, stored })
    }
}
