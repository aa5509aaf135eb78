//! Every order in which another thread may see what a commit stores: it sees the records of a commit whole,
//! or those of the one before. The writer that is killed is the weaker case, and in `killed.rs`.

use loom::thread;

use super::super::*;
use super::model::{Writer, begin};

const HALF: usize = 512;

fn record(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn every_order(writer: Writer) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(move || {
        begin(HALF, writer);
        let journal = Journal::create("model", 7, HALF).unwrap();
        journal.write((1, 0, 0), &record(1));
        let file = journal.file().try_clone().unwrap();
        let writing = thread::spawn(move || {
            journal.stage((1, 0, 0), &record(2));
            journal.stage((2, 0, 0), &record(3));
            journal.commit();
        });
        let found = Journal::open(file, 7, HALF).map(|(_, records)| records);
        let before = vec![((1, 0, 0), record(1))];
        let after = vec![((1, 0, 0), record(2)), ((2, 0, 0), record(3))];
        assert!(found.is_ok_and(|found| found == before || found == after), "a commit is seen in part");
        writing.join().unwrap();
    });
}

#[test]
fn a_commit_is_seen_whole_or_not_at_all() {
    every_order(Writer::Right);
}

#[test]
#[should_panic(expected = "a commit is seen in part")]
fn a_word_published_before_its_records_is_found_by_the_model() {
    every_order(Writer::WordFirst);
}

#[test]
#[should_panic(expected = "a commit is seen in part")]
fn a_word_published_without_an_order_is_found_by_the_model() {
    every_order(Writer::WordRelaxed);
}
