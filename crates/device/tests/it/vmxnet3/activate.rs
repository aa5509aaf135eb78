//! ACTIVATE: what is accepted because drivers do it, what is refused because none may.

use vmlane_device::pci::PciDevice;
use vmlane_device::vmxnet3::{Profile, RefusedActivation, RingName};
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, frame, receive};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RxShape, TxRequest};
use vmlane_wire::vmxnet3::regs::Command;
use vmlane_wire::vmxnet3::shared::{QUEUE_SIZE, at};

use super::linux;
use RefusedActivation as Refused;

type Edit = fn(&mut NicDriver);

/// A machine with up to 32 queues, and a driver that has allocated everything.
fn ready(spec: DriverSpec) -> (NicMachine, NicDriver) {
    let machine = NicMachine::new(|config| config.max_queues = 32);
    let driver = NicDriver::probe(&machine, spec);
    (machine, driver)
}

/// Activates what `edit` makes of an orderly driver.
fn attempt(spec: DriverSpec, edit: impl FnOnce(&mut NicDriver)) -> (u32, NicMachine) {
    let (machine, mut driver) = ready(spec);
    edit(&mut driver);
    let result = driver.try_activate(&machine);
    assert_eq!(result == 0, machine.frames.is_attached(), "never half active");
    (result, machine)
}

fn refusal(spec: DriverSpec, edit: impl FnOnce(&mut NicDriver)) -> Refused {
    let (result, machine) = attempt(spec, edit);
    assert_eq!((result, machine.count("refused_activations")), (1, 1));
    machine.handle.view().refused.expect("a reason")
}

fn accepted(spec: DriverSpec, edit: impl FnOnce(&mut NicDriver)) -> NicMachine {
    let (result, machine) = attempt(spec, edit);
    assert_eq!(result, 0, "{:?}", machine.handle.view().refused);
    machine
}

#[test]
fn without_a_shared_area_nothing_is_active() {
    let machine = NicMachine::new(|_| {});
    assert_eq!(machine.command(Command::Activate), 1);
    assert_eq!(machine.handle.view().refused, Some(Refused::NoSharedArea));
    let driver = NicDriver::probe(&machine, linux());
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(machine.handle.view().refused, None);
    machine.set_shared(0);
    assert_eq!(machine.command(Command::Activate), 1);
}

#[test]
fn without_bus_mastering_nothing_is_active() {
    let (machine, driver) = ready(linux());
    machine.set_bus_master(false);
    assert_eq!(driver.try_activate(&machine), 1);
    assert_eq!(machine.handle.view().refused, Some(Refused::NotBusMaster));
}

#[test]
fn the_shared_area_lies_in_memory() {
    let (machine, driver) = ready(linux());
    let [(low, low_len, _), (high, high_len, _)] = machine.ram.regions();
    let nowhere =
        [8, low - 8, low + low_len - 712, low + low_len, high - 8, high + high_len - 8, u64::MAX - 7];
    for addr in nowhere.into_iter().chain([driver.area + 4, driver.area + 1]) {
        machine.set_shared(addr);
        assert_eq!(machine.command(Command::Activate), 1, "{addr:#x}");
        assert_eq!(machine.handle.view().refused, Some(Refused::SharedArea { addr, len: 720 }));
    }
}

#[test]
fn the_magic_is_checked() {
    assert_eq!(refusal(linux(), |driver| driver.shared.magic.set(0)), Refused::Magic { found: 0 });
}

