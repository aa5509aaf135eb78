//! A guest that comes with connections of which this daemon knows nothing is notified on its event queue,
//! once.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_device::virtio::vsock::{Settings, VsockDevice};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::vsock::{Guest, vm};
use vmlane_wire::virtio::feature;

use super::{Served, bench};

const HERE: u32 = 3;
const EVENTS: usize = 2;

#[derive(Default)]
struct Called([AtomicUsize; 3]);

impl Lines for Called {
    fn call(&self, ring: usize) {
        self.0[ring].fetch_add(1, Ordering::SeqCst);
    }

    fn fail(&self, _: usize) {}

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear(&self) {}
}

/// A guest with an event queue, and the device that it has here.
struct Moved {
    guest: Guest,
    events: DriverRing,
    packed: bool,
    device: VsockDevice,
    called: Arc<Called>,
}

impl Moved {
    /// `used`: packets that its rings have carried elsewhere.
    fn new(packed: bool, used: u16) -> Moved {
        let mut guest = bench().guest(vm(HERE), packed);
        guest.post_buffers(8, 4096);
        let events = DriverRing::new(&guest.rx.ram, 8, packed);
        let wrap = if packed { 1 << 15 | u32::from(used) << 16 | 1 << 31 } else { 0 };
        guest.tx.setup().position.store(u32::from(used) | wrap, Ordering::SeqCst);
        let settings = Settings { spin: Duration::ZERO, poll: false };
        let worker = Served::start(settings, None);
        worker.add(vm(HERE));
        let called = Arc::new(Called::default());
        let device = VsockDevice::new(HERE, worker.worker, called.clone()).expect("a device");
        Moved { guest, events, packed, device, called }
    }

    /// Runs the rings; `events`: its event queue, too.
    fn run(&mut self, events: bool) {
        let packed = if self.packed { feature::PACKED } else { 0 };
        let rings = vec![
            Some(self.guest.rx.setup()),
            Some(self.guest.tx.setup()),
            events.then(|| self.events.setup()),
        ];
        let features = feature::VERSION_1 | feature::INDIRECT | packed;
        self.device.stop();
        let memory = self.guest.rx.ram.device_map();
        self.device.run(Setup { features, memory, rings, resumed: false });
    }

    /// A buffer for events.
    fn post(&mut self) -> u64 {
        let buffer = self.events.alloc(4);
        self.events.ram.write(buffer, &[0xff; 4]);
        self.events.post(&[into(buffer, 4)]);
        buffer
    }

    fn calls(&self) -> usize {
        self.called.0[EVENTS].load(Ordering::SeqCst)
    }
}

#[test]
fn a_guest_from_elsewhere_is_notified_of_a_reset_once() {
    for packed in [false, true] {
        let mut moved = Moved::new(packed, 5);
        let buffer = moved.post();
        moved.post();
        // A VMM starts one ring after the other.
        moved.run(false);
        assert_eq!(moved.events.take(), None);
        moved.run(true);
        let (_, len) = moved.events.take().expect("an event");
        let mut event = [0xff; 4];
        moved.events.ram.read(buffer, &mut event);
        assert_eq!((len, event, moved.calls()), (4, [0; 4], 1), "packed: {packed}");
        // Not again in this session: memory is plugged in, or pages are to be logged.
        moved.run(true);
        assert_eq!((moved.events.take(), moved.calls()), (None, 1));
        // In the next one it is another daemon's again.
        moved.device.stop();
        moved.device.gone();
        moved.run(true);
        assert!(moved.events.take().is_some_and(|(_, len)| len == 4) && moved.calls() == 2);
    }
}

#[test]
fn a_guest_that_begins_here_is_notified_of_none() {
    let mut begun = Moved::new(false, 0);
    begun.post();
    begun.run(true);
    begun.guest.tx.setup().position.store(7, Ordering::SeqCst);
    begun.run(true);
    assert_eq!((begun.events.take(), begun.calls()), (None, 0));
}

#[test]
fn what_is_no_buffer_for_an_event_is_left_alone() {
    let buffers: [fn(&mut DriverRing); 3] = [
        |_| {},
        |ring| {
            let buffer = ring.alloc(4);
            ring.post(&[out(buffer, 4)]);
        },
        |ring| {
            let buffer = ring.alloc(4);
            ring.post(&[into(buffer, 3)]);
        },
    ];
    for post in buffers {
        let mut moved = Moved::new(false, 5);
        post(&mut moved.events);
        moved.run(true);
        assert_eq!((moved.events.take(), moved.calls()), (None, 0));
    }
}
