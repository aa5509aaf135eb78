//! The vhost-user server with a real NIC behind it: any messages, with and without descriptors.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_guestsim::nic::InlineFrames;
use vmlane_guestsim::vhost_user::Front;
use vmlane_guestsim::virtio::DriverRing;
use vmlane_mem::memfd;
use vmlane_port::PortId;
use vmlane_transport::{RingLines, Scope, SessionStats, vhost_user};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vhost_user::Header;
use vmlane_wire::virtio::feature;
use zerocopy::IntoBytes;

use crate::Input;
use crate::virtio::SIZE;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let stats = Arc::new(SessionStats::default());
    let lines = Arc::new(RingLines::new(5).expect("lines"));
    let frames = Arc::new(InlineFrames::default());
    let (counted, end) = (stats.clone(), frames.clone());
    let thread = std::thread::spawn(move || {
        let config =
            NetConfig { mac: Mac([0x52, 0, 0, 0, 0, 1]), mtu: 1500, queues: 2, lro: true, packed: true };
        let device = Arc::new(VirtioNetStats::default());
        let mut device = NetDevice::new(config, end, PortId(7), lines.clone(), device);
        let session = vhost_user::Session::new(theirs, &mut device, lines, counted, &Scope::none());
        session.expect("session").run()
    });
    // Often the session is one that runs already.
    let ram = crate::virtio::ram();
    if input.byte() & 3 != 0 {
        let packed = input.byte() & 1 != 0;
        let features = feature::VERSION_1 | if packed { feature::PACKED } else { 0 };
        let mut front = Front::over(ours.try_clone().expect("clone"), features).expect("a session");
        front.set_memory(&ram).expect("memory");
        if input.byte() & 1 != 0 {
            let (area, file) = front.get_inflight(5, 64).expect("memory for records");
            front.set_inflight(&area, &file).expect("taken");
        }
        for index in 0..2 {
            let ring = DriverRing::new(&ram, SIZE, packed);
            front.start(index, &ring.setup()).expect("a ring");
        }
    }
    let mut reader = ours.try_clone().expect("clone");
    let drain = std::thread::spawn(move || {
        let mut sink = [0; 4096];
        while reader.read(&mut sink).is_ok_and(|count| count > 0) {}
    });
    let memory = memfd("fuzz", 1 << 20).expect("memory");
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    while !input.is_empty() {
        let (code, kind) = (u32::from(input.byte() % 45), input.byte());
        let len = usize::from(input.byte());
        let body = input.bytes(len);
        let mut message = Header::request(code, body.len(), kind & 1 != 0).as_bytes().to_vec();
        if kind & 0xf0 == 0xf0 {
            // A header that lies about its length, or is none.
            message[usize::from(input.byte()) % 12] = input.byte();
        }
        message.extend_from_slice(body);
        let fds: Vec<_> = (0..kind >> 1 & 3)
            .map(|at| if kind >> (3 + at) & 1 != 0 { event.as_fd() } else { memory.as_fd() })
            .collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        if sendmsg(&ours, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL).is_err() {
            break;
        }
    }
    let _ = ours.shutdown(std::net::Shutdown::Write);
    thread.join().expect("the session never panics");
    let _ = ours.shutdown(std::net::Shutdown::Both);
    drain.join().expect("drained");
    let panics = stats.snapshot().iter().find(|(name, _)| *name == "panics").map_or(0, |(_, count)| *count);
    assert_eq!(panics, 0, "a fault was contained");
}