#[test]
fn queue_counts_are_limited_by_revision_and_by_the_nic() {
    let with = |revision, tx, rx| {
        move |edit: Edit| {
            let spec = DriverSpec { tx: 32, rx: small(), ..DriverSpec::linux(revision) };
            let (result, machine) = attempt(DriverSpec { tx_queues: tx, rx_queues: rx, ..spec }, edit);
            (result, machine.handle.view().refused)
        }
    };
    let none: Edit = |_| {};
    for (revision, tx, rx) in [(1, 8, 16), (4, 1, 16), (5, 8, 1), (6, 32, 32), (6, 9, 3)] {
        assert_eq!(with(revision, tx, rx)(none), (0, None), "{revision}: {tx}+{rx}");
    }
    let cases = [
        (1, 9, 1, Refused::TxQueues { count: 9, most: 8 }),
        (4, 1, 17, Refused::RxQueues { count: 17, most: 16 }),
        (6, 33, 1, Refused::TxQueues { count: 33, most: 32 }),
        (6, 1, 33, Refused::RxQueues { count: 33, most: 32 }),
        (6, 0, 1, Refused::TxQueues { count: 0, most: 32 }),
        (6, 1, 0, Refused::RxQueues { count: 0, most: 32 }),
    ];
    for (revision, tx, rx, expected) in cases {
        let (machine, mut driver) = ready(DriverSpec::linux(revision));
        (driver.shared.tx_queues, driver.shared.rx_queues) = (tx, rx);
        assert_eq!(driver.try_activate(&machine), 1);
        assert_eq!(machine.handle.view().refused, Some(expected));
    }
    let machine = NicMachine::new(|config| config.max_queues = 2);
    assert_eq!(machine.command(Command::GetMaxQueues), 0x0202);
    let driver = NicDriver::probe(&machine, linux().with_queues(3));
    assert_eq!(driver.try_activate(&machine), 1);
    let driver = NicDriver::probe(&machine, DriverSpec::linux(4).with_queues(3));
    assert_eq!(driver.try_activate(&machine), 0, "revision 4 cannot ask");
}

fn small() -> RxShape {
    RxShape { ring0: 4, ring1: 4, completions: 8, ..RxShape::linux(4) }
}

/// CVE-2013-4544: queue and interrupt counts were used as they came.
#[test]
fn cve_2013_4544_no_count_or_index_is_believed() {
    for value in [0, 9, 33, 65, 127, 255] {
        for edit in 0..6 {
            let (_, machine) = attempt(linux(), |driver| match edit {
                0 => driver.shared.tx_queues = value,
                1 => driver.shared.rx_queues = value,
                2 => driver.shared.interrupts.count = value,
                3 => driver.shared.interrupts.event = value,
                4 => driver.tx_descs[0].vector = value,
                _ => driver.rx_descs[0].vector = value,
            });
            machine.handle.set_link(false);
            machine.frames.with(|end| end.tick(std::time::Instant::now()));
        }
    }
}

#[test]
fn interrupt_indices_are_below_their_count() {
    let refused = |edit: Edit| refusal(linux(), edit);
    assert_eq!(
        refused(|driver| driver.shared.interrupts.count = 26),
        Refused::Interrupts { count: 26, most: 25 }
    );
    assert_eq!(
        refused(|driver| driver.shared.interrupts.count = 0),
        Refused::Interrupts { count: 0, most: 25 }
    );
    assert_eq!(
        refused(|driver| driver.shared.interrupts.event = 2),
        Refused::EventVector { index: 2, count: 2 }
    );
    let vector = Refused::Vector { queue: 0, index: 2, count: 2 };
    assert_eq!(refused(|driver| driver.tx_descs[0].vector = 2), vector);
    assert_eq!(refused(|driver| driver.rx_descs[0].vector = 2), vector);
}

/// FreeBSD gives transmit queues indices that it never connects.
#[test]
fn indices_beyond_the_connected_vectors_are_accepted() {
    let (machine, mut driver) = ready(linux());
    machine.lines.set_mode(vmlane_device::irq::IrqMode::Msix { vectors: 2 });
    driver.shared.interrupts.count = 25;
    driver.tx_descs[0].vector = 24;
    driver.open(&machine);
    assert!(deliver(&machine, &frame(60)));
    assert_eq!(machine.lines.raised(24), 0);
}

