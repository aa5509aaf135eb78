//! Streams with the host when the daemon dies.

use std::sync::Arc;

use vmlane_guestsim::restart::RestartableDaemon;
use vmlane_guestsim::{Path, SocketError, vm};
use vmlane_testkit::wait_until;

use crate::host::{Host, end};
use crate::vmci::rings;

/// Connections with programs of the host do not outlive a daemon: the guest is notified of it, and keeps
/// nothing.
#[test]
fn streams_with_the_host_end_with_a_reset() {
    let world = RestartableDaemon::threaded(vec![vm(3), vm(4)]);
    let host = Arc::new(Host::default());
    world.router().set_endpoint(2, host.clone());
    let guest = world.boot(3, Path::Dma);
    std::thread::scope(|scope| {
        let established = scope.spawn(|| guest.connect((2, 80), rings(65_536)).expect("to be accepted"));
        wait_until("the host is asked", || !host.calls.lock().is_empty());
        let call = host.calls.lock().remove(0);
        let (end, _ring) = end(65_536, host.clone());
        assert!(world.router().accept(call, end, host.clone()));
        let stream = established.join().expect("the guest's thread");
        stream.send_all(&[1; 1000]).expect("room");
        // Another one has asked and is not answered.
        let asking = scope.spawn(|| guest.connect((2, 81), rings(65_536)).err());
        wait_until("the request reaches the host again", || !host.calls.lock().is_empty());
        assert_eq!(world.used(3, "queue_pairs"), 1);
        world.replace();
        assert_eq!(asking.join().expect("the guest's thread"), Some(SocketError::Refused));
        wait_until("the guest is notified of the end", || {
            guest.service();
            stream.resets() > 0 || stream.peer_shutdown() == 3
        });
        stream.close();
    });
    assert_eq!((world.used(3, "queue_pairs"), world.used(3, "connections")), (0, 0));
    assert_eq!(world.hypervisor().connections(), []);
    // The next daemon's programs are reached as before.
    world.router().set_endpoint(2, host.clone());
    host.calls.lock().clear();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| guest.connect((2, 82), rings(65_536)).err());
        wait_until("the host is asked", || !host.calls.lock().is_empty());
        let call = host.calls.lock().remove(0);
        world.router().close(call);
        assert_eq!(asking.join().expect("the guest's thread"), Some(SocketError::Refused));
    });
    assert_eq!(*host.failed.lock(), []);
}
