//! rust-vmm's front end of vhost-user, as Cloud Hypervisor uses it, against our server.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmlane_device::virtio::vhost::Lines;
use vmlane_wire::virtio::feature;
use vmm_sys_util::eventfd::EventFd;

use crate::vhost_user_world::{FEATURES, Front, MEMORY, USER};

/// The front end, and the session behind it. `Front` is the test's hold on the device; its own socket is the
/// foreign front end's.
fn world() -> (Frontend, Front) {
    let front = Front::new();
    let socket: UnixStream = front.socket.try_clone().expect("one more descriptor");
    let frontend = Frontend::from_stream(socket, 2);
    frontend.set_owner().expect("an owner");
    let features = frontend.get_features().expect("features");
    assert_eq!(features & FEATURES, FEATURES);
    frontend.set_features(FEATURES | feature::PROTOCOL_FEATURES).expect("features on offer");
    (frontend, front)
}

fn agreed() -> (Frontend, Front) {
    let (mut frontend, front) = world();
    let offered = frontend.get_protocol_features().expect("protocol features");
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    assert!(offered.contains(wanted), "{offered:?}");
    frontend.set_protocol_features(wanted).expect("protocol features on offer");
    frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    (frontend, front)
}

fn region(guest: u64, user: u64, file: &OwnedFd) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: MEMORY,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: file.as_fd().as_raw_fd(),
    }
}

fn start(frontend: &mut Frontend, ring: usize, at: u64) -> [EventFd; 2] {
    let [kick, call] = [(); 2].map(|()| EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd"));
    frontend.set_vring_num(ring, 16).expect("a size");
    frontend.set_vring_base(ring, 3).expect("a position");
    let addresses = VringConfigData {
        queue_max_size: 16,
        queue_size: 16,
        flags: 0,
        desc_table_addr: at,
        used_ring_addr: at + 0x2000,
        avail_ring_addr: at + 0x1000,
        log_addr: None,
    };
    frontend.set_vring_addr(ring, &addresses).expect("addresses");
    frontend.set_vring_call(ring, &call).expect("an eventfd");
    frontend.set_vring_kick(ring, &kick).expect("an eventfd");
    frontend.set_vring_enable(ring, true).expect("a ring");
    [kick, call]
}

#[test]
fn its_rings_run_and_stop_where_the_device_came_to() {
    let (mut frontend, front) = agreed();
    assert_eq!(frontend.get_queue_num().expect("a number"), 2);
    let file = vmlane_mem::memfd("guest", MEMORY).expect("memory");
    frontend.set_mem_table(&[region(0, USER, &file)]).expect("memory");
    let [_kick, call] = start(&mut frontend, 0, USER);
    assert_eq!(front.running(), [true, false]);
    {
        let runs = front.journal.runs.lock();
        let ring = runs.last().and_then(|setup| setup.rings[0].clone()).expect("a ring");
        assert_eq!((ring.size, ring.descriptors, ring.driver, ring.device), (16, 0, 0x1000, 0x2000));
    }
    front.lines.call(0);
    assert_eq!(call.read().expect("a signal"), 1);
    assert_eq!(frontend.get_vring_base(0).expect("a position"), 7);
    assert_eq!(front.running(), [false; 2]);
    frontend.reset_device().expect("a reset");
    drop(frontend);
    assert_eq!(front.close(), "the peer closed the connection");
}

#[test]
fn its_memory_slots_configuration_and_chains_in_flight_are_ours() {
    let (mut frontend, front) = agreed();
    assert!(frontend.get_max_mem_slots().expect("a number") >= 8);
    let file = vmlane_mem::memfd("guest", MEMORY).expect("memory");
    frontend.add_mem_region(&region(0x20_0000, USER, &file)).expect("a slot");
    assert!(frontend.add_mem_region(&region(0x20_0000, USER, &file)).is_err(), "there is one already");
    let _events = start(&mut frontend, 1, USER);
    assert_eq!(front.running(), [false, true]);
    frontend.remove_mem_region(&region(0x20_0000, USER, &file)).expect("the slot");
    assert_eq!(front.running(), [false; 2], "its ring is gone");

    let (_, config) =
        frontend.get_config(0, 3, VhostUserConfigFlags::empty(), &[0; 3]).expect("the configuration space");
    assert_eq!(config, [1, 2, 3]);

    let wanted = VhostUserInflight { mmap_size: 0, mmap_offset: 0, num_queues: 2, queue_size: 16 };
    let (area, memory) = frontend.get_inflight_fd(&wanted).expect("memory for chains in flight");
    assert!(area.mmap_size > 0 && (area.num_queues, area.queue_size) == (2, 16));
    frontend.set_inflight_fd(&area, memory.as_raw_fd()).expect("our own memory");
    let more = VhostUserInflight { num_queues: 3, ..area };
    assert!(frontend.set_inflight_fd(&more, memory.as_raw_fd()).is_err(), "the device has two rings");
}