#[test]
fn the_extended_block_counts_with_many_queues() {
    let spec = DriverSpec { tx: 4, rx: small(), ..linux().with_queues(24) };
    let (machine, mut driver) = active(spec.clone());
    assert_eq!(driver.vectors(), 25);
    machine.handle.set_link(false);
    assert_eq!(machine.lines.raised(24), 1);
    driver.set_control(1);
    machine.handle.set_link(true);
    assert_eq!(machine.lines.raised(24), 1, "its own control word disables it");
    let count = |driver: &mut NicDriver, count| {
        if let Some(extended) = &mut driver.extended {
            extended.count = count;
        }
    };
    driver.shared.interrupts.count = 200;
    count(&mut driver, 65);
    assert_eq!(driver.try_activate(&machine), 0, "the other block is not examined");
    count(&mut driver, 66);
    assert_eq!(driver.try_activate(&machine), 1);
    assert_eq!(machine.handle.view().refused, Some(Refused::Interrupts { count: 66, most: 65 }));
}

/// What follows 720 bytes is not part of it, in a driver of revision 1 to 5.
#[test]
fn a_small_area_at_the_end_of_memory_is_enough_for_few_queues() {
    let (machine, mut driver) = ready(linux());
    let [(low, low_len, _), _] = machine.ram.regions();
    driver.area = low + low_len - 720;
    assert_eq!(driver.try_activate(&machine), 0);
    let (machine, mut driver) = ready(DriverSpec { tx: 4, rx: small(), ..linux().with_queues(9) });
    driver.area = low + low_len - 720;
    driver.extended = None;
    assert_eq!(driver.try_activate(&machine), 1);
    assert_eq!(
        machine.handle.view().refused,
        Some(Refused::SharedArea { addr: low + low_len - 720, len: 800 })
    );
}

#[test]
fn a_driver_that_chose_no_revision_has_no_extended_block() {
    let machine = NicMachine::new(|config| config.max_queues = 32);
    let spec = DriverSpec { tx: 4, rx: small(), ..linux() };
    let driver = NicDriver::allocate(&machine, spec.clone().with_queues(9));
    assert_eq!(driver.try_activate(&machine), 1);
    let driver = NicDriver::allocate(&machine, spec.with_queues(8));
    assert_eq!(driver.try_activate(&machine), 0);
}

#[test]
fn the_mtu_is_in_range() {
    let with = |revision, mtu: u32| {
        attempt(DriverSpec { mtu, ..DriverSpec::linux(revision) }, |_| {}).1.handle.view().refused
    };
    for (revision, mtu) in [(1, 60), (1, 9000), (6, 9190), (3, 1522)] {
        assert_eq!(with(revision, mtu), None);
    }
    for (revision, mtu, most) in [(1, 59, 9000), (5, 9001, 9000), (6, 9191, 9190), (6, u32::MAX, 9190)] {
        assert_eq!(with(revision, mtu), Some(Refused::Mtu { mtu, most }));
    }
}

#[test]
fn the_queue_table_is_aligned_and_in_memory() {
    let machine = NicMachine::new(|_| {});
    let [(low, low_len, _), _] = machine.ram.regions();
    let driver = NicDriver::probe(&machine, linux());
    for addr in [0, driver.table + 64, low + low_len - 256, u64::MAX - 127, low - 128] {
        let mut driver = NicDriver::probe(&machine, linux());
        driver.shared.queue_table.set(addr);
        assert_eq!(driver.try_activate(&machine), 1);
        assert_eq!(machine.handle.view().refused, Some(Refused::QueueTable { addr, len: 2 * QUEUE_SIZE }));
    }
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    use vmlane_mem::{MapRequest, MemoryMap, memfd};
    let with_read_only = |edit: fn(&mut NicDriver, u64)| {
        let (machine, mut driver) = ready(linux());
        let fd = memfd("rom", 1 << 16).unwrap();
        let guest = 0x10_0000_0000;
        let request = MapRequest { guest, len: 1 << 16, offset: 0, fd, writable: false };
        let map: MemoryMap = machine.map().map(request).unwrap();
        machine.set_map(map);
        edit(&mut driver, guest);
        driver.try_activate(&machine)
    };
    assert_eq!(with_read_only(|driver, rom| driver.tx_descs[0].ring.set(rom)), 0, "only read");
    assert_eq!(with_read_only(|driver, rom| driver.rx_descs[0].rings[0].set(rom)), 0);
    assert_eq!(with_read_only(|driver, rom| driver.tx_descs[0].completions.set(rom)), 1);
    assert_eq!(with_read_only(|driver, rom| driver.rx_descs[0].completions.set(rom)), 1);
    assert_eq!(with_read_only(|driver, rom| driver.shared.queue_table.set(rom)), 1);
}

