//! A whole daemon with a hostile VMM: the other VMs lack nothing, and the daemon that follows one that was
//! killed serves them, too.

mod fuse;
mod round_trips;
mod sessions;
mod stalls;
mod userfault;
mod world;

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::fs::MemfdFlags;
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_guestsim::eventfd;
use vmlane_guestsim::vhost_user::Front;
use vmlane_testkit::{LONGEST, wait_until};
use vmlane_wire::vfio_user::{SetIrqs, irq_index};
use vmlane_wire::vhost_user::{MemoryRegion, request};
use zerocopy::IntoBytes;

use self::world::{CONFIG_REGION, FEATURES, Nic, attach, attach_vmxnet3, config, obstruct, replace};
use crate::common::daemon;

#[test]
fn event_fds_that_cannot_be_written_stop_neither_other_vms_nor_the_next_daemon() {
    let daemon = daemon(&config(&["virtio-net"; 3]));
    for _ in 0..2 {
        let (mut hostile, mut from, mut to) = (Nic::new(0), Nic::new(1), Nic::new(2));
        to.attach(&daemon, "c");
        from.attach(&daemon, "b");
        hostile.attach(&daemon, "a");
        from.reach(&mut to);
        hostile.events().iter().for_each(|events| obstruct(&events.call));
        // Has the worker notify the hostile VM: that it received, and that it sent.
        from.send(hostile.own);
        hostile.send(to.own);
        wait_until("a frame for the hostile VM", || hostile.rx.take().is_some());
        wait_until("a frame of the hostile VM", || to.rx.take().is_some());
        wait_until("its chain", || from.tx.take().is_some());
        for _ in 0..10 {
            from.reach(&mut to);
        }
        replace(&daemon);
    }
}

#[test]
fn an_interrupt_that_cannot_be_written_stops_neither_its_session_nor_the_next_daemon() {
    let daemon = daemon(&config(&["vmxnet3"; 2]));
    let (mut hostile, mut honest) = (attach_vmxnet3(&daemon, "a"), attach_vmxnet3(&daemon, "b"));
    let obstructed = eventfd().unwrap();
    hostile.enable_msix(&[obstructed.as_fd()]).unwrap();
    obstruct(&obstructed);
    let test = SetIrqs::DATA_NONE | SetIrqs::TRIGGER;
    hostile.set_irqs(test, irq_index::MSIX, 0..1, &[], &[]).expect("an answer");
    for _ in 0..3 {
        replace(&daemon);
        // The next daemon signals every vector.
        assert_eq!(honest.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
        assert_eq!(hostile.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
        hostile.set_irqs(test, irq_index::MSIX, 0..1, &[], &[]).expect("an answer");
    }
}

#[test]
fn sparse_files_of_one_vm_leave_address_space_for_others_and_the_next_daemon() {
    const LARGE: u64 = 3 << 40;
    // As much as can be allowed to both.
    let config = ["[limits]\nmemory = \"24576G\"\n", &config(&["vmxnet3"; 2])].concat();
    let daemon = daemon(&config);
    let (mut hostile, mut honest) = (attach_vmxnet3(&daemon, "a"), attach_vmxnet3(&daemon, "b"));
    let sparse = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&sparse, LARGE).unwrap();
    // As much as goes, in ever smaller pieces.
    let (mut guest, mut len) = (0, LARGE);
    while len >= 1 << 20 {
        match hostile.map(guest, len, Some((sparse.as_fd(), 0)), true) {
            Ok(()) => guest += len,
            Err(_) => len /= 2,
        }
    }
    let memory = vmlane_mem::memfd("honest", 1 << 30).unwrap();
    honest.map(0, 1 << 30, Some((memory.as_fd(), 0)), true).expect("memory of another VM");
    replace(&daemon);
    assert_eq!(honest.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
    honest.unmap(0, 1 << 30).expect("it was mapped again");
    honest.map(0, 1 << 30, Some((memory.as_fd(), 0)), true).expect("memory of another VM");
}

#[test]
fn a_vm_without_a_limit_maps_no_more_than_the_host_has() {
    let daemon = daemon(&config(&["vmxnet3"]));
    let mut vmm = attach_vmxnet3(&daemon, "a");
    let host = vmlane_config::host_memory() & !0xfff;
    let sparse = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&sparse, 2 * host).unwrap();
    vmm.map(0, 2 * host, Some((sparse.as_fd(), 0)), true).expect_err("more than the host has");
    vmm.map(0, host, Some((sparse.as_fd(), 0)), true).expect("as much as the host has");
    vmm.map(host, 4096, Some((sparse.as_fd(), 0)), true).expect_err("a page more");
}

/// The VMM never sends anything again, and a worker comes across the loss.
#[test]
fn memory_cut_short_ends_its_session_without_another_message() {
    const MEMORY: u64 = 1 << 20;
    let daemon = daemon(&config(&["virtio-net"]));
    let file = rustix::fs::memfd_create("cut short", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, MEMORY).unwrap();
    let (mut socket, _front, events) = attach(&daemon, "a", |stream| {
        let socket = stream.try_clone()?;
        let mut front = Front::over(stream, FEATURES)?;
        let user = 0x7f00_0000_0000u64.into();
        let region = MemoryRegion { guest: 0.into(), size: MEMORY.into(), user, offset: 0.into() };
        let table = [&1u64.to_le_bytes()[..], region.as_bytes()].concat();
        front.ask(request::SET_MEM_TABLE, &table, &[file.as_fd()])?;
        let setup = |base: u64| RingSetup {
            size: 16,
            descriptors: base,
            driver: base + 0x1000,
            device: base + 0x2000,
            position: Arc::new(AtomicU32::new(0)),
            record: None,
            log: None,
        };
        let events = [front.start(0, &setup(0x10000))?, front.start(1, &setup(0x20000))?];
        Ok((socket, front, events))
    });
    rustix::fs::ftruncate(&file, 0).unwrap();
    rustix::io::write(&events[1].kick, &1u64.to_ne_bytes()).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    assert_eq!(socket.read(&mut [0; 64]).expect("the session to end"), 0);
}
