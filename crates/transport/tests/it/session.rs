//! A VMM attaches a device, maps memory, connects interrupts and goes away.

use std::os::fd::AsFd;
use std::time::Duration;

use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_guestsim::{eventfd, signals};
use vmlane_wire::vfio_user::{IrqInfo, RegionInfo, SetIrqs, irq_index};

use crate::common::{Fixture, PARTLY_MAPPED, PEEK, POKE, RAISE, Seen};

const EINVAL: Option<u32> = Some(22);
const EEXIST: Option<u32> = Some(17);
const EOPNOTSUPP: Option<u32> = Some(95);
const EVENTFD: u32 = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;

#[test]
fn a_vmm_learns_what_the_device_is() {
    let mut f = Fixture::start();
    let capabilities = f.vmm.version().unwrap();
    assert!(
        capabilities.contains("\"max_msg_fds\":16") && !capabilities.contains("migration"),
        "{capabilities}"
    );
    let info = f.vmm.device_info().unwrap();
    assert_eq!((info.flags.get(), info.num_regions.get(), info.num_irqs.get()), (3, 8, 5));

    let (bar0, fd) = f.vmm.region_info(0).unwrap();
    assert_eq!((bar0.size.get(), bar0.flags.get()), (0x1000, 7));
    assert_eq!(rustix::fs::fstat(fd.expect("a mappable region brings its file")).unwrap().st_size, 0x1000);
    let (bar1, fd) = f.vmm.region_info(1).unwrap();
    assert_eq!((bar1.flags.get(), fd.is_none()), (RegionInfo::READ, true));
    let (partly, fd) = f.vmm.region_info(PARTLY_MAPPED as u32).unwrap();
    assert_eq!((partly.size.get(), partly.flags.get(), fd.is_some()), (0x2000, 7 | RegionInfo::CAPS, true));
    assert_eq!((partly.argsz.get(), partly.cap_offset.get()), (64, 32), "what did not fit, and where it is");
    let (absent, _) = f.vmm.region_info(4).unwrap();
    assert_eq!((absent.size.get(), absent.flags.get(), absent.argsz.get()), (0, 0, 32));
    assert_eq!(f.vmm.region_info(8).unwrap_err().errno(), EINVAL);

    let counts: Vec<_> = (0..5).map(|index| f.vmm.irq_info(index).unwrap().count.get()).collect();
    assert_eq!(counts, [1, 1, 3, 0, 0]);
    let intx = f.vmm.irq_info(irq_index::INTX).unwrap().flags.get();
    assert_eq!(intx, IrqInfo::EVENTFD | IrqInfo::MASKABLE | IrqInfo::AUTOMASKED);
    assert_eq!(f.vmm.irq_info(5).unwrap_err().errno(), EINVAL);
    assert_eq!(f.close(), "the peer closed the connection");
}