/// CVE-2021-20203: ring sizes overflowed what was computed from them.
#[test]
fn cve_2021_20203_ring_sizes_are_checked_before_use() {
    let size = |ring, size, most| Refused::RingSize { ring, queue: 0, size, most };
    for bad in [4097, 8193, 0x1000_0000, 0x1000_0001, u32::MAX] {
        assert_eq!(
            refusal(linux(), |driver| driver.tx_descs[0].ring_size.set(bad)),
            size(RingName::Tx, bad, 4096)
        );
        assert_eq!(
            refusal(linux(), |driver| driver.tx_descs[0].completions_size.set(bad)),
            size(RingName::TxCompletion, bad, 4096)
        );
        assert_eq!(
            refusal(linux(), |driver| driver.rx_descs[0].ring_sizes[0].set(bad)),
            size(RingName::Rx0, bad, 4096)
        );
        assert_eq!(
            refusal(linux(), |driver| driver.rx_descs[0].ring_sizes[1].set(bad)),
            size(RingName::Rx1, bad, 4096)
        );
    }
    for bad in [8193, u32::MAX] {
        assert_eq!(
            refusal(linux(), |driver| driver.rx_descs[0].completions_size.set(bad)),
            size(RingName::RxCompletion, bad, 8192)
        );
    }
}

#[test]
fn every_ring_but_the_second_has_descriptors() {
    let empty: [(Edit, RingName); 4] = [
        (|driver| driver.tx_descs[0].ring_size.set(0), RingName::Tx),
        (|driver| driver.tx_descs[0].completions_size.set(0), RingName::TxCompletion),
        (|driver| driver.rx_descs[0].ring_sizes[0].set(0), RingName::Rx0),
        (|driver| driver.rx_descs[0].completions_size.set(0), RingName::RxCompletion),
    ];
    for (edit, expected) in empty {
        let refused = refusal(linux(), edit);
        assert!(matches!(refused, Refused::RingSize { ring, size: 0, .. } if ring == expected), "{refused}");
    }
    accepted(linux(), |driver| driver.rx_descs[0].ring_sizes[1].set(0));
    accepted(linux(), |driver| driver.rx_descs[0].rings[1].set(0));
    accepted(linux(), |driver| driver.tx_descs[0].ring_size.set(1));
}

#[test]
fn rings_lie_in_one_piece_of_memory() {
    let [(low, low_len, _), _] = NicMachine::new(|_| {}).ram.regions();
    let bad = [0, 8, low + low_len - 256, u64::MAX - 15, u64::MAX - 511, low + 4];
    for addr in bad {
        let moves: [(Edit, RingName); 5] = [
            (|driver| driver.tx_descs[0].ring.set(driver.spare), RingName::Tx),
            (|driver| driver.tx_descs[0].completions.set(driver.spare), RingName::TxCompletion),
            (|driver| driver.rx_descs[0].rings[0].set(driver.spare), RingName::Rx0),
            (|driver| driver.rx_descs[0].rings[1].set(driver.spare), RingName::Rx1),
            (|driver| driver.rx_descs[0].completions.set(driver.spare), RingName::RxCompletion),
        ];
        for (edit, expected) in moves {
            if addr == 0 && expected == RingName::Rx1 {
                continue;
            }
            let refused = refusal(linux(), |driver| {
                driver.spare = addr;
                edit(driver);
            });
            let Refused::RingMemory { ring, addr: named, .. } = refused else { panic!("{refused}") };
            assert_eq!((ring, named), (expected, addr));
        }
    }
}

