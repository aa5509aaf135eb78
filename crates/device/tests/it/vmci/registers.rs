//! Registers and interrupts: what a probe sees, and what a driver must never be left with.

use vmlane_device::irq::IrqMode;
use vmlane_device::pci::{CONFIG_REGION, IrqCounts, PciDevice};
use vmlane_guestsim::{Driver, Lines, Machine, PairSpec, Path, Placement, Registers, vm};
use vmlane_wire::vmci::{
    DMA_INLINE, DMA_LIST, DmaElement, DmaHeader, Handle, Reg, VmciError, call, datagram,
};
use zerocopy::IntoBytes;

use super::World;

const OFFER: u32 = 0x3c;
const INVALID_ARGS: i32 = VmciError::InvalidArgs as i32;

#[test]
fn a_probe_ends_with_the_capabilities_and_the_context_id() {
    for path in Path::ALL {
        let world = World::new();
        let mut driver = world.machine(3).probe(path);
        assert_eq!(driver.cid, 3);
        assert_eq!(driver.caps, if path == Path::Ports { 0x1c } else { OFFER });
        assert_eq!(
            driver.read(Reg::Caps),
            OFFER,
            "a driver that is loaded again reads the whole offer again"
        );
        assert!(world.view(3).ready);
    }
}

#[test]
fn the_function_matches_the_one_linux_knows() {
    let world = World::new();
    let machine = world.machine(3);
    let mut device = machine.device.lock();
    let sizes: Vec<u64> = (0..8).map(|index| device.region(index).size).collect();
    assert_eq!(sizes[..7], [64, 0x40000, 0, 0, 0, 0, 0]);
    assert_eq!(device.irq_counts(), IrqCounts { intx: 1, msi: 1, msix: 3 });
    let mut ids = [0; 4];
    device.read(CONFIG_REGION, 0, &mut ids).expect("the identity");
    assert_eq!(ids, [0xad, 0x15, 0x40, 0x07]);
}

#[test]
fn a_result_is_read_twice_and_no_more() {
    let world = World::new();
    let mut driver = world.machine(3).probe(Path::Ports);
    assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), 3);
    assert_eq!(driver.read(Reg::ResultLow) as i32, 3);
    assert_eq!(driver.read(Reg::ResultLow) as i32, INVALID_ARGS);
}

#[test]
fn a_send_that_linux_refuses_by_itself_does_not_find_an_older_success() {
    let world = World::new();
    let mut driver = world.machine(3).probe(Path::Dma);
    assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), 3);
    // Page numbers of more than one datagram: never sent, but the result is read nevertheless.
    let handle = Handle::new(3, 2000);
    let spec = PairSpec { handle, peer: 4, flags: 0, produce: 18 << 20, consume: 18 << 20 };
    assert_eq!(driver.alloc(&spec, Placement::Scattered).err(), Some(INVALID_ARGS));
    assert_eq!(world.view(3).queue_pairs, 0);
}

#[test]
fn a_send_buffer_that_makes_no_sense_is_answered_at_once() {
    let world = World::new();
    let machine = world.machine(3);
    let mut driver = machine.probe(Path::Dma);
    let nowhere = DmaElement { addr: 0xffff_ffff_ffff_fff0.into(), size: 0x100.into() };
    let huge = DmaElement { addr: (1 << 20).into(), size: u64::MAX.into() };
    let cases = [
        ("an unknown opcode", DmaHeader::new(1, 7, 24), None),
        ("more than a datagram", DmaHeader::new(1, DMA_INLINE, 69_633), None),
        ("more than anything", DmaHeader::new(1, DMA_INLINE, u32::MAX), None),
        ("less than a header", DmaHeader::new(1, DMA_INLINE, 23), None),
        ("nothing", DmaHeader::new(1, DMA_INLINE, 0), None),
        ("a list too long", DmaHeader::new(1, DMA_LIST, 19), None),
        ("an empty list", DmaHeader::new(1, DMA_LIST, 0), None),
        ("an address that wraps", DmaHeader::new(1, DMA_LIST, 1), Some(nowhere)),
        ("a size that wraps", DmaHeader::new(1, DMA_LIST, 1), Some(huge)),
    ];
    for (what, header, element) in cases {
        let (pages, _) = driver.send_buffer();
        pages.write(0, header.as_bytes());
        if let Some(element) = element {
            pages.write(24, element.as_bytes());
        }
        driver.start_send();
        assert_eq!(driver.read(Reg::ResultLow) as i32, INVALID_ARGS, "{what}");
    }
    assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), 3, "the next one works");
}

#[test]
fn a_datagram_may_lie_in_pieces() {
    let world = World::new();
    let machine = world.machine(3);
    let mut driver = machine.probe(Path::Dma);
    let bytes = datagram(Handle::new(0, call::GET_CONTEXT_ID), Handle::INVALID, &[]);
    let pieces = machine.ram.alloc(2, Placement::Scattered);
    machine.ram.write(pieces[0] + 100, &bytes[..10]);
    machine.ram.write(pieces[1], &bytes[10..]);
    let (pages, _) = driver.send_buffer();
    pages.write(0, DmaHeader::new(1, DMA_LIST, 2).as_bytes());
    let list = [
        DmaElement { addr: (pieces[0] + 100).into(), size: 10.into() },
        DmaElement { addr: pieces[1].into(), size: 14.into() },
    ];
    pages.write(24, list.as_bytes());
    driver.start_send();
    assert_eq!(driver.read(Reg::ResultLow), 3);
}

