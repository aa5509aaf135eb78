//! The synthetic guests on the devices themselves, in this process: what the rows measure is what arrives.

use std::sync::Arc;

use vmlane_device::virtio::vsock::{Settings, VsockDevice, VsockWorker};
use vmlane_transport::{Listener, RingLines, Server, VhostEnd};
use vmlane_vsock::{Vm as VsockVm, VmTable};

use super::*;

struct Served {
    guests: [Guest; 2],
    _servers: [Server; 2],
    _folder: tempfile::TempDir,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { spin: Duration::from_micros(50), poll: false };
    let vms = VmTable::default();
    let worker = Arc::new(VsockWorker::start(settings, &vms, None).unwrap());
    let sockets = CIDS.map(|cid| folder.path().join(format!("{cid}.sock")));
    let serve = |index: usize| {
        let cid = CIDS[index];
        vms.add(VsockVm::new(format!("vm{cid}"), cid, "one")).unwrap();
        worker.add(cid);
        let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).unwrap());
        let device = VsockDevice::new(cid, worker.clone(), lines.clone()).expect("a device");
        let listener = Listener::bind(&sockets[index]).unwrap();
        VhostEnd::Listens(listener).serve("guest", Box::new(device), lines, Arc::default()).unwrap()
    };
    let servers = [serve(0), serve(1)];
    let guests = attach(&sockets, || Ok(())).unwrap();
    Served { guests, _servers: servers, _folder: folder }
}

#[test]
fn streams_and_round_trips_arrive_whole() {
    let length = Duration::from_millis(100);
    // A machine may have no time for a test that is so short, though hardly five times.
    let moves = |run: &dyn Fn([Guest; 2]) -> anyhow::Result<Sample>| {
        (0..5).any(|_| {
            let served = serve();
            run(served.guests).unwrap().value > 0.0
        })
    };
    for block in [1, 3720, 64 << 10, 200_000] {
        assert!(moves(&|guests| stream(guests, block, length)), "{block}");
    }
    assert!(moves(&|guests| round_trips(guests, length)));
}

/// The last line of defence of a row's figure: it is none if a byte got lost.
#[test]
fn a_stream_that_lacks_a_byte_has_no_figure() {
    let served = serve();
    let [mut a, mut b] = connect(served.guests).unwrap();
    let data: Vec<u8> = (0..1000).map(|at| (at % PERIOD) as u8).collect();
    a.write_all(&data[..500]).unwrap();
    a.write_all(&data[501..]).unwrap();
    a.shutdown().unwrap();
    let error = receive(&mut b).unwrap_err();
    assert!(error.to_string().contains("byte 500 of the stream"), "{error}");
}
