use vmlane_testkit::skipped;

use super::*;

fn map(guest: u64, pages: u64) -> MapRequest {
    let len = pages * 4096;
    MapRequest { guest, len, offset: 0, fd: memfd("test", len).unwrap(), writable: true }
}

#[test]
fn reads_and_writes_cross_regions_and_stop_at_holes() {
    let memory = MemoryMap::default().map(map(0x1000, 1)).unwrap().map(map(0x2000, 1)).unwrap();
    memory.write(0x1ffc, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut out = [0; 8];
    memory.read(0x1ffc, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(memory.write(0x2ffc, &[9; 8]), Err(Fault { addr: 0x2ffc, len: 8 }));
    memory.read(0x2ffc, &mut out[..4]).unwrap();
    assert_eq!(out[..4], [0; 4], "a refused write must not write its first half");
    assert!(memory.read(u64::MAX - 3, &mut out).is_err());
    assert!(memory.read(0, &mut out[..0]).is_ok());
}

#[test]
fn refuses_bad_regions() {
    let memory = MemoryMap::default().map(map(0x10000, 4)).unwrap();
    assert!(matches!(memory.map(map(0x13000, 1)), Err(MapError::Overlap { .. })));
    assert!(matches!(memory.map(map(u64::MAX - 0xfff, 1)), Err(MapError::Shape { .. })));
    assert!(matches!(memory.map(map(0x800, 1)), Err(MapError::Shape { .. })));
    assert!(matches!(memory.map(map(0x800000, 0)), Err(MapError::Shape { .. })));
    let short = MapRequest { len: 0x3000, ..map(0x100000, 2) };
    assert!(matches!(memory.map(short), Err(MapError::FileTooSmall { .. })));
    assert!(matches!(memory.unmap(0x11000, 0x1000), Err(MapError::Cut { .. })));
    assert!(memory.unmap(0x10000, 0x4000).unwrap().is_empty());
    assert_eq!(memory.len(), 0x4000);
}

#[test]
fn read_only_regions_take_no_writes_and_no_queues() {
    let memory = MemoryMap::default().map(MapRequest { writable: false, ..map(0, 2) }).unwrap();
    assert!(memory.write(0, &[1]).is_err());
    assert!(memory.store_u32(0, 1).is_err());
    assert!(memory.pages([0].into_iter(), 12).is_err());
    assert!(memory.read(0, &mut [0; 16]).is_ok());
}

#[test]
fn copies_between_scattered_pages() {
    let memory = MemoryMap::default().map(map(0, 16)).unwrap();
    let from = memory.pages([0x3000, 0x1000, 0x2000].into_iter(), 12).unwrap();
    let to = memory.pages([0x8000, 0xa000, 0x6000].into_iter(), 12).unwrap();
    let data: Vec<u8> = (0..12000u32).map(|value| (value * 7 % 251) as u8).collect();
    from.write(100, &data);
    copy(&to, 200, &from, 100, data.len());
    let mut out = vec![0; data.len()];
    to.read(200, &mut out);
    assert_eq!(out, data);
    to.store_u64(8, 0x1122_3344_5566_7788);
    assert_eq!(to.load_u64(8), 0x1122_3344_5566_7788);
}

#[test]
fn bytes_of_a_scattered_list_are_copied_into_a_window() {
    let memory = MemoryMap::default().map(map(0, 2)).unwrap();
    let data: Vec<u8> = (0..1600u32).map(|value| (value * 7 % 251) as u8).collect();
    let mut spans = Spans::new(memory, true);
    spans.push(0x100, 700).unwrap();
    spans.push(0x1000, 900).unwrap();
    spans.write(0, &data);
    let (window, _file) = Window::of_file("test", 4096).unwrap();
    spans.read_into(600, 1000, &window, 33);
    let mut out = [0xff; 1002];
    window.read(32, &mut out);
    assert_eq!((out[0], &out[1..1001], out[1001]), (0, &data[600..], 0));
}

#[test]
#[should_panic(expected = "outside a window")]
fn a_window_takes_no_bytes_beyond_its_end() {
    let mut spans = Spans::new(MemoryMap::default().map(map(0, 1)).unwrap(), false);
    spans.push(0, 4096).unwrap();
    let (window, _file) = Window::of_file("test", 4096).unwrap();
    spans.read_into(0, 4096, &window, 1);
}

#[test]
fn words_lie_where_bytes_do() {
    let memory = MemoryMap::default().map(map(0, 2)).unwrap();
    let bytes: [u8; 12] = std::array::from_fn(|at| at as u8 + 1);
    let words = (0x0807_0605_0403_0201, 0x0c0b_0a09);
    let mut spans = Spans::new(memory.clone(), true);
    assert_eq!(spans.near_words(0x101), None, "no region is near yet");
    // In one piece, and in two; all twelve bytes, and ten of them; whether or not the same bytes are there
    // already.
    for (pieces, len) in [(&[(0x101, 12)][..], 12), (&[(0x101, 10)], 10), (&[(0x101, 5), (0x700, 7)], 12)] {
        spans.clear();
        pieces.iter().for_each(|&(at, len)| spans.push(at, len).unwrap());
        for spare in [false, true, true] {
            spans.write_words(words, len, spare);
            let mut out = vec![0; len];
            spans.read(0, &mut out);
            assert_eq!(out, bytes[..len]);
        }
        spans.write(0, &vec![0xff; len]);
    }
    memory.write(0x1ff4, &bytes).unwrap();
    assert_eq!(spans.near_words(0x1ff4), Some(words));
    assert_eq!(spans.near_words(0x1ff5), None, "the last byte is outside");
    assert_eq!(spans.near_words(u64::MAX - 3), None);
}

#[test]
fn a_shrunk_file_poisons_its_mapping_and_nothing_else() {
    let fd = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 0x4000).unwrap();
    let keep = fd.try_clone().unwrap();
    let request = MapRequest { guest: 0, len: 0x4000, offset: 0, fd, writable: true };
    let memory = MemoryMap::default().map(request).unwrap();
    let other = MemoryMap::default().map(map(0, 1)).unwrap();
    memory.write(0x1000, &[7; 16]).unwrap();
    rustix::fs::ftruncate(&keep, 0).unwrap();
    let mut out = [1; 16];
    memory.read(0x1000, &mut out).unwrap();
    assert_eq!(out, [0; 16]);
    assert!(memory.poisoned());
    assert!(!other.poisoned());
}

#[test]
fn so_many_regions_are_mapped_and_the_next_one_is_refused() {
    let at = |number: usize| map(number as u64 * 0x10000, 1);
    let full = (0..MAX_REGIONS).fold(MemoryMap::default(), |memory, number| memory.map(at(number)).unwrap());
    assert!(matches!(full.map(at(MAX_REGIONS)), Err(MapError::TooMany)));
    assert_eq!(full.regions().count(), MAX_REGIONS);
    let less = full.unmap(0, 0x1000).unwrap();
    assert_eq!(less.map(at(MAX_REGIONS)).unwrap().regions().count(), MAX_REGIONS);
}

#[test]
fn no_more_is_mapped_than_the_limit_allows() {
    let memory = MemoryMap::default().map_within(map(0, 2), 0x3000).unwrap();
    let more = memory.map_within(map(0x10000, 2), 0x3000).unwrap_err();
    assert!(matches!(more, MapError::TooLarge { guest: 0x10000, len: 0x2000, limit: 0x3000 }), "{more}");
    assert_eq!(memory.map_within(map(0x10000, 1), 0x3000).unwrap().len(), 0x3000);
}

/// A file whose pages are larger is mapped by whole pages of its own, wherever in them a region begins and
/// ends.
#[test]
fn regions_of_huge_pages_are_unmapped_and_survive_being_cut_short() {
    use rustix::fs::MemfdFlags;
    const HUGE: u64 = 2 << 20;
    let huge = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let fd = rustix::fs::memfd_create("huge", flags).ok()?;
        rustix::fs::ftruncate(&fd, 2 * HUGE).ok()?;
        Some(fd)
    };
    let request = |fd: &std::os::fd::OwnedFd, guest, offset, len| MapRequest {
        guest,
        len,
        offset,
        fd: fd.try_clone().unwrap(),
        writable: true,
    };
    let Some(fd) = huge() else { return skipped("the kernel has no huge pages of 2 MiB") };
    // As QEMU maps the memory of a PC: below 640 KiB, and from 1 MiB on.
    let low = match MemoryMap::default().map(request(&fd, 0, 0, 0xa_0000)) {
        Ok(low) => low,
        Err(error) => return skipped(&format!("no free huge page ({error}); see vm.nr_hugepages")),
    };
    let memory = low.map(request(&fd, 0x10_0000, 0x10_0000, HUGE)).unwrap();
    memory.write(0x10_0000, &[7; 16]).unwrap();
    memory.write(0x9_0000, &[8; 16]).unwrap();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:huge")).count()
    };
    assert_eq!(mapped(), 2);
    let other = huge().unwrap();
    let cut = MemoryMap::default().map(request(&other, 0, 0x1000, HUGE - 0x2000)).unwrap();
    rustix::fs::ftruncate(&other, 0).unwrap();
    let mut out = [1; 16];
    cut.read(0x2000, &mut out).unwrap();
    assert!(cut.poisoned() && !memory.poisoned() && out == [0; 16]);
    drop((low, memory, cut));
    assert_eq!(mapped(), 0, "all of it is unmapped");
}