#[test]
fn registers_are_read_and_written_in_any_width() {
    let mut f = Fixture::start();
    f.vmm.write_u32(2, 0x100, 0x1122_3344).unwrap();
    assert_eq!(f.vmm.read_u32(2, 0x100).unwrap(), 0x1122_3344);
    assert_eq!(f.vmm.read_u8(2, 0x103).unwrap(), 0x11);
    let mut page = vec![1; 4096];
    f.vmm.read(2, 0x1000, &mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    assert_eq!(f.vmm.read_u32(7, 0).unwrap(), 0x5678_1234);
    f.vmm.write(7, 4, &[7, 0]).unwrap();
    assert_eq!(f.vmm.read_u16(7, 4).unwrap(), 7);
    f.vmm.reset().unwrap();
    assert_eq!((f.vmm.read_u16(7, 4).unwrap(), f.vmm.read_u32(2, 0x100).unwrap()), (0, 0));
    assert_eq!((f.counted("writes"), f.counted("posted_writes"), f.counted("resets")), (2, 0, 1));
}

#[test]
fn accesses_that_fit_no_region_are_refused() {
    let mut f = Fixture::start();
    for (region, offset, len) in [
        (2, 0x2000, 1),
        (2, 0x1fff, 2),
        (2, u64::MAX, 4),
        (2, 0, 0),
        (2, 0, 4097),
        (3, 0, 4),
        (8, 0, 4),
        (u32::MAX, 0, 4),
    ] {
        let read = f.vmm.read(region, offset, &mut vec![0; len]).unwrap_err();
        let write = f.vmm.write(region, offset, &vec![0; len]).unwrap_err();
        assert_eq!((read.errno(), write.errno()), (EINVAL, EINVAL), "{region} {offset:#x} {len}");
    }
    assert_eq!(f.vmm.write(1, 0, &[0]).unwrap_err().errno(), EINVAL, "region 1 is read-only");
    f.vmm.read_u8(1, 0).unwrap();
    assert!(f.journal.take().is_empty(), "the device saw none of it");
    assert_eq!(f.counted("errors"), 17);
}

#[test]
fn memory_comes_goes_and_is_what_the_guest_sees() {
    let mut f = Fixture::start();
    let memory = vmlane_mem::memfd("guest", 0x20_0000).unwrap();
    rustix::io::pwrite(&memory, &0xfeed_f00du32.to_le_bytes(), 0x10_1000).unwrap();
    f.vmm.map(0x4000_0000, 0x10_0000, Some((memory.as_fd(), 0x10_0000)), true).unwrap();
    f.vmm.map(0xc_0000, 0x1_0000, Some((memory.as_fd(), 0)), false).unwrap();
    f.vmm.map(0xf_0000, 0x1_0000, None, false).unwrap();

    f.vmm.write(2, PEEK, &0x4000_1000u64.to_le_bytes()).unwrap();
    assert_eq!(f.vmm.read_u32(2, PEEK).unwrap(), 0xfeed_f00d);
    f.vmm.write(2, POKE, &0x4000_2000u64.to_le_bytes()).unwrap();
    let mut word = [0; 4];
    rustix::io::pread(&memory, &mut word, 0x10_2000).unwrap();
    assert_eq!(word, [0x5a; 4]);
    for unusable in [0xc_0000u64, 0xf_0000, 0x5000_0000] {
        assert_eq!(f.vmm.write(2, POKE, &unusable.to_le_bytes()).unwrap_err().errno(), EINVAL);
    }

    let overlap = f.vmm.map(0x400f_f000, 0x1000, Some((memory.as_fd(), 0)), true);
    assert_eq!(overlap.unwrap_err().errno(), EEXIST);
    for (guest, len, offset) in [
        (1, 0x1000, 0),
        (0, 0, 0),
        (0, 0x1000, 0x1f_f001),
        (u64::MAX - 0xfff, 0x2000, 0),
        (1 << 41, 1 << 40, 0),
    ] {
        assert_eq!(f.vmm.map(guest, len, Some((memory.as_fd(), offset)), true).unwrap_err().errno(), EINVAL);
    }
    f.journal.take();
    assert_eq!(f.vmm.unmap(0x4000_0000, 0x1000).unwrap_err().errno(), EINVAL, "cuts a region");
    assert!(f.journal.take().is_empty());
    f.vmm.unmap(0x4000_0000, 0x10_0000).unwrap();
    let (start, len) = (0x4000_0000, 0x10_0000);
    assert_eq!(f.journal.take(), [Seen::Unmap { start, len }, Seen::Memory { bytes: 0x1_0000 }]);
    f.vmm.unmap(0xf_0000, 0x1_0000).unwrap();
    f.journal.take();
    f.vmm.unmap_all().unwrap();
    assert_eq!(f.journal.take(), [Seen::Unmap { start: 0, len: u64::MAX }, Seen::Memory { bytes: 0 }]);
    assert_eq!(f.vmm.read_u32(2, PEEK).unwrap_err().errno(), EINVAL);
}

#[test]
fn msix_goes_on_vector_by_vector_and_off_at_once() {
    let mut f = Fixture::start();
    let line = eventfd().unwrap();
    f.vmm.set_irqs(EVENTFD, irq_index::INTX, 0..1, &[], &[line.as_fd()]).unwrap();
    assert_eq!(f.irqs.mode(), IrqMode::Intx);
    f.vmm.write_u32(2, RAISE, 0).unwrap();
    assert_eq!(signals(&line), 1);

    f.vmm.set_irqs(EVENTFD, irq_index::MSIX, 0..1, &[], &[]).unwrap();
    assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 0 });
    let vectors = [eventfd().unwrap(), eventfd().unwrap(), eventfd().unwrap()];
    f.vmm.enable_msix(&[vectors[0].as_fd(), vectors[1].as_fd(), vectors[2].as_fd()]).unwrap();
    assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 3 });
    for vector in [2, 2, 1, 7] {
        f.vmm.write_u32(2, RAISE, vector).unwrap();
    }
    assert_eq!(
        [signals(&vectors[0]), signals(&vectors[1]), signals(&vectors[2]), signals(&line)],
        [0, 1, 2, 0]
    );
    assert_eq!(f.counted("irqs_raised"), 4);

    f.vmm.set_irqs(EVENTFD, irq_index::MSIX, 1..3, &[], &[]).unwrap();
    assert_eq!(f.irqs.mode(), IrqMode::Msix { vectors: 1 });
    f.vmm.disable_irqs(irq_index::MSIX).unwrap();
    assert_eq!(f.irqs.mode(), IrqMode::Intx);
    f.vmm.disable_irqs(irq_index::INTX).unwrap();
    assert_eq!((f.irqs.mode(), f.irqs.raise(0)), (IrqMode::Off, false));
}