#[test]
fn overlapping_rings_only_hurt_their_guest() {
    accepted(linux(), |driver| {
        let ring = driver.tx_descs[0].ring;
        driver.tx_descs[0].completions = ring;
        driver.rx_descs[0].rings = [ring; 2];
        driver.rx_descs[0].completions.set(driver.area);
    });
}

#[test]
fn a_data_ring_is_used_if_it_can_be() {
    let spec = |revision| {
        let rx = RxShape { data: 128, ..RxShape::linux(64) };
        DriverSpec { rx, ..DriverSpec::linux(revision) }
    };
    let uses = |revision, edit: Edit| {
        let (machine, mut driver) = ready(spec(revision));
        edit(&mut driver);
        driver.open(&machine);
        assert!(deliver(&machine, &frame(60)));
        receive(&mut driver).expect("a packet").data_ring
    };
    assert!(uses(3, |_| {}));
    assert!(!uses(2, |_| {}), "not before revision 3");
    for slot in [0, 32, 100, 2112, u16::MAX] {
        let (machine, mut driver) = ready(spec(6));
        driver.rx_descs[0].data_slot.set(slot);
        driver.open(&machine);
        assert!(deliver(&machine, &frame(60)));
        assert!(!receive(&mut driver).unwrap().data_ring, "{slot}");
    }
    assert!(!uses(6, |driver| driver.rx_descs[0].data_ring.set(0)));
    assert!(!uses(6, |driver| driver.rx_descs[0].data_ring.set(u64::MAX - 64)));
}

#[test]
fn a_transmit_data_ring_is_ignored() {
    accepted(linux(), |driver| {
        driver.tx_descs[0].data_ring.set(u64::MAX);
        driver.tx_descs[0].data_ring_size.set(u32::MAX);
        driver.tx_descs[0].data_slot.set(u16::MAX);
    });
}

/// iPXE, OpenBSD and others: what they leave out or do differently.
#[test]
fn what_real_drivers_do_is_accepted() {
    accepted(DriverSpec { mtu: 1522, ..DriverSpec::linux(1) }, |driver| {
        driver.shared.queue_table_len.set(0);
        driver.shared.interrupts.count = 1;
        driver.shared.interrupts.event = 0;
        driver.rx_descs[0].rings[1].set(0);
        driver.rx_descs[0].ring_sizes[1].set(0);
    });
    accepted(DriverSpec { mtu: 9000, auto_mask: true, ..DriverSpec::linux(1) }, |driver| {
        driver.rx_descs[0].ring_sizes[0].set(63);
    });
    accepted(DriverSpec { tx_queues: 8, rx_queues: 1, tx: 32, ..DriverSpec::linux(1) }, |driver| {
        driver.shared.interrupts.count = 1;
        driver.shared.interrupts.event = 0;
        driver.tx_descs.iter_mut().for_each(|desc| desc.vector = 0);
        driver.rx_descs[0].vector = 0;
    });
}

/// CVE-2015-8567, CVE-2015-8568: each ACTIVATE leaked what the one before had allocated.
#[test]
fn cve_2015_8567_8568_activations_replace_each_other() {
    let (machine, driver) = ready(linux());
    let held = std::sync::Arc::strong_count(&machine.frames.stats);
    for _ in 0..1000 {
        assert_eq!(driver.try_activate(&machine), 0);
        machine.command(Command::Activate);
    }
    assert_eq!(machine.frames.calls()[..2], [2000, 1999]);
    assert_eq!(std::sync::Arc::strong_count(&machine.frames.stats), held + 1, "one data path is left");
    machine.command(Command::Quiesce);
    assert_eq!(std::sync::Arc::strong_count(&machine.frames.stats), held);
}

