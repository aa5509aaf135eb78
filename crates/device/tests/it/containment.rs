//! Devices whose code failed, and devices out of service: what their guests see.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use vmlane_device::pci::{CONFIG_REGION, PciDevice};
use vmlane_device::vmci::{Limits, VmciDevice};
use vmlane_faults::{FaultyDevice, FaultyFrames, FaultyStreams, Trigger};
use vmlane_guestsim::memory_port::Wire;
use vmlane_guestsim::nic::session::{active, deliver, frame, receive};
use vmlane_guestsim::nic::{DriverSpec, InlineFrames, NicDriver};
use vmlane_guestsim::{Lines, PairSpec, Path, Pattern, Placement, vm};
use vmlane_port::wrap::Fault;
use vmlane_port::{Frames, PortId, Ticked};
use vmlane_stream::Settings;
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmci::{Handle, MMIO_OFFSET, Reg, VmciError, call};
use vmlane_wire::vmxnet3::regs::{Command, Reg as NicReg, event};
use vmlane_wire::vmxnet3::shared::at;

use crate::vmci::{World, check_pattern, connect, rings, send_pattern};

const QUEUE_LOST: u32 = 0x8000_0006;

#[test]
fn a_driver_whose_port_failed_is_notified_and_starts_anew() {
    let (machine, mut driver) = active(DriverSpec::linux(6).with_queues(2));
    let raised = machine.lines.raised(u16::from(driver.vectors() - 1));
    machine.frames.with(|end| end.fail()).expect("attached");
    // As the switch does afterwards.
    machine.frames.detach(PortId(7));
    assert_eq!(driver.area_word(at::EVENTS), event::TX_QUEUE | event::RX_QUEUE);
    assert_eq!(machine.lines.raised(u16::from(driver.vectors() - 1)), raised + 1, "the event vector");
    assert_eq!(machine.command(Command::GetQueueStatus), 0);
    for queue in 0..4 {
        assert_eq!(
            (driver.queue_word(queue, at::STOPPED), driver.queue_word(queue, at::ERROR)),
            (1, QUEUE_LOST)
        );
    }
    machine.write(NicReg::Events, event::TX_QUEUE | event::RX_QUEUE);
    driver.close(&machine);
    driver = NicDriver::probe(&machine, driver.spec.clone());
    driver.open(&machine);
    assert!(deliver(&machine, &frame(60)));
    assert!(receive(&mut driver).is_some());
    assert_eq!(driver.queue_word(0, at::STOPPED), 0);
}

#[test]
fn a_wrapped_port_fails_once_and_only_while_it_is_attached() {
    let frames = Arc::new(InlineFrames::default());
    let faulty = FaultyFrames::new(frames.clone());
    assert!(!faulty.arm(Fault::Panic), "nothing is attached");
    let (_wire, port) = Wire::new(Mac([2, 0, 0, 0, 0, 1]));
    faulty.attach(PortId(7), port);
    assert!(faulty.arm(Fault::Panic));
    let tick = || catch_unwind(AssertUnwindSafe(|| frames.with(|end| end.tick(Instant::now()))));
    assert!(tick().is_err());
    assert_eq!(tick().ok().flatten(), Some(Ticked::default()), "once");
    faulty.detach(PortId(7));
    assert!(!faulty.arm(Fault::Panic) && !frames.is_attached());
}

#[test]
fn a_wrapped_device_carries_a_register_access_out_and_then_fails() {
    let world = World::new();
    let device = vm(3).device(&world.hypervisor, Lines::msix());
    let trigger = Arc::new(Trigger::default());
    let mut device = FaultyDevice::new(Box::new(device), trigger.clone());
    let imr = MMIO_OFFSET + Reg::Imr.offset();
    let mut write = |value: u32| {
        catch_unwind(AssertUnwindSafe(|| {
            device.write(1, imr, &value.to_le_bytes(), false).expect("a register")
        }))
    };
    write(1).expect("nothing is armed");
    trigger.arm(Fault::Panic);
    assert!(write(3).is_err());
    let mut read = [0; 4];
    device.read(1, imr, &mut read).expect("a register");
    assert_eq!(u32::from_le_bytes(read), 3);
    trigger.arm(Fault::Panic);
    device.read(CONFIG_REGION, 0, &mut read).expect("identity");
    assert!(catch_unwind(AssertUnwindSafe(|| device.read(1, imr, &mut read))).is_err());
}

#[test]
fn a_nic_out_of_service_refuses_to_be_opened_and_answers_everything() {
    let (machine, mut driver) = active(DriverSpec::linux(6));
    machine.handle.set_quarantined(true);
    assert_eq!(machine.read(NicReg::Revision), 0, "no revision that a driver knows");
    assert!(!machine.frames.is_attached(), "what was active is not");
    assert_eq!(machine.command(Command::GetLink), 0, "down");
    assert_eq!(machine.command(Command::Reset), 0);
    assert_eq!(driver.try_activate(&machine), 1);
    for offset in (0..0x1000).step_by(4) {
        for region in 0..2 {
            machine.write32(region, offset, u32::MAX);
            machine.read32(region, offset);
        }
    }
    assert!(!machine.frames.is_attached());
    machine.handle.set_quarantined(false);
    driver = NicDriver::probe(&machine, driver.spec.clone());
    driver.open(&machine);
    assert!(deliver(&machine, &frame(60)) && receive(&mut driver).is_some());
}