#[test]
fn several_vectors_in_one_message() {
    let mut f = Fixture::start();
    let vectors = [eventfd().unwrap(), eventfd().unwrap()];
    f.vmm.set_irqs(EVENTFD, irq_index::MSIX, 1..3, &[], &[vectors[0].as_fd(), vectors[1].as_fd()]).unwrap();
    let bools = SetIrqs::DATA_BOOL | SetIrqs::TRIGGER;
    f.vmm.set_irqs(bools, irq_index::MSIX, 0..3, &[1, 0, 1], &[]).unwrap();
    assert_eq!((signals(&vectors[0]), signals(&vectors[1])), (0, 1));
    f.vmm.set_irqs(SetIrqs::DATA_NONE | SetIrqs::TRIGGER, irq_index::MSIX, 1..3, &[], &[]).unwrap();
    assert_eq!((signals(&vectors[0]), signals(&vectors[1])), (1, 1));
}

#[test]
fn a_masked_line_stays_silent_and_unmasking_asks_the_device_again() {
    let mut f = Fixture::start();
    let line = eventfd().unwrap();
    f.vmm.set_irqs(EVENTFD, irq_index::INTX, 0..1, &[], &[line.as_fd()]).unwrap();
    f.vmm.set_irqs(0x9, irq_index::INTX, 0..1, &[], &[]).unwrap();
    f.vmm.write_u32(2, RAISE, 0).unwrap();
    assert_eq!(signals(&line), 0);
    f.journal.take();
    f.vmm.set_irqs(0x11, irq_index::INTX, 0..1, &[], &[]).unwrap();
    assert_eq!(f.journal.take(), [Seen::Irqs]);
    assert!(f.irqs.raise(0));
    assert_eq!(signals(&line), 1);
    f.vmm.set_irqs(0xa, irq_index::INTX, 0..1, &[0], &[]).unwrap();
    assert!(f.irqs.raise(0) && signals(&line) == 1, "a false boolean masks nothing");
}

