//! Memory that stalls a thread that touches it: of a file system whose server stops answering, and by
//! userfaultfd. The daemon refuses what may stall it, and other VMs and their worker go on.

use std::os::fd::AsFd;

use rustix::fs::FallocateFlags;
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::vhost_user::Front;
use vmlane_testkit::{ran_alone, wait_until};
use vmlane_wire::vfio_user::{Command, DmaMap};
use vmlane_wire::vhost_user::{InflightArea, LogBase, MemoryRegion, OneRegion, request};
use zerocopy::IntoBytes;

use super::fuse::{self, Answers, StallingFile};
use super::userfault::Stalling;
use super::world::{CONFIG_REGION, FEATURES, Nic, attach, attach_vmxnet3, config};
use crate::common::daemon;

const LEN: u64 = 1 << 20;

fn region() -> MemoryRegion {
    let user = 0x7f00_0000_0000u64.into();
    MemoryRegion { guest: 0.into(), size: LEN.into(), user, offset: 0.into() }
}

/// Everything by which a vhost-user front end can pass a file to be mapped: request, payload.
fn requests_with_files() -> [(u32, Vec<u8>); 4] {
    let table = [&1u64.to_le_bytes()[..], region().as_bytes()].concat();
    let one = OneRegion { padding: 0.into(), region: region() };
    let log = LogBase { size: 4096.into(), offset: 0.into() };
    let area = InflightArea { size: 4096.into(), offset: 0.into(), rings: 2.into(), ring_size: 16.into() };
    [
        (request::SET_MEM_TABLE, table),
        (request::ADD_MEM_REG, one.as_bytes().to_vec()),
        (request::SET_LOG_BASE, log.as_bytes().to_vec()),
        (request::SET_INFLIGHT_FD, area.as_bytes().to_vec()),
    ]
}

fn ask_to_map(vmm: &mut Client, file: &StallingFile) {
    let map = DmaMap {
        argsz: (size_of::<DmaMap>() as u32).into(),
        flags: (DmaMap::READ | DmaMap::WRITE).into(),
        offset: 0.into(),
        address: 0.into(),
        size: fuse::SIZE.into(),
    };
    let message = vmm.message(Command::DmaMap.code(), map.as_bytes(), false);
    vmm.send(&message, &[file.file.as_fd()]).unwrap();
}

/// In a process of its own: a process that another test starts closes its copies of all files of this one,
/// waits for the one that stalls, and has others, connections of that test, open meanwhile.
#[test]
fn memory_of_a_file_system_that_stalls_is_refused_and_others_go_on() {
    if ran_alone() {
        return;
    }
    let daemon = daemon(&config(&["virtio-net", "virtio-net", "vmxnet3", "virtio-net"]));
    let (mut from, mut to) = (Nic::new(0), Nic::new(1));
    from.attach(&daemon, "a");
    to.attach(&daemon, "b");
    from.reach(&mut to);
    let mut vmm = attach_vmxnet3(&daemon, "c");
    let mut hostile = attach(&daemon, "d", |stream| Front::over(stream, FEATURES));

    // Whatever is asked of the files is answered: that they are closed. Neither reading nor status is.
    let Some(closing) = StallingFile::open(Answers::Closing) else { return };
    vmm.map(0, fuse::SIZE, Some((closing.file.as_fd(), 0)), true).expect_err("memory that may stall");
    assert_eq!(vmm.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad, "its session goes on");
    for (code, payload) in requests_with_files() {
        let refused = hostile.ask(code, &payload, &[closing.file.as_fd()]);
        assert!(refused.is_err(), "request {code}");
    }
    from.reach(&mut to);

    // Not even that: the threads of these sessions wait, until the server is gone.
    let Some(nothing) = StallingFile::open(Answers::Nothing) else { return };
    ask_to_map(&mut vmm, &nothing);
    let (code, table) = &requests_with_files()[0];
    hostile.send(*code, table, &[nothing.file.as_fd()]).unwrap();
    for _ in 0..100 {
        from.reach(&mut to);
        to.reach(&mut from);
    }
    // A session that begins now is served, too.
    to.attach(&daemon, "b");
    drop(nothing);
    let (answer, _) = vmm.receive().expect("an answer, late");
    assert!(answer.failed(), "memory that may stall");
    assert_eq!(vmm.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad, "its session goes on");
}

/// A userfaultfd concerns mappings of the process that has registered it. The daemon has others, of the same
/// file: a page that the file lacks comes at once. And what the VMM's own writes to the file hold meanwhile,
/// the daemon does without.
#[test]
fn memory_that_stalls_its_vmm_by_userfaultfd_stalls_neither_its_device_nor_others() {
    let daemon = daemon(&config(&["virtio-net"; 3]));
    let (mut from, mut to, mut hostile) = (Nic::new(0), Nic::new(1), Nic::new(2));
    from.attach(&daemon, "a");
    to.attach(&daemon, "b");
    let ram = hostile.rx.ram.clone();
    // No page of the guest's buffers is in the file, so that the daemon's access will be the first one.
    for page in &hostile.buffers {
        let (start, _, offset) =
            ram.regions().into_iter().rfind(|(start, ..)| start <= page).expect("a region");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(ram.fd(), punch, page - start + offset, 4096).unwrap();
    }
    let hole = vmlane_mem::memfd("nothing in it", LEN).unwrap();
    let Some((_guest, faults)) = Stalling::map(ram.fd(), LEN as usize) else { return };
    let (source, waiting) = Stalling::map(&hole, LEN as usize).expect("another one");
    std::thread::scope(|scope| {
        // A write to the guest's memory file locks the file, and then waits for its source.
        let write = scope.spawn(|| source.write_to(ram.fd()));
        wait_until("a write that waits", || waiting.are_there() || write.is_finished());
        hostile.attach(&daemon, "c");
        for _ in 0..hostile.buffers.len() {
            from.send(hostile.own);
            wait_until("a frame for the hostile VM", || hostile.rx.take().is_some());
            wait_until("its chain", || from.tx.take().is_some());
            from.reach(&mut to);
        }
        // The session ends and begins again while the file is locked.
        hostile.attach(&daemon, "c");
        from.reach(&mut to);
        drop((waiting, faults));
    });
}
