//! A writer that is killed between any two words that it stores, in every kind of change: what the next
//! daemon finds is what was valid before the change, or after it.

use super::super::*;
use super::model::kill_after;

const HALF: usize = 4096;
type Change = fn(&Journal);

fn open(journal: &Journal) -> Result<Records, Unusable> {
    Journal::open(journal.file().try_clone().unwrap(), 7, HALF).map(|(_, records)| records)
}

/// So many replaced records that the next change moves the live ones to the other half first.
const MANY: u64 = 16;

/// A journal with live records, replaced ones and a removed one, `replaced` of them.
fn used(replaced: u64) -> Journal {
    let journal = Journal::create("killed", 7, HALF).unwrap();
    for round in 0..replaced {
        journal.write((1, round % 3, 0), &[round as u8; 20]);
    }
    journal.write((2, 0, 0), b"kept");
    journal.write_all(&[((1, 2, 0), None)]);
    journal
}

/// Kills `change` after each number of stores, until it is done before that. Returns how many there are.
fn kill_everywhere(replaced: u64, backwards: bool, change: Change) -> usize {
    let done = used(replaced);
    let before = open(&done).unwrap();
    change(&done);
    let after = open(&done).unwrap();
    assert_ne!(before, after);
    for stores in 0.. {
        let journal = used(replaced);
        let killed = kill_after(stores, backwards, || change(&journal));
        let found = open(&journal).unwrap();
        assert!(found == before || found == after, "{stores}: {found:?}");
        if !killed {
            assert_eq!(found, after);
            return stores;
        }
    }
    unreachable!("a change ends")
}

#[test]
fn killed_in_any_change_leaves_what_was_valid_before_or_after() {
    let changes: [(&str, u64, Change); 5] = [
        ("one record", 4, |journal| journal.write((1, 1, 0), b"new")),
        ("several records and an end", 4, |journal| {
            journal.write_all(&[((1, 0, 0), Some(b"new")), ((2, 0, 0), None), ((3, 0, 0), Some(&[9; 60]))])
        }),
        ("a commit", 4, |journal| {
            journal.stage((5, 0, 0), b"staged");
            journal.stage_removal((1, 0, 0));
            journal.commit();
        }),
        ("a record after a move", MANY, |journal| journal.write((1, 1, 0), &[3; 1000])),
        ("the end of all", 4, Journal::clear),
    ];
    for (name, replaced, change) in changes {
        for backwards in [false, true] {
            let stores = kill_everywhere(replaced, backwards, change);
            assert!(stores > 0, "{name}");
        }
    }
}

#[test]
fn many_replaced_records_are_left_behind_by_a_move() {
    let moves = kill_everywhere(MANY, false, |journal| journal.write((1, 1, 0), &[3; 1000]));
    let appends = kill_everywhere(4, false, |journal| journal.write((1, 1, 0), &[3; 1000]));
    assert!(moves > appends, "it did not move: {moves} stores, {appends} without");
}
