//! virtio-vsock guests of a VMM that does what Cloud Hypervisor's sources do, under daemons that are killed:
//! its requests wait like QEMU's, and unlike QEMU it connects again to a session that was closed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlane_guestsim::Ram;
use vmlane_guestsim::cloud_hypervisor::CloudHypervisor;
use vmlane_guestsim::virtio::{DriverRing, into};
use vmlane_guestsim::vsock_vm::{Name, VsockVm};
use vmlane_testkit::{Daemon, LONGEST, TWO_VSOCK, wait_until};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::EVENT_TRANSPORT_RESET;

use crate::common::daemon;

const A: Name = (1000, 4, 2000);
const B: Name = (2000, 3, 1000);
/// Buffers that a driver posts for events, and their bytes.
const EVENTS: usize = 8;
const EVENT: usize = 4;

/// A VMM, and its guest's driver.
struct Vm {
    vmm: Option<CloudHypervisor>,
    guest: VsockVm,
    ram: Arc<Ram>,
    /// For events, with its buffers.
    events: DriverRing,
    buffers: Vec<u64>,
}

impl Vm {
    fn start(daemon: &Daemon, vm: &str, cid: u32) -> Vm {
        let ram = Arc::new(Ram::new(16 << 20));
        let mut vmm = CloudHypervisor::start(&daemon.socket(vm, "vsock.sock"), &ram, 3).unwrap();
        assert_eq!(vmm.config(8).unwrap(), u64::from(cid).to_le_bytes());
        let (guest, events, buffers) = Vm::driver(&mut vmm, &ram, cid);
        Vm { vmm: Some(vmm), guest, ram, events, buffers }
    }

    /// A driver is loaded.
    fn driver(vmm: &mut CloudHypervisor, ram: &Arc<Ram>, cid: u32) -> (VsockVm, DriverRing, Vec<u64>) {
        let (rings, mut events) = (VsockVm::rings(ram, false), DriverRing::new(ram, 64, false));
        let [rx, tx] = &rings;
        let [of_rx, of_tx, _] =
            vmm.activate(feature::VERSION_1, &[rx, tx, &events]).unwrap().try_into().unwrap();
        let guest = VsockVm::over(cid, rings, [of_rx, of_tx]);
        let buffers: Vec<u64> = (0..EVENTS).map(|_| events.alloc(EVENT)).collect();
        buffers.iter().for_each(|&addr| _ = events.post(&[into(addr, EVENT)]));
        (guest, events, buffers)
    }

    /// The VMM does something in a thread of its own: it may wait for a daemon.
    fn does<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut CloudHypervisor) -> T + Send + 'static,
    ) -> JoinHandle<(CloudHypervisor, T)> {
        let mut vmm = self.vmm.take().expect("a VMM that does nothing");
        std::thread::spawn(move || {
            let done = work(&mut vmm);
            (vmm, done)
        })
    }

    fn finish<T>(&mut self, work: JoinHandle<(CloudHypervisor, T)>) -> T {
        let (vmm, done) = work.join().expect("it succeeds");
        self.vmm = Some(vmm);
        done
    }

    /// The event that its driver has received, if it has.
    fn event(&mut self) -> Option<u32> {
        let (id, len) = self.events.take()?;
        assert_eq!(len as usize, EVENT);
        let mut bytes = [0; EVENT];
        self.ram.read(self.buffers[usize::from(id)], &mut bytes);
        Some(u32::from_le_bytes(bytes))
    }
}

fn until(a: &mut Vm, b: &mut Vm, what: &str, is_so: impl Fn(&VsockVm, &VsockVm) -> bool) {
    let since = Instant::now();
    while !is_so(&a.guest, &b.guest) {
        if !(a.guest.turn() | b.guest.turn()) {
            std::thread::yield_now();
        }
        assert!(since.elapsed() < LONGEST, "not within {LONGEST:?}: {what}");
    }
}

/// Bytes both ways, none of them twice.
fn passes(a: &mut Vm, b: &mut Vm, bytes: u64) {
    for (vm, name) in [(&mut *a, A), (&mut *b, B)] {
        let end = vm.guest.ends.get_mut(&name).expect("an end");
        end.wanted = end.sent + bytes;
    }
    until(a, b, "bytes both ways", |a, b| {
        let (a, b) = (&a.ends[&A], &b.ends[&B]);
        assert!(!a.reset && !b.reset);
        a.sent == a.wanted && b.sent == b.wanted && a.sent == b.received && b.sent == a.received
    });
}