#[test]
fn a_second_activation_reads_memory_anew() {
    let (machine, mut driver) = active(linux());
    driver.shared.mtu.set(9000);
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(machine.handle.view().mtu, 9000);
    driver.shared.magic.set(1);
    driver.store(&machine);
    assert_eq!(machine.command(Command::Activate), 1);
    assert!(!machine.frames.is_attached(), "the refused one ended the one before");
}

#[test]
fn refusals_are_counted_and_named() {
    let (machine, mut driver) = ready(linux());
    driver.shared.mtu.set(77777);
    for _ in 0..10_000 {
        driver.try_activate(&machine);
    }
    assert_eq!(machine.count("refused_activations"), 10_000);
    let text = machine.handle.view().refused.expect("a reason").to_string();
    assert_eq!(text, "mtu is 77777: between 60 and 9190 are possible");
}

#[test]
fn stop_marks_that_a_driver_presets_are_taken_off() {
    let (machine, driver) = ready(linux());
    driver.store(&machine);
    machine.ram.write(driver.table + at::STOPPED as u64, &[1, 0, 0, 0, 9, 9, 9, 9]);
    machine.set_shared(driver.area);
    assert_eq!(machine.command(Command::Activate), 0);
    assert_eq!((driver.queue_word(0, at::STOPPED), driver.queue_word(0, at::ERROR)), (0, 0));
}

/// Firmware leaves its NIC active; the driver of the system begins with its revision.
#[test]
fn a_new_driver_takes_over_from_firmware() {
    let (machine, firmware) = active(DriverSpec { mtu: 1522, ..DriverSpec::linux(1) });
    let mut driver = NicDriver::probe(&machine, linux());
    assert!(!machine.frames.is_attached());
    driver.open(&machine);
    assert!(deliver(&machine, &frame(100)));
    assert!(receive(&mut driver).is_some());
    drop(firmware);
}

/// Linux resumes without a word about its revision.
#[test]
fn a_resumed_driver_finds_its_revision() {
    let spec = DriverSpec { tx: 4, rx: small(), ..linux().with_queues(9) };
    let (machine, driver) = active(spec);
    machine.set_bus_master(false);
    machine.device.lock().reset();
    machine.set_bus_master(true);
    machine.command(Command::Quiesce);
    machine.command(Command::Reset);
    assert_eq!(driver.try_activate(&machine), 0, "{:?}", machine.handle.view().refused);
    assert_eq!(machine.handle.view().rx_queues, 9);
}

/// The older class of NIC has no more than 150 buffers in use at once.
#[test]
fn the_older_class_uses_a_part_of_its_ring() {
    let machine = NicMachine::with_profile(Profile::Vmxnet2Class);
    let mut driver =
        NicDriver::probe(&machine, DriverSpec { rx: RxShape::linux(256), ..DriverSpec::linux(1) });
    driver.open(&machine);
    driver.rx[0].reposts = false;
    let machine = &machine;
    let delivered =
        (0..256).take_while(|_| vmlane_guestsim::nic::session::try_deliver(machine, &frame(60)).is_ok());
    assert_eq!(delivered.count(), 150);
}

/// A port has an MTU of its own, whatever its guest believes.
#[test]
fn the_port_carries_no_more_than_its_own_mtu() {
    let capabilities = |port: u16| {
        let machine = NicMachine::new(|config| config.mtu = port);
        let mut driver = NicDriver::probe(&machine, DriverSpec { mtu: 9000, ..linux() });
        driver.open(&machine);
        for len in [1514, 1600, 9014] {
            assert!(driver.tx[0].send(&frame(len), &[], &TxRequest::NONE));
        }
        let in_flight = machine.frames.with(|end| std::iter::from_fn(|| end.fetch_one()).count());
        let capabilities = machine.frames.with(|end| end.capabilities().frame);
        (in_flight.expect("attached"), capabilities.expect("attached"))
    };
    assert_eq!(capabilities(9190), (3, 9014));
    assert_eq!(capabilities(1500), (1, 1514));
}
