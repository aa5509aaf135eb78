//! VMMs that turn what they have handed over against the daemon: event fds, memory files, sockets. No thread
//! that serves others may wait for them, and no other VM may lack anything because of them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rustix::fs::OFlags;
use vmlane_device::irq::Interrupts;
use vmlane_device::virtio::vhost::Lines;
use vmlane_guestsim::{eventfd, signals};
use vmlane_state::{Found, Scope};
use vmlane_testkit::LONGEST;
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{IrqSet, SessionStats};
use vmlane_wire::vfio_user::{SetIrqs, irq_index};
use vmlane_wire::vhost_user::request;
use zerocopy::IntoBytes;

use crate::common::Fixture;
use crate::vhost_user_world::Front;

/// Runs `work` on a thread of its own, which is left behind should it never end.
fn must_end<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let _ = done.send(work());
    });
    ended.recv_timeout(LONGEST).unwrap_or_else(|_| panic!("{what} waits for a hostile VMM"))
}

/// What a VMM can do at any time to an event fd that it shares: from now on, each write waits for a read.
fn obstruct(fd: impl AsFd) {
    signals(&fd);
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::empty()).unwrap();
}

#[test]
fn an_event_fd_filled_after_the_check_stops_no_worker() {
    let (mut hostile, mut honest) = (Fixture::start(), Fixture::start());
    let (obstructed, line) = (eventfd().unwrap(), eventfd().unwrap());
    hostile.vmm.enable_msix(&[obstructed.as_fd()]).unwrap();
    honest.vmm.enable_msix(&[line.as_fd()]).unwrap();
    obstruct(&obstructed);
    // A worker serves both VMs in turn.
    let (first, second) = (hostile.irqs.clone(), honest.irqs.clone());
    must_end("a worker", move || {
        for _ in 0..3000 {
            assert!(first.raise(0) && second.raise(0));
        }
    });
    assert_eq!(signals(&line), 3000);
    // The session of the hostile VMM itself goes on, too.
    hostile.vmm.set_irqs(SetIrqs::DATA_NONE | SetIrqs::TRIGGER, irq_index::MSIX, 0..1, &[], &[]).unwrap();
    hostile.assert_alive();
    honest.assert_alive();
    // And once the VMM has read its counter, it is served again.
    assert!(signals(&obstructed) >= u64::MAX - 1);
    assert!(hostile.irqs.raise(0));
    assert_eq!(signals(&obstructed), 1);
}

#[test]
fn an_event_fd_filled_before_a_take_over_stops_no_successor() {
    let obstructed = eventfd().unwrap();
    obstruct(&obstructed);
    let (_vmm, socket) = UnixStream::pair().unwrap();
    let held: [(&str, OwnedFd); 2] =
        [("sock", socket.into()), ("irq.msix.0", obstructed.try_clone().unwrap())];
    let found = Found(BTreeMap::from(held.map(|(name, fd)| (name.to_owned(), fd))));
    must_end("the successor", move || {
        let irqs = Arc::new(IrqSet::new(Arc::new(SessionStats::default())));
        let _prepared = Prepared::from(found, &Scope::none(), &irqs).expect("a VMM's socket");
        irqs.set_switches(0b100);
        // The VMM undoes whatever the successor has set.
        rustix::fs::fcntl_setfl(&obstructed, OFlags::empty()).unwrap();
        assert!(irqs.raise(0));
    });
}

#[test]
fn a_call_filled_after_the_check_stops_no_worker() {
    let mut front = Front::with_memory();
    let [call, error] = [eventfd().unwrap(), eventfd().unwrap()];
    assert_eq!(front.ask(request::SET_VRING_CALL, 0u64.as_bytes(), &[call.as_fd()]), 0);
    assert_eq!(front.ask(request::SET_VRING_ERR, 0u64.as_bytes(), &[error.as_fd()]), 0);
    obstruct(&call);
    obstruct(&error);
    let lines = front.lines.clone();
    must_end("a worker", move || {
        for _ in 0..10 {
            lines.call(0);
            lines.fail(0);
        }
    });
    front.alive();
}

/// An epoll has no file type either. Its owner can make a poll of it wait: it holds a lock while its own
/// `epoll_wait` copies to memory whose faults it answers itself.
#[test]
fn what_is_no_event_fd_is_refused_as_kick_call_and_interrupt() {
    use rustix::event::epoll;
    let mut front = Front::with_memory();
    let mut fixture = Fixture::start();
    let files = [
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
        vmlane_mem::memfd("memory", 4096).unwrap(),
        rustix::pipe::pipe().unwrap().1,
    ];
    let events = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;
    for file in &files {
        let fds: [BorrowedFd<'_>; 1] = [file.as_fd()];
        for code in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
            assert_eq!(front.ask(code, 0u64.as_bytes(), &fds), 1);
        }
        assert!(fixture.vmm.set_irqs(events, irq_index::MSIX, 0..1, &[], &fds).is_err());
    }
    front.alive();
    fixture.assert_alive();
}
