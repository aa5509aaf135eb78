//! Faults stay inside: a panic in device code costs a reset, a lost VMM costs a session.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::{eventfd, signals};
use vmlane_testkit::{eventually, wait_until};
use vmlane_transport::{IrqSet, ListenError, Listener, Server, SessionStats};

use crate::common::{Fixture, Journal, PANIC, PEEK, RAISE, Seen, Toy};

const EIO: Option<u32> = Some(5);
const EBUSY: Option<u32> = Some(16);

#[test]
fn a_panic_resets_the_device_and_nothing_else() {
    let mut f = Fixture::start();
    let memory = vmlane_mem::memfd("guest", 0x1000).unwrap();
    rustix::io::pwrite(&memory, &[1, 2, 3, 4], 0).unwrap();
    f.vmm.map(0, 0x1000, Some((memory.as_fd(), 0)), true).unwrap();
    let fd = eventfd().unwrap();
    f.vmm.enable_msix(&[fd.as_fd()]).unwrap();
    f.vmm.write_u32(2, 0x100, 9).unwrap();
    f.journal.take();

    assert_eq!(f.vmm.read_u32(2, PANIC).unwrap_err().errno(), EIO);
    assert_eq!(f.journal.take(), [Seen::Reset, Seen::Memory { bytes: 0x1000 }]);
    assert_eq!(f.vmm.write_u32(2, PANIC, 1).unwrap_err().errno(), EIO);
    assert_eq!(f.vmm.read_u32(2, 0x100).unwrap(), 0, "device state is gone");
    assert_eq!(f.vmm.read_u32(2, PEEK).unwrap(), 0x0403_0201, "memory is not");
    f.vmm.write_u32(2, RAISE, 0).unwrap();
    assert_eq!((signals(&fd), f.counted("panics")), (1, 2));
    assert_eq!(f.close(), "the peer closed the connection");
}

#[test]
fn a_reset_that_panics_too_is_survived() {
    let mut f = Fixture::start();
    *f.journal.panic_on_reset.lock() = true;
    *f.journal.panic_on_unmap.lock() = true;
    assert_eq!(f.vmm.read_u32(2, PANIC).unwrap_err().errno(), EIO);
    assert_eq!(f.vmm.reset().unwrap_err().errno(), EIO);
    assert_eq!(f.vmm.unmap(0, 0x1000).unwrap_err().errno(), EIO);
    f.assert_alive();
    assert_eq!(f.close(), "the peer closed the connection");
}

#[test]
fn a_memory_file_cut_short_ends_the_session() {
    let mut f = Fixture::start();
    let memory = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 0x2000).unwrap();
    f.vmm.map(0, 0x2000, Some((memory.as_fd(), 0)), true).unwrap();
    f.vmm.write(2, PEEK, &0x1000u64.to_le_bytes()).unwrap();
    f.vmm.read_u32(2, PEEK).unwrap();
    rustix::fs::ftruncate(&memory, 0x1000).unwrap();
    let _ = f.vmm.read_u32(2, PEEK);
    assert!(f.session.join().unwrap().to_string().contains("guest memory file is shorter"));
}

struct Offer {
    server: Server,
    stats: Arc<SessionStats>,
    journal: Arc<Journal>,
}

fn offer(path: &std::path::Path) -> Offer {
    let stats = Arc::new(SessionStats::default());
    let irqs = Arc::new(IrqSet::new(stats.clone()));
    let journal = Arc::new(Journal::default());
    let toy = Toy::new(irqs.clone(), journal.clone());
    let server = Listener::bind(path).unwrap().serve("toy", Box::new(toy), irqs, stats.clone()).unwrap();
    Offer { server, stats, journal }
}

/// Connects; nothing where another one is served.
fn connect(path: &std::path::Path) -> Option<Client> {
    match Client::connect(path) {
        Err(error) if error.errno() == EBUSY => None,
        outcome => Some(outcome.unwrap()),
    }
}

#[test]
fn vmms_come_and_go_and_a_second_one_is_turned_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vm/a/toy.sock");
    let offered = offer(&path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let mut first = Client::connect(&path).unwrap();
    first.write_u32(2, 0x100, 1).unwrap();
    assert_eq!(offered.server.turned_away(), None);
    assert_eq!(Client::connect(&path).unwrap_err().errno(), EBUSY);
    assert_eq!(offered.server.turned_away(), Some(std::process::id()));
    let refused = || offered.stats.counts.refused.get();
    assert_eq!(refused(), 1);
    assert_eq!(first.read_u32(2, 0x100).unwrap(), 1);
    assert!(offered.server.connected());

    // Killed and started again at once, many times: never old state, and turned away only where the machine
    // stood still for longer than the end of the one before is waited for.
    for round in 0..20 {
        drop(first);
        first = eventually("a VMM behind another one", || connect(&path));
        assert_eq!(first.read_u32(2, 0x100).unwrap(), 0, "round {round}");
        first.write_u32(2, 0x100, round).unwrap();
    }
    drop(first);
    first = eventually("a VMM behind another one", || connect(&path));
    assert_eq!(offered.server.turned_away(), None, "the one that is served is not shown as turned away");
    assert!(refused() <= 1 + 5, "without a wait nearly all are: {}", refused());

    // A connection accepted elsewhere.
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert!(offered.server.adopt(theirs).is_err(), "busy");
    drop(first);
    assert!(Client::new(ours).version().is_err());
    let mut ours = eventually("a VMM behind another one", || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        offered.server.adopt(theirs).ok().map(|_| Client::new(ours))
    });
    assert_eq!(ours.read_u32(2, 0x100).unwrap(), 0);

    offered.journal.take();
    offered.server.stop();
    assert_eq!(offered.journal.take()[0], Seen::Reset);
    assert!(ours.read_u32(2, 0x100).is_err() && !path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("toy.sock");
    drop(UnixListener::bind(&path).unwrap());
    let offered = offer(&path);
    assert!(matches!(Listener::bind(&path), Err(ListenError::InUse { .. })));
    // Asking who serves it was itself a short connection.
    wait_until("it is served again", || !offered.server.connected());
    Client::connect(&path).unwrap();
    drop(offered);
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path), Err(ListenError::NotSocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let long = directory.path().join("x".repeat(120));
    assert!(Listener::bind(long).unwrap_err().to_string().contains("as an address"));
}
