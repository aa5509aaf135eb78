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
