//! What a PCI core sees when it walks and sizes the configuration space.

use super::*;

fn vmci_like() -> ConfigSpace {
    ConfigSpace::builder(0x15ad, 0x0740)
        .class(0x088000)
        .revision(0x10)
        .subsystem(0x15ad, 0x0740)
        .timing(6, 255)
        .bar(0, Bar::Io { size: 64 })
        .bar(1, Bar::Mem64 { size: 0x40000 })
        .msi(0x40)
        .msix(0x58, Msix { vectors: 3, table: (1, 0), pba: (1, 0x1000) })
        .build()
        .expect("valid")
}

fn read<const N: usize>(space: &ConfigSpace, at: u64) -> [u8; N] {
    let mut data = [0; N];
    space.read(at, &mut data).expect("in range");
    data
}

#[test]
fn identity_is_where_a_driver_reads_it_and_cannot_be_written() {
    let mut space = vmci_like();
    for at in 0..0x10 {
        space.write(at, &[0xff]).expect("in range");
    }
    assert_eq!(read(&space, 0), [0xad, 0x15, 0x40, 0x07]);
    assert_eq!(read(&space, 8), [0x10, 0x00, 0x80, 0x08]);
    assert_eq!(read(&space, 0x2c), [0xad, 0x15, 0x40, 0x07]);
    assert_eq!(read(&space, 0x3c), [0, 0, 6, 255]);
    assert_eq!(read::<2>(&space, 6), [0x10, 0]);
}

#[test]
fn bars_answer_kind_and_size() {
    let mut space = vmci_like();
    assert_eq!((read(&space, 0x10), read(&space, 0x14)), ([1, 0, 0, 0], [4, 0, 0, 0]));
    space.write(0x10, &[0xff; 24]).expect("in range");
    assert_eq!(u32::from_le_bytes(read(&space, 0x10)), 0xffff_ffc1);
    assert_eq!(u64::from_le_bytes(read(&space, 0x14)), 0xffff_ffff_fffc_0004);
    assert_eq!(read(&space, 0x1c), [0; 12], "BARs that do not exist read as zero");
}

#[test]
fn capabilities_are_linked_in_the_order_given() {
    let space = vmci_like();
    let mut at = u64::from(read::<1>(&space, 0x34)[0]);
    let mut seen = Vec::new();
    while at != 0 {
        let [id, next] = read(&space, at);
        seen.push((id, at));
        at = u64::from(next);
    }
    assert_eq!(seen, [(0x05, 0x40), (0x11, 0x58)]);
    assert_eq!(read(&space, 0x58), [0x11, 0, 2, 0, 1, 0, 0, 0, 1, 0x10, 0, 0]);
}

#[test]
fn enabling_msix_byte_by_byte_or_at_once_is_seen() {
    let mut space = vmci_like();
    space.write(0x5b, &[0xc0]).expect("in range");
    assert_eq!(read(&space, 0x5a), [2, 0xc0], "the vector count is read-only");
    space.write(0x5a, &0u16.to_le_bytes()).expect("in range");
    assert_eq!(read(&space, 0x5a), [2, 0]);
    space.write(0x42, &[1]).expect("in range");
    assert_eq!(read(&space, 0x42), [0x81], "64-bit addresses, and enabled");
}

#[test]
fn reset_clears_enables_and_keeps_what_firmware_assigned() {
    let mut space = vmci_like();
    space.write(0x04, &7u16.to_le_bytes()).expect("in range");
    space.write(0x10, &0xc040u32.to_le_bytes()).expect("in range");
    space.write(0x3c, &[11]).expect("in range");
    space.write(0x5a, &[0, 0xc0]).expect("in range");
    assert!(space.bus_master());
    assert_eq!((read(&space, 0x04), read(&space, 0x5b)), ([7, 0], [0xc0]));
    space.reset();
    assert!(!space.bus_master());
    assert_eq!((read(&space, 0x04), read(&space, 0x5b)), ([0, 0], [0]));
    assert_eq!((read(&space, 0x10), read(&space, 0x3c)), ([0x41, 0xc0, 0, 0], [11]));
}

#[test]
fn accesses_outside_are_refused_whatever_their_size() {
    let mut space = vmci_like();
    for (at, len) in [(256, 1), (255, 2), (u64::MAX, 1), (u64::MAX - 3, 8), (0, 257)] {
        let error = AccessError::OutOfRange { region: 7, offset: at, len };
        assert_eq!(space.read(at, &mut vec![0; len]), Err(error));
        assert_eq!(space.write(at, &vec![0; len]), Err(error));
    }
    space.read(256, &mut []).expect("nothing is always there");
}

#[test]
fn mistakes_are_named() {
    let base = || ConfigSpace::builder(1, 2);
    let bar = Bar::Mem64 { size: 4096 };
    assert_eq!(base().bar(5, bar).build().err(), Some(ConfigError::Bar { index: 5, bar }));
    assert_eq!(
        base().bar(0, bar).bar(1, Bar::Io { size: 8 }).build().err().map(|e| e.to_string().contains("BAR 1")),
        Some(true)
    );
    assert!(
        base().bar(usize::MAX, bar).build().is_err()
            && base().bar(0, Bar::Mem32 { size: 48 }).build().is_err()
    );
    assert!(base().msi(0x40).msi(0x4c).build().is_err() && base().msi(0xf8).build().is_err());
    let msix = Msix { vectors: 0, table: (0, 0), pba: (0, 0) };
    assert_eq!(base().msix(0x40, msix).build().err(), Some(ConfigError::Vectors { vectors: 0 }));
}

#[test]
fn extended_space_is_4096_bytes() {
    let space = ConfigSpace::builder(1, 2).extended().build().expect("valid");
    assert_eq!(space.size(), 4096);
    assert_eq!(read(&space, 4092), [0; 4]);
}
