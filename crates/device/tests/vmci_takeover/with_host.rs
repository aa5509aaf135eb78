//! Streams with the host when the daemon dies.

use std::sync::Arc;

use vmlane_device::vmci::{SharedMap, Waker};
use vmlane_guestsim::restart::RestartableDaemon;
use vmlane_guestsim::{Path, SocketError, vm};
use vmlane_port::{Budget, End, Side, StreamEnd, StreamId};
use vmlane_vsock::{Call, ConnectError, Endpoint, Failed, Remote};

use super::vmci_common::{eventually, rings};

/// A program of the host whose end is in the daemon's memory.
struct Program(parking_lot::Mutex<Vec<Call>>);

impl Endpoint for Program {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.0.lock().push(call);
        Ok(())
    }

    fn given_up(&self, _: Call) {}
}

impl Remote for Program {
    fn joined(&self, _: Call, _: StreamId, _: Side) {}

    fn failed(&self, _: Call, why: Failed) {
        panic!("{why:?}");
    }
}

struct Quiet;

impl Waker for Quiet {
    fn wake(&self, _: bool) {}

    fn broke(&self) {}

    fn ended(&self, _: End) {}
}

/// Connections with programs of the host do not outlive a daemon: the guest hears of it, and keeps nothing.
#[test]
fn streams_with_the_host_end_with_a_reset() {
    let world = RestartableDaemon::threaded(vec![vm(3), vm(4)]);
    let program = Arc::new(Program(Default::default()));
    world.router().set_endpoint(2, program.clone());
    let guest = world.boot(3, Path::Dma);
    std::thread::scope(|scope| {
        let established = scope.spawn(|| guest.connect((2, 80), rings(65_536)).expect("to be accepted"));
        eventually("the host is asked", || !program.0.lock().is_empty());
        let call = program.0.lock().remove(0);
        let fd = vmlane_mem::memfd("endpoint", vmlane_wire::host::layout::file(65_536)).expect("a file");
        let map = SharedMap::new(fd, 65_536).expect("a mapping");
        let port = Box::new(map.port(Arc::new(Quiet)).expect("a port"));
        let end = StreamEnd { port, budget: Arc::new(Budget::new(1 << 20)), slow: false };
        assert!(world.router().accept(call, end, program.clone()));
        let stream = established.join().expect("the guest's thread");
        stream.send_all(&[1; 1000]).expect("room");
        // Another one has asked and is not answered.
        let asking = scope.spawn(|| guest.connect((2, 81), rings(65_536)).err());
        eventually("the request reaches the host again", || !program.0.lock().is_empty());
        assert_eq!(world.used(3, "queue_pairs"), 1);
        world.replace();
        assert_eq!(asking.join().expect("the guest's thread"), Some(SocketError::Refused));
        eventually("the guest hears of the end", || {
            guest.service();
            stream.resets() > 0 || stream.peer_shutdown() == 3
        });
        stream.close();
    });
    assert_eq!((world.used(3, "queue_pairs"), world.used(3, "connections")), (0, 0));
    assert_eq!(world.hypervisor().connections(), []);
    // The next daemon's programs are reached as before.
    world.router().set_endpoint(2, program.clone());
    program.0.lock().clear();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| guest.connect((2, 82), rings(65_536)).err());
        eventually("the host is asked", || !program.0.lock().is_empty());
        let call = program.0.lock().remove(0);
        world.router().close(call);
        assert_eq!(asking.join().expect("the guest's thread"), Some(SocketError::Refused));
    });
}