fn connects(a: &mut Vm, b: &mut Vm) {
    a.guest.connect(A);
    until(a, b, "a connection", |a, _| a.ends[&A].established);
}

fn start(config: &str) -> (Daemon, Vm, Vm) {
    let daemon = daemon(config);
    let (a, b) = (Vm::start(&daemon, "a", 3), Vm::start(&daemon, "b", 4));
    (daemon, a, b)
}

fn kill(daemon: &Daemon) {
    daemon.kill();
    daemon.launch();
}

#[test]
fn its_streams_go_on_and_its_requests_wait() {
    let (daemon, mut a, mut b) = start(TWO_VSOCK);
    connects(&mut a, &mut b);
    for kills in 0..10 {
        passes(&mut a, &mut b, 100_000 + 977 * kills);
        kill(&daemon);
    }
    // Its VM is paused, and goes on, under daemons that die before and in the middle.
    for enabled in [false, true] {
        daemon.kill();
        let work = a.does(move |vmm| vmm.enable(enabled));
        daemon.launch();
        kill(&daemon);
        a.finish(work).unwrap();
    }
    passes(&mut a, &mut b, 100_000);
    daemon.kill();
    let work = b.does(|vmm| vmm.config(8));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!work.is_finished(), "who should have answered?");
    daemon.launch();
    assert_eq!(b.finish(work).unwrap(), 4u64.to_le_bytes());
    passes(&mut a, &mut b, 100_000);
    assert_eq!((a.event(), b.event()), (None, None), "no driver is to reset its sockets");
}

/// The driver of a is loaded anew: the device is reset while there is no daemon.
#[test]
fn its_guest_may_reset_the_device_without_a_daemon() {
    let (daemon, mut a, mut b) = start(TWO_VSOCK);
    for _ in 0..3 {
        connects(&mut a, &mut b);
        passes(&mut a, &mut b, 100_000);
        daemon.kill();
        let work = a.does(|vmm| vmm.reset());
        daemon.launch();
        assert_eq!(a.finish(work).unwrap().len(), 3);
        kill(&daemon);
        let vmm = a.vmm.as_mut().expect("a VMM");
        (a.guest, a.events, a.buffers) = Vm::driver(vmm, &a.ram, 3);
        b.guest.ends.clear();
    }
    connects(&mut a, &mut b);
    passes(&mut a, &mut b, 100_000);
    assert_eq!((a.event(), b.event()), (None, None), "they have begun here");
}

/// When the keeper has closed its session it connects again, unlike QEMU: its guest is notified, and connects
/// anew.
#[test]
fn it_connects_again_after_its_session_was_closed() {
    let (daemon, mut a, mut b) = start(&format!("[daemon]\nhold = 1\n{TWO_VSOCK}"));
    for _ in 0..2 {
        connects(&mut a, &mut b);
        passes(&mut a, &mut b, 100_000);
        daemon.kill();
        for vm in [&mut a, &mut b] {
            let vmm = vm.vmm.as_ref().expect("a VMM");
            wait_until("its connection is closed", || vmm.is_closed());
        }
        let work = [&mut a, &mut b].map(|vm| vm.does(CloudHypervisor::reconnect));
        std::thread::sleep(Duration::from_millis(200));
        assert!(work.iter().all(|work| !work.is_finished()), "they wait for a daemon");
        daemon.launch();
        for (vm, work) in [&mut a, &mut b].into_iter().zip(work) {
            vm.finish(work).unwrap();
            let mut event = None;
            wait_until("its driver gets a reset", || {
                event = event.or_else(|| vm.event());
                event.is_some()
            });
            assert_eq!(event, Some(EVENT_TRANSPORT_RESET));
        }
        // What was under way is of connections that are over: the drivers reset their sockets.
        until(&mut a, &mut b, "all chains have come back", |a, b| a.is_settled() && b.is_settled());
        [&mut a, &mut b].into_iter().for_each(|vm| vm.guest.ends.clear());
    }
    connects(&mut a, &mut b);
    passes(&mut a, &mut b, 100_000);
}
