//! What a process without the key writes into a journal is not believed, though it knows everything in the
//! file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use vmlane_state::{Journal, Unusable};
use vmlane_testkit::{again, role};

const KIND: u32 = 7;
const HALF: usize = 64 << 10;
const KEEPS_SALT: &str = "forger that keeps the salt";

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Another program, to which standard input is a journal: it puts a record of its own there.
fn forge(keep_salt: bool) {
    let theirs = File::from(rustix::io::dup(std::io::stdin()).unwrap());
    let own = Journal::create("own", KIND, HALF).unwrap();
    own.write((1, 0, 0), b"forged");
    let mut forged = bytes_of(&File::from(own.file().try_clone().unwrap()));
    // Even under the other file's number.
    if keep_salt {
        theirs.read_exact_at(&mut forged[32..40], 32).unwrap();
    }
    theirs.write_all_at(&forged, 0).unwrap();
}

#[test]
fn a_journal_written_by_a_process_without_the_key_is_refused() {
    if let Some(role) = role() {
        return forge(role == KEEPS_SALT);
    }
    for who in ["forger", KEEPS_SALT] {
        let journal = Journal::create("ours", KIND, HALF).unwrap();
        journal.write((1, 0, 0), b"true");
        let file = journal.file().try_clone().unwrap();
        drop(journal);
        let mut forger = again(&[], who);
        forger.stdin(Stdio::from(file.try_clone().unwrap())).stdout(Stdio::null());
        assert!(forger.status().unwrap().success());
        assert!(bytes_of(&File::from(file.try_clone().unwrap())).windows(6).any(|bytes| bytes == b"forged"));
        let opened = Journal::open(file, KIND, HALF);
        assert!(matches!(opened, Err(Unusable::Damaged { .. })), "{opened:?}");
    }
}
