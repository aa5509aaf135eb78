mod killed;
pub mod model;
mod ordered;

use super::*;
use crate::secret::Secret;

const HALF: usize = 128 << 10;

fn reopen(journal: &Journal) -> Result<Records, Unusable> {
    Journal::open(journal.file().try_clone().unwrap(), 7, HALF).map(|(_, records)| records)
}

#[test]
fn what_is_committed_is_found_and_nothing_else() {
    let journal = Journal::create("test", 7, HALF).unwrap();
    journal.stage((1, 2, 3), b"first");
    assert_eq!(reopen(&journal).unwrap(), []);
    journal.commit();
    journal.write((1, 2, 4), b"second");
    journal.stage((1, 2, 3), b"changed");
    journal.stage_removal((1, 2, 4));
    assert_eq!(reopen(&journal).unwrap().len(), 2);
    journal.commit();
    assert_eq!(reopen(&journal).unwrap(), [((1, 2, 3), b"changed".to_vec())]);
    journal.clear();
    assert_eq!(reopen(&journal).unwrap(), []);
}

#[test]
fn a_half_full_of_old_records_is_tidied_up() {
    let journal = Journal::create("test", 7, HALF).unwrap();
    for round in 0..100_000u64 {
        journal.write((round as u32 % 10, 0, 0), &round.to_le_bytes());
    }
    let records = reopen(&journal).unwrap();
    assert_eq!(records.len(), 10);
    assert!(records.iter().all(|(key, record)| {
        let round = u64::from_le_bytes(record[..].try_into().unwrap());
        round >= 99_990 && round as u32 % 10 == key.0
    }));
    assert!(!journal.is_full());
    assert_eq!(journal.lost_records(), 0);
}

#[test]
fn one_that_ran_out_of_room_is_not_believed() {
    let journal = Journal::create("test", 7, HALF).unwrap();
    for key in 0..100 {
        journal.write((key, 0, 0), &[1; 4000]);
    }
    assert!(journal.is_full());
    assert!(journal.lost_records() > 0);
    assert!(matches!(reopen(&journal), Err(Unusable::Magic)));
}

#[test]
fn cut_scribbled_and_foreign_files_are_refused() {
    let journal = || {
        let journal = Journal::create("test", 7, HALF).unwrap();
        journal.write((1, 0, 0), b"something of some length");
        journal.write((2, 0, 0), b"more");
        journal
    };
    let short = vmlane_mem::memfd("short", 4095).unwrap();
    assert!(matches!(Journal::open(short, 7, HALF), Err(Unusable::Short { .. })));
    let other = journal();
    assert!(matches!(
        Journal::open(other.file().try_clone().unwrap(), 8, HALF),
        Err(Unusable::Kind { have: 7, want: 8 })
    ));
    assert_eq!(Journal::layout_of(other.file()).unwrap(), LAYOUT);
    other.window.store_u32(at::LAYOUT, LAYOUT + 1);
    assert!(matches!(reopen(&other), Err(Unusable::Layout { .. })));
    assert_eq!(Journal::layout_of(other.file()).unwrap(), LAYOUT + 1);
    other.window.store_u64(at::MAGIC, 0);
    assert!(matches!(Journal::layout_of(other.file()), Err(Unusable::Magic)));
    let short = vmlane_mem::memfd("short", 4095).unwrap();
    assert!(matches!(Journal::layout_of(&short), Err(Unusable::Short { .. })));
}

#[test]
fn one_of_an_older_daemon_that_had_less_room_is_opened() {
    let journal = Journal::create("test", 7, HALF).unwrap();
    journal.write((1, 0, 0), b"something");
    let reopen = |half| Journal::open(journal.file().try_clone().unwrap(), 7, half);
    let (larger, records) = reopen(4 * HALF).unwrap();
    assert_eq!(records, [((1, 0, 0), b"something".to_vec())]);
    larger.write((2, 0, 0), b"more");
    assert_eq!(reopen(HALF).unwrap().1.len(), 2);
    // It does not hold more than a half of this daemon's: nothing of such a file is believed.
    assert!(matches!(reopen(HALF / 2), Err(Unusable::Magic)));
}

fn three() -> (Journal, [usize; 4]) {
    let journal = Journal::create("test", 7, HALF).unwrap();
    let mut ends = [0; 4];
    for (number, record) in [&b"something of some length"[..], b"more", &[7; 100]].into_iter().enumerate() {
        journal.write((1 + number as u32, 0, 0), record);
        ends[number + 1] = journal.inner.lock().len;
    }
    (journal, ends)
}

fn scribble(journal: &Journal, at: usize, len: usize) {
    let mut bytes = vec![0; len];
    journal.window.read(at, &mut bytes);
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    journal.window.write(at, &bytes);
}

fn in_part(journal: &Journal) -> Result<(Records, Vec<Key>), Unusable> {
    let opened = Journal::open_in_part(journal.file().try_clone().unwrap(), 7, HALF);
    opened.map(|(_, records, damaged)| (records, damaged))
}

#[test]
fn every_byte_of_the_front_counts() {
    for at in (0..28).chain(at::SALT..at::SALT + 8) {
        let (journal, _) = three();
        scribble(&journal, at, 1);
        assert!(in_part(&journal).is_err(), "{at}");
    }
}

#[test]
fn damage_is_known_by_whom_it_hurts() {
    let (_, ends) = three();
    for at in 0..ends[3] {
        for len in [1, 8, ENTRY, 64] {
            let (journal, _) = three();
            let len = len.min(ends[3] - at);
            scribble(&journal, HEAD + at, len);
            assert!(reopen(&journal).is_err());
            let hurt: Vec<u32> =
                (0..3).filter(|n| at < ends[n + 1] && at + len > ends[*n]).map(|n| 1 + n as u32).collect();
            match in_part(&journal) {
                Ok((records, damaged)) => {
                    assert_eq!(damaged.iter().map(|key| key.0).collect::<Vec<_>>(), hurt, "{at}, {len}");
                    assert_eq!(records.len(), 3 - hurt.len());
                }
                // Head and tail of one of them are gone.
                Err(error) => assert!(len >= ENTRY, "{at}, {len}: {error}"),
            }
        }
    }
}

#[test]
fn damage_to_a_replaced_record_has_no_effect() {
    let (journal, _) = three();
    scribble(&journal, HEAD + ENTRY, 1);
    journal.write((1, 0, 0), b"anew");
    assert_eq!(in_part(&journal).unwrap().1, []);
    assert_eq!(reopen(&journal).unwrap().len(), 3);
    journal.write_all(&[((1, 0, 0), None)]);
    assert_eq!(reopen(&journal).unwrap().len(), 2);
}

#[test]
fn records_inside_a_guests_bytes_are_not_believed() {
    let journal = Journal::create("test", 7, HALF).unwrap();
    let mut forged = Vec::new();
    append(&mut forged, Sums::new(Secret(1, 2), 3), (9, 9, 9), 0, b"not mine");
    journal.write((1, 0, 0), &forged);
    scribble(&journal, HEAD, ENTRY);
    assert_eq!(in_part(&journal).unwrap(), (vec![], vec![(1, 0, 0)]));
}
