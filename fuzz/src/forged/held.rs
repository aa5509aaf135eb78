//! What a previous daemon left, as each of many next daemons finds it.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};
use vmlane_mem::memfd;
use vmlane_state::{Found, Store};

use super::{cut, scribble, share, tamper};
use crate::Input;

/// Holds what a daemon gives it, whatever becomes of that daemon.
#[derive(Default)]
pub struct Shelf(Mutex<BTreeMap<String, OwnedFd>>);

impl Store for Shelf {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.0.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn remove_all(&self, prefix: &str) {
        self.0.lock().retain(|name, _| !name.starts_with(prefix));
    }
}

/// A file's bytes, without holes, and its position.
struct Copied {
    len: u64,
    position: u64,
    extents: Vec<(u64, Vec<u8>)>,
}

impl Copied {
    fn of(fd: &OwnedFd) -> Copied {
        let file = share(fd);
        let len = file.metadata().expect("a file").len();
        let position = seek(fd, SeekFrom::Current(0)).expect("a position");
        let (mut extents, mut at) = (Vec::new(), 0);
        while let Ok(begin) = seek(fd, SeekFrom::Data(at)) {
            at = seek(fd, SeekFrom::Hole(begin)).expect("a hole behind the last byte");
            let mut bytes = vec![0; (at - begin) as usize];
            file.read_exact_at(&mut bytes, begin).expect("its bytes");
            extents.push((begin, bytes));
        }
        seek(fd, SeekFrom::Start(position)).expect("a position");
        Copied { len, position, extents }
    }

    fn file(&self) -> OwnedFd {
        let fd = memfd("again", self.len).expect("a file");
        let file = share(&fd);
        for (at, bytes) in &self.extents {
            file.write_all_at(bytes, *at).expect("to be written");
        }
        seek(&fd, SeekFrom::Start(self.position)).expect("a position");
        fd
    }
}

/// Descriptors by name; with bytes where each daemon gets a file of its own.
pub struct Held(BTreeMap<String, Result<Copied, OwnedFd>>);

impl Held {
    /// What is there now.
    pub fn of(shelf: &Shelf, is_own: impl Fn(&str) -> bool) -> Held {
        let shelf = shelf.0.lock();
        let again = |fd: &OwnedFd| fd.try_clone().expect("one more descriptor");
        let held = |(name, fd): (&String, &OwnedFd)| {
            (name.clone(), if is_own(name) { Ok(Copied::of(fd)) } else { Err(again(fd)) })
        };
        Held(shelf.iter().map(held).collect())
    }

    pub fn found(&self) -> Found {
        let fd = |held: &Result<Copied, OwnedFd>| match held {
            Ok(copied) => copied.file(),
            Err(fd) => fd.try_clone().expect("one more descriptor"),
        };
        Found(self.0.iter().map(|(name, held)| (name.clone(), fd(held))).collect())
    }
}

/// One of a session's files changed, taken away, or under another name.
pub fn tamper_found(found: &mut Found, input: &mut Input<'_>) {
    let names: Vec<String> = found.0.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    let name = &names[usize::from(input.byte()) % names.len()];
    match input.byte() % 10 {
        0 => drop(found.take(name)),
        1 => {
            let (at, kind) =
                (input.number::<2>() << 8, ["mem", "mem", "in", "irq.msix"][usize::from(input.byte()) % 4]);
            let name = match kind {
                "mem" => format!("mem.{:x}.{:x}.{:x}.rw", at, input.number::<3>(), input.number::<2>()),
                "in" => format!("in.{}.{}", input.byte(), input.number::<2>()),
                _ => format!("irq.msix.{}", input.number::<2>()),
            };
            found.0.insert(name, memfd("other", 1 << 16).expect("memory"));
        }
        2 => {
            let file = found.0[name].try_clone().expect("one more descriptor");
            found.0.insert(names[usize::from(input.byte()) % names.len()].clone(), file);
        }
        3 => {
            if let Some(file) = found.take("mail") {
                found.0.insert("mail".into(), cut(&file, input.number::<3>()));
            }
        }
        4 | 5 => {
            if let Some(file) = found.0.get("mail") {
                let at = [0, 4096, 0x20000, 4096][usize::from(input.byte()) % 4] + u64::from(input.byte());
                scribble(file, at, input);
            }
        }
        _ => {
            if let Some(file) = found.take("log") {
                found.0.insert("log".into(), tamper(file, input, |_| false));
            }
        }
    }
}
