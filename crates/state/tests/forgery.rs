//! What a process without the key writes into a journal is not believed, though it knows everything in the file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use vmlane_state::{Journal, Unusable};

const KIND: u32 = 7;
const HALF: usize = 64 << 10;

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Another program, to which standard input is a journal: it puts a record of its own there.
#[test]
#[ignore = "run by the next one, as another process"]
fn forger() {
    let theirs = File::from(rustix::io::dup(std::io::stdin()).unwrap());
    let own = Journal::create("own", KIND, HALF).unwrap();
    own.write((1, 0, 0), b"forged");
    let mut forged = bytes_of(&File::from(own.file().try_clone().unwrap()));
    // Even under the other file's number.
    if std::env::var_os("KEEP_SALT").is_some() {
        theirs.read_exact_at(&mut forged[32..40], 32).unwrap();
    }
    theirs.write_all_at(&forged, 0).unwrap();
}

#[test]
fn a_journal_written_by_a_process_without_the_key_is_refused() {
    for keep_salt in [false, true] {
        let journal = Journal::create("ours", KIND, HALF).unwrap();
        journal.write((1, 0, 0), b"true");
        let file = journal.file().try_clone().unwrap();
        drop(journal);
        let mut forger = Command::new(std::env::current_exe().unwrap());
        forger.args(["--exact", "forger", "--ignored"]).stdin(Stdio::from(file.try_clone().unwrap()));
        forger.stdout(Stdio::null()).env_remove("KEEP_SALT");
        if keep_salt {
            forger.env("KEEP_SALT", "1");
        }
        assert!(forger.status().unwrap().success());
        assert!(bytes_of(&File::from(file.try_clone().unwrap())).windows(6).any(|bytes| bytes == b"forged"));
        let opened = Journal::open(file, KIND, HALF);
        assert!(matches!(opened, Err(Unusable::Damaged { .. })), "{opened:?}");
    }
}