#[test]
fn a_vmci_device_out_of_service_answers_its_guest_and_does_nothing() {
    for path in Path::ALL {
        let world = World::new();
        let (machine, _peer) = (world.machine(3), world.machine(4));
        let mut driver = machine.probe(path);
        let handle = Handle::new(3, 2000);
        let spec = PairSpec { handle, peer: 4, flags: 0, produce: 8192, consume: 8192 };
        let _queues = driver.alloc(&spec, Placement::Scattered).expect("a queue pair");
        assert_eq!(world.view(3).queue_pairs, 1);
        world.hypervisor.set_quarantined(3, true);
        // A send that is not answered would keep the driver spinning for ever.
        assert_eq!(driver.call(call::GET_CONTEXT_ID, &[]), VmciError::Unavailable.code(), "{path:?}");
        assert_eq!((driver.read(Reg::Caps), driver.read(Reg::Status)), (0, 0));
        let view = world.view(3);
        assert_eq!((view.ready, view.queue_pairs, view.connections), (false, 0, 0));
        driver.write(Reg::Control, 2);
        assert!(!world.view(3).ready);
        world.hypervisor.set_quarantined(3, false);
        let mut again = machine.probe(path);
        assert_eq!(again.call(call::GET_CONTEXT_ID, &[]), 3);
        assert!(world.view(3).ready);
    }
}

/// A fault in a stream's turn ends that stream, at both ends; the worker and its other streams continue.
#[test]
fn a_fault_in_a_streams_turn_ends_that_stream_alone() {
    let mut faulty = None;
    let world = World::wrapped(Settings::default(), |workers| {
        faulty.insert(Arc::new(FaultyStreams::new(workers))).clone()
    });
    let faulty = faulty.expect("the world has asked for it");
    let [(_a, first), (_b, second)] = world.two(Path::Dma);
    let machine = world.machine(5);
    let third = machine.boot(Path::Dma);
    let (a, b) = connect(&first, &second, 5000, rings(65_536));
    let (c, d) = connect(&third, &second, 5001, rings(65_536));
    assert!(world.hypervisor.stream_owner(9).is_none(), "no such VM");
    faulty.arm(&world.hypervisor.stream_owner(3).expect("a VM with a device"), Fault::Panic);
    // The worker examines a reader's memory now and then while bytes wait there.
    for (guest, stream) in [(&first, &a), (&second, &b)] {
        wait_until("the end is reported", || {
            if a.peer_shutdown() == 0 && a.queues(|queues| queues.room()) > 0 {
                let _ = a.send(&[1]);
            }
            if b.peer_shutdown() == 0 && b.queues(|queues| queues.room()) > 0 {
                let _ = b.send(&[1]);
            }
            guest.service();
            stream.peer_shutdown() == 3
        });
    }
    assert_eq!(world.stats.panics.get(), 1);
    let pattern = Pattern::new(3);
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&c, pattern, 300_000, 9000));
        assert_eq!(check_pattern(&d, pattern, 7000), 300_000, "other streams of the worker");
    });
    drop((a, b));
    assert_eq!((world.view(3).queue_pairs, world.view(4).queue_pairs), (0, 1), "the other stream's");
    let (a, b) = connect(&first, &second, 5002, rings(65_536));
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, pattern, 100_000, 9000));
        assert_eq!(check_pattern(&b, pattern, 7000), 100_000, "new streams of the same VMs");
    });
}

#[test]
fn limits_change_under_a_running_device_and_a_vm_has_one_device() {
    let world = World::new();
    let machine = world.machine(3);
    let mut driver = machine.probe(Path::Dma);
    let device = |cid| VmciDevice::new(world.hypervisor.clone(), (cid, Limits::default()), Lines::msix());
    assert!(device(4).is_err(), "no such VM");
    assert!(device(3).is_err(), "it has one");
    // Fewer pairs from now on.
    let limits = Limits { queue_pairs: 1, ..Limits::default() };
    world.hypervisor.set_limits(3, limits);
    world.hypervisor.set_limits(77, limits);
    assert_eq!(world.bound(3, "queue_pairs").1, 1);
    let spec = |n| PairSpec { handle: Handle::new(3, n), peer: 3, flags: 0, produce: 4096, consume: 4096 };
    let pair = driver.alloc(&spec(2000), Placement::Scattered).expect("the one it may have");
    assert!(driver.alloc(&spec(2001), Placement::Scattered).is_err());
    assert_eq!(driver.detach(pair), 0);
    world.remove(3);
    assert!(world.hypervisor.vms().is_empty());
    // Its device is there still, and answers.
    assert!(driver.call(call::GET_CONTEXT_ID, &[]) != 0);
    world.machine(3);
}