#[test]
fn a_receive_buffer_that_makes_no_sense_loses_nothing() {
    let world = World::new();
    let (machine, other) = (world.machine(3), world.machine(4));
    let (mut driver, mut sender) = (machine.probe(Path::Dma), other.probe(Path::Dma));
    assert_eq!(sender.send_to(Handle::new(3, 77), 5, b"kept"), 28);
    let page = machine.ram.alloc(1, Placement::Scattered)[0];
    for header in [DmaHeader::new(0, 9, 1), DmaHeader::new(0, DMA_LIST, 1), DmaHeader::new(0, DMA_LIST, 1000)]
    {
        machine.ram.write(page, header.as_bytes());
        machine.ram.write(page + 24, DmaElement { addr: 64.into(), size: 69_632.into() }.as_bytes());
        driver.write(Reg::DataInHigh, (page >> 32) as u32);
        driver.write(Reg::DataInLow, page as u32);
        let mut busy = [0; 4];
        machine.ram.read(page, &mut busy);
        assert_eq!(busy, [1, 0, 0, 0], "the vCPU that waits for it continues");
    }
    driver.write(Reg::DataInHigh, 1);
    assert_eq!(driver.await_datagrams()[0].payload, b"kept");
}

#[test]
fn registers_have_one_width() {
    let world = World::new();
    let machine = world.machine(3);
    let mut registers = machine.registers();
    let holes = || world.view(3).stats.register_holes.get();
    let mut byte = [0xff; 1];
    registers.read_bytes(0, Reg::Caps.offset(), &mut byte);
    assert_eq!((byte, holes()), ([0], 1));
    registers.write_bytes(0, Reg::Control.offset(), &[1, 0]);
    assert_eq!(registers.read32(0, 0x38), 0);
    assert_eq!(holes(), 3);
    let mut odd = [0; 7];
    registers.read_bytes(1, 0x2_0001, &mut odd);
    assert_eq!(holes(), 4);
}

fn arrive(world: &World, from: &mut Driver, to: u32) {
    assert_eq!(from.send_to(Handle::new(to, 77), 5, b"x"), 25);
    assert!(world.view(to).inbox_bytes > 0);
}

#[test]
fn an_interrupt_waits_until_it_is_wanted() {
    let world = World::new();
    let (machine, other) = (world.machine(3), world.machine(4));
    let (mut driver, mut sender) = (machine.probe(Path::Dma), other.probe(Path::Dma));
    driver.write(Reg::Imr, 0);
    arrive(&world, &mut sender, 3);
    assert_eq!(machine.lines.raised(0), 0);
    driver.write(Reg::Imr, 7);
    assert_eq!(machine.lines.raised(0), 1);
    assert_eq!(driver.await_datagrams().len(), 1);

    machine.lines.set_mode(IrqMode::Off);
    arrive(&world, &mut sender, 3);
    assert_eq!(machine.lines.raised(0), 1);
    machine.lines.set_mode(IrqMode::Msix { vectors: 3 });
    machine.device.lock().irqs_changed();
    assert_eq!(machine.lines.raised(0), 2);
    assert_eq!(driver.await_datagrams().len(), 1);
}

#[test]
fn several_datagrams_take_one_interrupt() {
    let world = World::new();
    let (machine, other) = (world.machine(3), world.machine(4));
    let (mut driver, mut sender) = (machine.probe(Path::Dma), other.probe(Path::Dma));
    for _ in 0..5 {
        arrive(&world, &mut sender, 3);
    }
    assert_eq!(machine.lines.raised(0), 1);
    assert_eq!(driver.await_datagrams().len(), 5);
}

#[test]
fn one_vector_for_everything_is_asked_for_its_cause() {
    for mode in [IrqMode::Msix { vectors: 1 }, IrqMode::Msi { vectors: 1 }, IrqMode::Intx] {
        let world = World::new();
        let machine = Machine::with(&world.hypervisor, vm(3), 64 << 20, Lines::new(mode));
        let (mut driver, mut sender) = (machine.probe(Path::Dma), world.machine(4).probe(Path::Dma));
        arrive(&world, &mut sender, 3);
        assert_eq!(driver.read(Reg::Status), 1);
        assert_eq!(driver.await_datagrams().len(), 1);
        assert_eq!((driver.read(Reg::Icr), driver.read(Reg::Status)), (0, 0), "reading acknowledged it");
    }
}

#[test]
fn only_a_posted_receive_is_announced_as_done() {
    for (path, announced) in [(Path::Dma, 0), (Path::DmaPosted, 2)] {
        let world = World::new();
        let machine = world.machine(3);
        let mut driver = machine.probe(path);
        assert_eq!((driver.receive(), driver.receive()), (vec![], vec![]));
        assert_eq!(machine.lines.raised(2), announced, "{path:?}");
    }
}
