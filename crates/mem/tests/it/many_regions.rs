//! More mappings than one VM's.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vmlane_mem::{MAX_REGIONS, MapRequest, MemoryMap};

const PAGE: u64 = 4096;

/// What a VM may map is bounded for each of its devices; no number for all of them together lets some VMs
/// take it from others.
#[test]
fn the_regions_of_many_vms_leave_room_for_those_of_others_and_each_survives_being_cut_short() {
    const VMS: usize = 80;
    if vmlane_testkit::ran_alone() {
        return;
    }
    let files: Vec<_> = (0..VMS)
        .map(|_| {
            let file = memfd_create("many", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 2 * MAX_REGIONS as u64 * PAGE).unwrap();
            file
        })
        .collect();
    let all = |file: &OwnedFd| {
        (0..MAX_REGIONS as u64).fold(MemoryMap::default(), |memory, region| {
            // Every other page, so that none can be one with its neighbour.
            let at = 2 * region * PAGE;
            let fd = file.try_clone().unwrap();
            memory.map(MapRequest { guest: at, len: PAGE, offset: at, fd, writable: true }).unwrap()
        })
    };
    let maps: Vec<MemoryMap> = files.iter().map(all).collect();
    let (first, last) = (&maps[0], &maps[VMS - 1]);
    for (file, map) in [(&files[0], first), (&files[VMS - 1], last)] {
        ftruncate(file, 0).unwrap();
        let mut out = [1; 16];
        map.read(0, &mut out).unwrap();
        assert!(map.poisoned() && out == [0; 16]);
    }
    assert!(maps[1..VMS - 1].iter().all(|map| !map.poisoned()));
}