/// A file system without a device may be one that another process serves, such as FUSE.
#[test]
fn a_file_whose_pages_might_never_come_is_refused() {
    for path in ["/proc/version", "/dev/null", "/proc/self"] {
        let fd = std::fs::File::open(path).unwrap();
        assert!(!may_hold_guest_memory(&fd), "{path}");
        let request = MapRequest { guest: 0, len: 4096, offset: 0, fd: fd.into(), writable: false };
        let refused = MemoryMap::default().map(request).unwrap_err();
        assert!(matches!(refused, MapError::File { .. }), "{path}: {refused}");
    }
    assert!(may_hold_guest_memory(memfd("memory", 4096).unwrap()));
}

#[test]
fn guests_memory_is_in_no_core_dump() {
    let file = memfd("not dumped", 0x3000).unwrap();
    let request = MapRequest { guest: 0, len: 0x3000, offset: 0, fd: file, writable: true };
    let _memory = MemoryMap::default().map(request).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = maps.split("/memfd:not dumped").nth(1).expect("the mapping");
    let flags = mapping.lines().find(|line| line.starts_with("VmFlags:")).expect("its flags");
    assert!(flags.contains(" dd"), "{flags}");
}

#[test]
fn pieces_of_several_lists_are_gathered_in_one_if_they_are_of_one_memory() {
    let memory = MemoryMap::default().map(map(0, 4)).unwrap();
    let data: Vec<u8> = (0..0x4000u32).map(|at| (at * 7 % 251) as u8).collect();
    memory.write(0, &data).unwrap();
    let (mut one, mut two) = (Spans::new(memory.clone(), false), Spans::new(memory.clone(), false));
    [(0x100, 50), (0x300, 70)].iter().for_each(|&(addr, len)| one.push(addr, len).unwrap());
    two.push(0x2001, 99).unwrap();
    let elsewhere = MemoryMap::default().map(map(0, 1)).unwrap();
    let mut other = Spans::new(elsewhere, true);
    other.push(0x10, 20).unwrap();

    let mut gathered = Spans::new(MemoryMap::default(), false);
    assert!(!gathered.append(&one, 0, 1), "memory that it does not keep mapped");
    gathered.follow(&one);
    assert!(gathered.append(&one, 20, 80) && gathered.append(&two, 1, 98) && gathered.append(&two, 99, 0));
    assert!(!gathered.append(&other, 0, 20));
    assert_eq!((gathered.len(), gathered.pieces()), (178, 3));
    let expected = [&data[0x114..0x132], &data[0x300..0x332], &data[0x2002..0x2002 + 98]].concat();
    let mut out = vec![0; 178];
    gathered.read(0, &mut out);
    assert_eq!(out, expected);
    let (mut sum, mut plain) = (Sum::default(), Sum::default());
    gathered.sum(3, 170, &mut sum);
    plain.add(&expected[3..173]);
    assert_eq!(sum.folded(), plain.folded());

    gathered.follow(&other);
    assert!(gathered.is_empty() && gathered.push(0x2000, 1).is_err(), "it went on with memory of before");
    assert!(gathered.append(&other, 5, 10) && !gathered.append(&one, 0, 1));
}
