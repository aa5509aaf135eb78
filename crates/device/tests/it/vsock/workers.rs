//! Several workers: which VM is with which, and how VMs of two of them talk.

use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::vsock::{Settings, VsockWorkers};
use vmlane_stream::Workers;
use vmlane_vsock::Router;
use vmlane_wire::virtio_vsock::{kind, op};

use super::{LOCAL, Served, Vm, connect, spec};

/// A VM whose group changes moves to its new group's worker, with its rings where they are.
#[test]
fn a_vm_that_is_given_another_group_moves_to_its_worker() {
    let mut streams = Workers::start(Default::default()).expect("workers");
    let rides = [0, 1].map(|_| streams.ride().expect("an event fd"));
    let router = Router::new(Arc::new(streams));
    let settings = Settings { spin: Duration::from_millis(1), poll: false };
    let relays = rides.into_iter().map(|ride| (router.clone(), ride)).collect();
    let workers = VsockWorkers::start(settings, relays, router.vms()).expect("workers");
    workers.begin();
    let vms = router.vms().clone();
    let add = |cid, group| {
        vms.remove(cid);
        vms.add(spec(cid, group)).expect("a name of its own");
        let (home, _) = workers.add(&spec(cid, group), Arc::default());
        let worker = home.with(Arc::clone);
        router.set_endpoint(cid, worker.endpoint(cid));
        Served { worker, home, vms: vms.clone() }
    };
    let serving =
        [(3, "test"), (4, "elsewhere"), (5, "test"), (7, "elsewhere")].map(|(cid, group)| add(cid, group));
    assert!(Arc::ptr_eq(&serving[0], &serving[2]) && !Arc::ptr_eq(&serving[0], &serving[1]));
    let [mut a, mut b, mut c] = [0, 1, 2].map(|at| Vm::new(&serving[at], 3 + at as u32, false));
    let mut d = Vm::new(&serving[3], 7, false);
    // Of the VMs' groups in the table, `Vm::new` knows nothing.
    for cid in [4, 7] {
        add(cid, "elsewhere");
    }
    a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    a.expect(op::RST);
    connect(&mut d, &mut b, LOCAL, kind::STREAM);
    // A VM whose driver is not there.
    add(6, "test");

    let counted =
        workers.guests().iter().find(|guest| guest.cid == 4).map(|guest| guest.stats.packets_sent.get());
    let moved = add(4, "test");
    assert!(Arc::ptr_eq(&moved, &serving[0]) && counted > Some(0));
    let (header, _) = d.next();
    assert_eq!((header.op.get(), header.src_cid.get()), (op::RST, 4), "its connections there are over");
    let (header, _) = b.next();
    assert_eq!((header.op.get(), header.src_cid.get()), (op::RST, 7), "it knows");
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    connect(&mut a, &mut c, LOCAL + 1, kind::SEQPACKET);
    connect(&mut b, &mut a, LOCAL + 2, kind::SEQPACKET);
    for n in 0..100u32 {
        let (from, to) = if n % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let ports = if n % 2 == 0 { (LOCAL, 5000) } else { (5000, LOCAL) };
        from.send(ports.0, (to.guest.cid, ports.1), kind::STREAM, op::RW, &n.to_le_bytes());
        assert_eq!(to.expect(op::RW), n.to_le_bytes());
    }
    let guests = workers.guests();
    let of_b = guests.iter().filter(|guest| guest.cid == 4).map(|guest| guest.stats.packets_sent.get());
    assert!(of_b.clone().count() == 1 && of_b.sum::<u64>() > 50 + counted.unwrap(), "its counters go on");
    for to in [6, 7] {
        a.send(LOCAL + 3, (to, 5000), kind::STREAM, op::REQUEST, &[]);
        a.expect(op::RST);
    }
    assert!(workers.stats().all(|stats| stats.panics.get() == 0));
}
