//! Several workers: which VM is with which, and how VMs of two of them talk.

use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::vsock::{Settings, VsockWorkers};
use vmlane_stream::Workers;
use vmlane_vsock::Router;
use vmlane_wire::virtio_vsock::{kind, op};

use super::{LOCAL, Served, Vm, connect, spec};

/// A VM whose group changes is served where it was: streams with its new group's VMs go from one worker to the other.
#[test]
fn vms_of_one_group_talk_across_workers() {
    let router = Router::new(Arc::new(Workers::start(Default::default()).expect("workers")));
    let settings = Settings { spin: Duration::from_millis(1), poll: false };
    let workers = VsockWorkers::start(2, settings, &router).expect("workers");
    let vms = router.vms().clone();
    let add = |cid, group| {
        vms.remove(cid);
        vms.add(spec(cid, group)).expect("a name of its own");
        let (worker, _) = workers.add(&spec(cid, group));
        Served { worker, vms: vms.clone() }
    };
    let serving = [(3, "test"), (4, "elsewhere"), (5, "test")].map(|(cid, group)| {
        let served = add(cid, group);
        router.set_endpoint(cid, served.endpoint(cid));
        served
    });
    assert!(Arc::ptr_eq(&serving[0], &serving[2]) && !Arc::ptr_eq(&serving[0], &serving[1]));
    let [mut a, mut b, mut c] = [0, 1, 2].map(|at| Vm::new(&serving[at], 3 + at as u32, false));
    add(4, "elsewhere");
    a.send(LOCAL, (4, 5000), kind::STREAM, op::REQUEST, &[]);
    a.expect(op::RST);
    // A VM whose driver is not there.
    router.set_endpoint(6, add(6, "test").endpoint(6));

    assert!(Arc::ptr_eq(&add(4, "test"), &serving[1]), "its rings run there");
    connect(&mut a, &mut b, LOCAL, kind::STREAM);
    connect(&mut a, &mut c, LOCAL + 1, kind::SEQPACKET);
    for n in 0..100u32 {
        let (from, to) = if n % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let ports = if n % 2 == 0 { (LOCAL, 5000) } else { (5000, LOCAL) };
        from.send(ports.0, (to.guest.cid, ports.1), kind::STREAM, op::RW, &n.to_le_bytes());
        assert_eq!(to.expect(op::RW), n.to_le_bytes());
    }
    for to in [4, 6] {
        a.send(LOCAL + 2, (to, 5000), kind::SEQPACKET, op::REQUEST, &[]);
        a.expect(op::RST);
    }
    b.hears_nothing(&serving[1]);
    assert_eq!(
        workers.guests().iter().map(|guest| guest.cid).filter(|&cid| cid < 7).sum::<u32>(),
        3 + 4 + 5 + 6
    );
    assert_eq!(
        workers.connections().iter().filter(|one| one.client == (3, LOCAL)).count(),
        2,
        "each knows of it"
    );
    a.send(LOCAL, (4, 5000), kind::STREAM, op::RST, &[]);
    let (mut last, _) = b.next();
    while last.op.get() == op::CREDIT_UPDATE {
        (last, _) = b.next();
    }
    assert!([op::RST, op::SHUTDOWN].contains(&last.op.get()), "{last:?}");
    assert!(workers.stats().all(|stats| stats.panics.get() == 0));
}
