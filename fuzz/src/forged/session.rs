//! A vfio-user session that a previous daemon left, forged, and the session that continues it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use vmlane_guestsim::eventfd;
use vmlane_guestsim::nic::NicMachine;
use vmlane_guestsim::vfio_user::Client;
use vmlane_mem::memfd;
use vmlane_state::{Found, Scope, Store};
use vmlane_testkit::LONGEST;
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{IrqSet, Session, SessionStats};
use zerocopy::IntoBytes;

use super::{cut, scribble, tamper};
use crate::Input;

/// Holds what a session gives it, whatever becomes of that session.
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<String, OwnedFd>>);

impl Store for Shelf {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.0.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
        Ok(())
    }

    fn remove(&self, _: &str) {}

    fn remove_all(&self, _: &str) {}
}

/// Descriptors by name; with bytes where each daemon needs a file of its own.
type Held = BTreeMap<String, (OwnedFd, Option<Vec<u8>>)>;

/// What an idle session with memory, interrupts and a few requests behind it left.
fn legacy() -> &'static Held {
    static LEGACY: OnceLock<Held> = OnceLock::new();
    LEGACY.get_or_init(|| {
        let shelf = Arc::new(Shelf::default());
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let scope = Scope::new(shelf.clone(), "nic0");
        std::thread::spawn(move || {
            let stats = Arc::new(SessionStats::default());
            let irqs = Arc::new(IrqSet::new(stats.clone()));
            let machine = NicMachine::new(|_| ());
            let mut device = machine.device.lock();
            Session::new(theirs, &mut *device, irqs, stats, &scope).expect("a session").run()
        });
        let mut vmm = Client::new(ours);
        let ram = memfd("ram", 1 << 20).expect("memory");
        vmm.version().expect("an answer");
        vmm.map(0, 1 << 20, Some((ram.as_fd(), 0)), true).expect("mapped");
        let vector = eventfd().expect("an event descriptor");
        vmm.enable_msix(&[vector.as_fd(), vector.as_fd()]).expect("connected");
        for value in 0..5 {
            vmm.write_u32(1, 0, value).expect("an answer");
        }
        let held = shelf.0.lock();
        let kept = held.iter().filter_map(|(name, fd)| Some((name.strip_prefix("nic0/s/")?.to_owned(), fd)));
        let legacy = kept.map(|(name, fd)| {
            let own = ["mail", "log"].contains(&&name[..]) || name.starts_with("file.");
            (name, (fd.try_clone().expect("one more descriptor"), own.then(|| bytes(fd))))
        });
        let legacy = legacy.collect();
        // It stays as it is, for ever.
        std::mem::forget(vmm);
        legacy
    })
}

/// A file's bytes without the zeros behind them.
fn bytes(fd: &OwnedFd) -> Vec<u8> {
    let file = File::from(fd.try_clone().expect("one more descriptor"));
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1));
    bytes
}

/// A file like the one that a previous daemon made, with its bytes.
fn again(like: &OwnedFd, bytes: &[u8]) -> OwnedFd {
    let len = rustix::fs::fstat(like).expect("a file").st_size as u64;
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("again", flags).expect("a file");
    let file = File::from(fd);
    file.set_len(len).expect("room");
    file.write_all_at(bytes, 0).expect("to be written");
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).expect("sealed");
    file.into()
}

/// Whatever was left: the session answers or ends, and does not panic.
pub fn take_over(input: &mut Input<'_>) {
    let (mut vmm, theirs) = UnixStream::pair().expect("sockets");
    let mut found = Found::default();
    for (name, (fd, bytes)) in legacy() {
        let fd = match bytes {
            Some(bytes) => again(fd, bytes),
            None => fd.try_clone().expect("one more descriptor"),
        };
        found.0.insert(name.clone(), fd);
    }
    for _ in 0..input.byte() % 6 {
        tamper_found(&mut found, input);
    }
    found.0.insert("sock".into(), theirs.into());
    let stats = Arc::new(SessionStats::default());
    let irqs = Arc::new(IrqSet::new(stats.clone()));
    let scope = Scope::none();
    let prepared = Prepared::from(found, &scope, &irqs).expect("a VMM's socket");
    // What the VMM has sent by the time, and that it is gone then.
    let mut client = Client::new(vmm.try_clone().expect("one more descriptor"));
    for offset in 0..u64::from(input.byte() % 4) {
        let access = vmlane_guestsim::vfio_user::access(1, 8 * offset, 4);
        let request = client.message(9, access.as_bytes(), false);
        vmm.write_all(&request).expect("room");
    }
    let more = input.byte() % 64;
    vmm.write_all(input.bytes(more.into())).expect("room");
    vmm.shutdown(std::net::Shutdown::Write).expect("a socket");
    let machine = NicMachine::new(|_| ());
    Session::resume(prepared, &mut *machine.device.lock(), irqs, stats.clone()).run();
    vmm.set_read_timeout(Some(LONGEST)).expect("a socket");
    let _ = vmm.read_to_end(&mut Vec::new());
    let panics = stats.snapshot().iter().find(|(name, _)| *name == "panics").map_or(0, |row| row.1);
    assert_eq!(panics, 0);
}

/// One of a session's files changed, taken away, or under another name.
fn tamper_found(found: &mut Found, input: &mut Input<'_>) {
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