#[test]
fn interrupt_requests_that_make_no_sense_are_refused() {
    let mut f = Fixture::start();
    let fd = eventfd().unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let file = vmlane_mem::memfd("not an eventfd", 4096).unwrap();
    let socket = f.vmm.stream().try_clone().unwrap();
    for (flags, index, vectors, data, fds, errno) in [
        (EVENTFD, irq_index::MSIX, 0..4, &[][..], vec![], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..2, &[], vec![fd.as_fd()], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..1, &[], vec![fd.as_fd(), fd.as_fd()], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..0, &[], vec![], EINVAL),
        (EVENTFD, irq_index::MSIX, 3..u32::MAX, &[], vec![], EINVAL),
        (EVENTFD, irq_index::ERR, 0..1, &[], vec![fd.as_fd()], EINVAL),
        (EVENTFD, 77, 0..1, &[], vec![fd.as_fd()], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..1, &[], vec![pipe.as_fd()], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..1, &[], vec![file.as_fd()], EINVAL),
        (EVENTFD, irq_index::MSIX, 0..1, &[], vec![socket.as_fd()], EINVAL),
        (0, irq_index::MSIX, 0..1, &[], vec![], EINVAL),
        (0x3f, irq_index::MSIX, 0..1, &[], vec![], EINVAL),
        (0x22, irq_index::MSIX, 0..3, &[1, 1], vec![], EINVAL),
        (0x9, irq_index::MSIX, 0..1, &[], vec![], EOPNOTSUPP),
        (0x14, irq_index::INTX, 0..1, &[], vec![fd.as_fd()], EOPNOTSUPP),
    ] {
        let refused = f.vmm.set_irqs(flags, index, vectors.clone(), data, &fds).unwrap_err();
        assert_eq!(refused.errno(), errno, "{flags:#x} {index} {vectors:?} {refused}");
    }
    assert_eq!(f.irqs.mode(), IrqMode::Off);
    assert!(f.journal.take().is_empty());
    f.assert_alive();
}

#[test]
fn a_device_is_left_empty_when_its_vmm_goes() {
    let mut f = Fixture::start();
    let memory = vmlane_mem::memfd("guest", 0x1000).unwrap();
    f.vmm.map(0, 0x1000, Some((memory.as_fd(), 0)), true).unwrap();
    let fd = eventfd().unwrap();
    f.vmm.enable_msix(&[fd.as_fd()]).unwrap();
    let (journal, irqs) = (f.journal.clone(), f.irqs.clone());
    journal.take();
    f.close();
    let left = [Seen::Reset, Seen::Unmap { start: 0, len: u64::MAX }, Seen::Memory { bytes: 0 }, Seen::Irqs];
    assert_eq!(journal.take(), left);
    assert_eq!((irqs.mode(), irqs.raise(0)), (IrqMode::Off, false));
}

#[test]
fn a_session_can_be_stopped_while_it_waits() {
    let f = Fixture::start();
    f.handle.stop();
    assert_eq!(f.session.join().unwrap().to_string(), "stopped");
}

#[test]
fn a_spinning_session_answers_and_sleeps_again() {
    let mut f = Fixture::spinning(Duration::from_micros(200));
    for value in 0..500 {
        f.vmm.write_u32(2, 0x100, value).unwrap();
        assert_eq!(f.vmm.read_u32(2, 0x100).unwrap(), value);
    }
    std::thread::sleep(Duration::from_millis(20));
    f.assert_alive();
    assert_eq!(f.close(), "the peer closed the connection");
}

#[test]
fn a_thousand_accesses() {
    let mut f = Fixture::start();
    for value in 0..500 {
        f.vmm.write_u32(2, 0x100, value).unwrap();
        assert_eq!(f.vmm.read_u32(2, 0x100).unwrap(), value);
    }
    assert_eq!((f.counted("messages"), f.counted("errors")), (1000, 0));
}
