//! A vfio-user session that a previous daemon left, forged, and the session that continues it.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use vmlane_guestsim::eventfd;
use vmlane_guestsim::nic::NicMachine;
use vmlane_guestsim::vfio_user::Client;
use vmlane_mem::memfd;
use vmlane_state::Scope;
use vmlane_testkit::LONGEST;
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{IrqSet, Session, SessionStats};
use zerocopy::IntoBytes;

use super::held::{Held, Shelf, tamper_found};
use crate::Input;

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
        let is_own =
            |name: &str| name.ends_with("/mail") || name.ends_with("/log") || name.contains("/file.");
        let legacy = Held::of(&shelf, is_own);
        // It stays as it is, for ever.
        std::mem::forget(vmm);
        legacy
    })
}

/// Whatever was left: the session answers or ends, and does not panic.
pub fn take_over(input: &mut Input<'_>) {
    let (mut vmm, theirs) = UnixStream::pair().expect("sockets");
    let mut found = legacy().found().scope("nic0").scope("s");
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
