//! Registers of a VMXNET3 NIC: what is there, what is harmless, who owns which words.

use vmlane_device::irq::IrqMode;
use vmlane_device::pci::{AccessError, CONFIG_REGION, IrqCounts, PciDevice, REGIONS};
use vmlane_device::vmxnet3::{CreateError, NicConfig, NicView, Profile, Vmxnet3Device};
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, frame, receive};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, TxRequest};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{Command, PageReg, Reg, event};
use vmlane_wire::vmxnet3::shared::at;

#[test]
fn a_linux_driver_opens_sends_receives_and_closes() {
    let machine = NicMachine::new(|_| {});
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
    driver.open(&machine);
    assert!(driver.tx[0].send(&frame(60), &[], &TxRequest::NONE));
    let len = machine.frames.with(|end| {
        let token = end.fetch_one().expect("a frame");
        let len = end.frame(token).len();
        end.finish(&[token]);
        end.flush(std::time::Instant::now());
        len
    });
    assert_eq!(len, Some(60));
    assert_eq!(driver.tx[0].reap(), 1);
    assert!(deliver(&machine, &frame(200)));
    assert_eq!(receive(&mut driver).map(|received| received.bytes), Some(frame(200)));
    assert_eq!(machine.lines.raised(0), 1);
    driver.close(&machine);
    assert!(!machine.frames.is_attached());
    driver = NicDriver::probe(&machine, DriverSpec::linux(4));
    driver.open(&machine);
    assert!(deliver(&machine, &frame(60)));
}

#[test]
fn the_function_resembles_the_real_one() {
    let machine = NicMachine::new(|_| {});
    let config = |offset| machine.read32(CONFIG_REGION, offset);
    assert_eq!(config(0), 0x07b0_15ad);
    assert_eq!(config(8), 0x0200_0001);
    assert_eq!(config(0x2c), 0x07b0_15ad);
    assert_eq!(config(0x3c) >> 8 & 0xff, 1, "INTA");
    for (bar, size) in [(0x10, 0x2000u32), (0x14, 0x1000), (0x18, 0x2000)] {
        machine.write32(CONFIG_REGION, bar, u32::MAX);
        assert_eq!(config(bar), !(size - 1), "32-bit memory");
    }
    assert_eq!((config(0x84) & 0xff, config(0x9c) & 0xff), (0x05, 0x11), "MSI and MSI-X");
    assert_eq!(config(0x9c) >> 16 & 0x7ff, 24, "25 vectors");
    assert_eq!((config(0xa0), config(0xa4)), (2, 0x1002), "table and pending bits in BAR 2");
    let device = machine.device.lock();
    let sizes: Vec<u64> = (0..REGIONS).map(|index| device.region(index).size).collect();
    assert_eq!(sizes, [0x2000, 0x1000, 0x2000, 0, 0, 0, 0, 256]);
    let mappable: Vec<bool> = (0..REGIONS).map(|index| device.region(index).mmap.is_some()).collect();
    assert_eq!(mappable, [true, false, false, false, false, false, false, false]);
    assert_eq!(device.irq_counts(), IrqCounts { intx: 1, msi: 1, msix: 25 });
}

#[test]
fn the_configuration_decides_what_is_offered() {
    let trapped = NicMachine::new(|config| config.trapped = true);
    assert!(trapped.page().is_none());
    let counts = |machine: &NicMachine| machine.device.lock().irq_counts().msix;
    assert_eq!(counts(&NicMachine::with_profile(Profile::Vmxnet2Class)), 0);
    assert_eq!(counts(&NicMachine::new(|config| config.max_queues = 9)), 65);
    let old = NicMachine::with_profile(Profile::Vmxnet2Class);
    assert_eq!(old.read32(CONFIG_REGION, 0x84) & 0xffff, 0x05, "MSI is the last capability");
    assert_eq!(old.command(Command::GetInterruptConfig), 2);
    assert_eq!(old.command(Command::GetLink), 1000 << 16 | 1);
    for profile in Profile::ALL {
        assert_eq!(profile.name().parse(), Ok(profile));
        let offered = NicMachine::with_profile(profile).read(Reg::Revision);
        assert_eq!(offered, (1 << profile.revision()) - 1);
    }
    assert!("vmxnet4".parse::<Profile>().unwrap_err().to_string().contains("vmxnet2-class"));
}

#[test]
fn a_nic_that_cannot_be_is_not_created() {
    let create = |edit: fn(&mut NicConfig)| {
        let mut config = NicConfig::new(Mac([2, 0, 0, 0, 0, 1]));
        edit(&mut config);
        let frames = std::sync::Arc::new(vmlane_guestsim::nic::InlineFrames::default());
        let irqs = std::sync::Arc::new(vmlane_device::irq::NoInterrupts);
        Vmxnet3Device::new(config, frames, vmlane_port::PortId(7), irqs).map(|_| ())
    };
    assert!(matches!(create(|config| config.mac = Mac::BROADCAST), Err(CreateError::Mac(_))));
    assert!(matches!(create(|config| config.mac = Mac::default()), Err(CreateError::Mac(_))));
    assert!(matches!(create(|config| config.max_queues = 0), Err(CreateError::Queues(0))));
    assert!(matches!(create(|config| config.max_queues = 33), Err(CreateError::Queues(33))));
    assert!(create(|config| config.max_queues = 32).is_ok());
}

#[test]
fn accesses_of_any_kind_are_answered() {
    let machine = NicMachine::new(|_| {});
    let mut device = machine.device.lock();
    for region in 0..3 {
        let end = device.region(region).size;
        for len in [1usize, 2, 3, 4, 8, 16] {
            for offset in (0..end - 16).step_by(37) {
                device.read(region, offset, &mut vec![0; len]).unwrap();
                device.write(region, offset, &vec![0xff; len], false).unwrap();
            }
            let beyond = device.read(region, end - len as u64 + 1, &mut vec![0; len]);
            let expected =
                AccessError::OutOfRange { region: region as u32, offset: end - len as u64 + 1, len };
            assert_eq!(beyond, Err(expected));
            assert!(device.write(region, u64::MAX, &vec![0; len], false).is_err());
        }
    }
    for region in 3..7 {
        assert!(device.read(region, 0, &mut [0; 4]).is_err());
    }
    drop(device);
    assert_eq!(machine.read32(1, 0xf00), 0);
    assert_eq!(machine.read32(1, 0x24), 0);
    assert!(machine.count("register_holes") > 0);
}

#[test]
fn a_wide_access_is_two() {
    let machine = NicMachine::new(|_| {});
    machine.device.lock().write(1, Reg::MacLow.offset(), &[2, 4, 6, 8, 9, 9, 9, 9], false).unwrap();
    machine.write(Reg::MacHigh, 0x0c0a);
    let mut wide = [0; 8];
    machine.device.lock().read(1, Reg::MacLow.offset(), &mut wide).unwrap();
    assert_eq!(wide, [2, 4, 6, 8, 0, 0, 0, 0]);
}

#[test]
fn a_revision_is_chosen_by_one_bit_and_stays() {
    let machine = NicMachine::new(|_| {});
    let chosen = || machine.handle.view().revision;
    assert_eq!(chosen(), None);
    for bad in [0, 3, 1 << 7, u32::MAX] {
        machine.write(Reg::Revision, bad);
    }
    assert_eq!((chosen(), machine.count("bad_values")), (None, 4));
    machine.write(Reg::Revision, 1 << 5);
    machine.command(Command::Reset);
    machine.device.lock().reset();
    assert_eq!(chosen(), Some(6), "a driver that resumes does not choose again");
    assert_eq!(machine.read(Reg::Revision), 0x7f, "the offer stays");
}

#[test]
fn the_runtime_address_stays_until_the_function_is_reset() {
    let (machine, mut driver) = active(DriverSpec::linux(6));
    let permanent = (machine.read(Reg::MacLow), machine.read(Reg::MacHigh));
    assert_eq!(permanent, (0x0000_5452, 0x0300));
    machine.write(Reg::MacLow, 0x3322_1102);
    assert_eq!(machine.read(Reg::MacLow), permanent.0, "the high half commits");
    machine.write(Reg::MacHigh, 0xffff_5544);
    let runtime = Mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    let filter = || machine.frames.with(|end| end.filter().clone()).map(|filter| filter.mac);
    assert_eq!((filter(), machine.handle.view().mac), (Some(runtime), runtime));
    machine.write(Reg::MacLow, 0x0000_0001);
    machine.write(Reg::MacHigh, 0);
    assert_eq!(filter(), Some(runtime), "a group address is no station's own");
    machine.command(Command::Quiesce);
    machine.command(Command::Reset);
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(filter(), Some(runtime));
    assert_eq!((machine.read(Reg::MacLow), machine.read(Reg::MacHigh)), (0x3322_1102, 0x5544));
    let address =
        || (machine.command(Command::GetPermanentMacLow), machine.command(Command::GetPermanentMacHigh));
    assert_eq!(address(), permanent);
    machine.device.lock().reset();
    assert_eq!((machine.read(Reg::MacLow), machine.read(Reg::MacHigh)), permanent);
    driver.close(&machine);
}

#[test]
fn events_are_the_same_word_in_memory_and_in_the_register() {
    let machine = NicMachine::new(|_| {});
    assert_eq!(machine.read(Reg::Events), 0);
    machine.write(Reg::Events, u32::MAX);
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(3));
    driver.open(&machine);
    machine.handle.set_link(false);
    assert_eq!((machine.read(Reg::Events), driver.area_word(at::EVENTS)), (event::LINK, event::LINK));
    assert_eq!(machine.lines.raised(1), 1, "events have the last index");
    machine.write(Reg::Events, event::TX_QUEUE);
    assert_eq!(driver.area_word(at::EVENTS), event::LINK);
    machine.write(Reg::Events, event::LINK);
    assert_eq!((machine.read(Reg::Events), driver.area_word(at::EVENTS)), (0, 0));
    driver.set_area_word(at::EVENTS, 8);
    driver.close(&machine);
    assert_eq!(machine.read(Reg::Events), 8, "a driver may read it while its NIC is quiesced");
    machine.write(Reg::Events, 8);
    assert_eq!(driver.area_word(at::EVENTS), 0);
}

#[test]
fn an_operator_sets_the_link() {
    let (machine, mut driver) = active(DriverSpec::linux(6));
    machine.handle.set_link(true);
    assert_eq!((machine.count("link_changes"), driver.area_word(at::EVENTS)), (0, 0), "it was up");
    assert_eq!(machine.command(Command::GetLink), 10_000 << 16 | 1);
    machine.handle.set_link(false);
    assert_eq!(machine.command(Command::GetLink), 10_000 << 16);
    driver.close(&machine);
    driver.set_area_word(at::EVENTS, 0);
    machine.handle.set_link(true);
    assert_eq!(driver.area_word(at::EVENTS), 0, "a quiesced NIC reports it by GET_LINK");
    assert_eq!(machine.command(Command::GetLink) & 1, 1);
}

#[test]
fn an_event_under_a_mask_fires_when_it_is_taken_off() {
    let (machine, driver) = active(DriverSpec::linux(6));
    machine.write_page(PageReg::Mask(1), 1);
    machine.handle.set_link(false);
    assert_eq!(machine.lines.raised(1), 0);
    machine.write_page(PageReg::Mask(0), 0);
    assert_eq!(machine.lines.raised(1), 0);
    machine.write_page(PageReg::Mask(1), 0);
    assert_eq!(machine.lines.raised(1), 1);
    driver.set_control(1);
    machine.handle.set_link(true);
    assert_eq!(machine.lines.raised(1), 1, "nothing fires while all is disabled");
    driver.set_control(0);
    machine.write_page(PageReg::Mask(1), 0);
    assert_eq!(machine.lines.raised(1), 2);
}

#[test]
fn the_page_is_one_whether_it_is_mapped_or_trapped() {
    let (machine, _driver) = active(DriverSpec::linux(6));
    let page = machine.page().expect("mappable");
    assert_eq!(page.load_u32(0), 0, "unmasked by a trapped write");
    page.store_u32(0x28, 0);
    assert_eq!(machine.read32(0, 0x28), 0);
    page.store_u32(8, 1);
    machine.handle.set_link(false);
    assert_eq!(machine.lines.raised(1), 0, "masked through the mapping");
    page.store_u32(8, 0);
    machine.frames.with(|end| end.tick(std::time::Instant::now()));
    assert_eq!(machine.lines.raised(1), 1, "found by polling");
    machine.write_page(PageReg::TxProducer(3), 77);
    assert_eq!(page.load_u32(0x618), 77);
}

#[test]
fn a_reset_masks_every_index() {
    let (machine, _driver) = active(DriverSpec::linux(6));
    machine.command(Command::Reset);
    let masks = (0..65).map(|index| machine.read32(0, PageReg::Mask(index).offset()));
    assert!(masks.into_iter().all(|mask| mask == 1));
}

#[test]
fn doorbells_wake_the_worker_of_an_active_nic() {
    let (machine, mut driver) = active(DriverSpec::linux(6));
    let kicks = || machine.frames.calls()[3];
    let before = kicks();
    for reg in [PageReg::TxProducer(0), PageReg::RxProducer(0), PageReg::RxProducer2(0), PageReg::Mask(0)] {
        machine.write_page(reg, 0);
    }
    assert_eq!(kicks(), before + 4);
    driver.close(&machine);
    let before = kicks();
    machine.write_page(PageReg::TxProducer(0), 1);
    assert_eq!(kicks(), before);
}

/// CVE-2015-8745: a read of a mask register aborted.
#[test]
fn cve_2015_8745_every_mask_can_be_read() {
    let machine = NicMachine::new(|_| {});
    for offset in (0..0x1000).step_by(4) {
        machine.read32(0, offset);
        machine.read32(1, offset);
    }
}

/// CVE-2016-6833: a doorbell of an inactive NIC used freed memory.
#[test]
fn cve_2016_6833_doorbells_of_an_inactive_nic_are_harmless() {
    let machine = NicMachine::new(|_| {});
    let ring = || (0..0x1000).step_by(8).for_each(|offset| machine.write32(0, offset, u32::MAX));
    ring();
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
    driver.open(&machine);
    ring();
    driver.close(&machine);
    ring();
    machine.command(Command::Reset);
    ring();
    assert_eq!(machine.frames.calls()[0], 1);
}

/// A doorbell of queue `count` was taken for one of a queue that exists.
#[test]
fn doorbells_of_queues_that_do_not_exist_are_harmless() {
    let (machine, _driver) = active(DriverSpec::linux(6));
    for queue in 0..64 {
        machine.write_page(PageReg::TxProducer(queue), u32::MAX);
        machine.write_page(PageReg::RxProducer(queue), u32::MAX);
        machine.write_page(PageReg::RxProducer2(queue), u32::MAX);
    }
    assert!(deliver(&machine, &frame(60)));
}

#[test]
fn the_line_interrupt_is_released_by_reading_its_cause() {
    let machine = NicMachine::new(|_| {});
    machine.lines.set_mode(IrqMode::Intx);
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
    driver.shared.interrupts.count = 1;
    driver.shared.interrupts.event = 0;
    driver.open(&machine);
    assert_eq!(machine.read(Reg::InterruptCause), 0, "not ours");
    machine.handle.set_link(false);
    assert_eq!(machine.lines.raised(0), 1);
    machine.device.lock().irqs_changed();
    assert_eq!(machine.lines.raised(0), 2, "unmasked by the VMM while it is asserted");
    assert_eq!((machine.read(Reg::InterruptCause), machine.read(Reg::InterruptCause)), (1, 0));
    machine.device.lock().irqs_changed();
    assert_eq!(machine.lines.raised(0), 2);
    machine.handle.set_link(true);
    driver.close(&machine);
    assert_eq!(machine.read(Reg::InterruptCause), 0, "QUIESCE releases the line");
}

#[test]
fn a_posted_command_is_carried_out_and_counted() {
    let (machine, _driver) = active(DriverSpec::linux(6));
    let code = Command::Quiesce.code().to_le_bytes();
    machine.device.lock().write(1, Reg::Command.offset(), &code, true).unwrap();
    assert_eq!(machine.count("posted_commands"), 1);
    assert!(!machine.frames.is_attached());
    machine.device.lock().write(1, Reg::MacLow.offset(), &code, true).unwrap();
    assert_eq!(machine.count("posted_commands"), 1, "only commands matter");
}

#[test]
fn whatever_begins_anew_ends_what_was_active() {
    type Ending = fn(&NicMachine);
    let endings: [(&str, Ending); 7] = [
        ("a revision", |machine| machine.write(Reg::Revision, 1)),
        ("DSAL", |machine| machine.write(Reg::SharedLow, 0)),
        ("DSAH", |machine| machine.write(Reg::SharedHigh, 0)),
        ("QUIESCE", |machine| machine.write(Reg::Command, Command::Quiesce.code())),
        ("RESET", |machine| machine.write(Reg::Command, Command::Reset.code())),
        ("function reset", |machine| machine.device.lock().reset()),
        ("bus mastering off", |machine| machine.set_bus_master(false)),
    ];
    for (name, end) in endings {
        let (machine, _driver) = active(DriverSpec::linux(6));
        assert!(machine.handle.view().active);
        end(&machine);
        assert!(!machine.frames.is_attached(), "{name}");
        assert!(!machine.handle.view().active, "{name}");
        assert_eq!(machine.count("quiesces"), 1, "{name}");
    }
}

#[test]
fn the_end_of_a_session_ends_what_was_active() {
    let (machine, _driver) = active(DriverSpec::linux(6));
    let frames = machine.frames.clone();
    drop(machine);
    assert!(!frames.is_attached());
}

#[test]
fn an_operator_sees_what_the_guest_made_of_its_nic() {
    let (machine, _driver) = active(DriverSpec::linux(6).with_queues(2));
    let expected = NicView {
        active: true,
        revision: Some(6),
        mac: machine.mac,
        mtu: 1500,
        tx_queues: 2,
        rx_queues: 2,
        refused: None,
    };
    assert_eq!(machine.handle.view(), expected);
}

#[test]
fn memory_taken_away_stops_the_nic_and_notifies_its_driver() {
    let (machine, driver) = active(DriverSpec::linux(6));
    let (start, len, _) = machine.ram.regions()[0];
    machine.unmap(start + len, 1 << 20);
    assert!(machine.frames.is_attached(), "nothing was there");
    machine.unmap(start, len);
    assert!(!machine.frames.is_attached());
    assert_eq!(machine.count("lost_memory"), 1);
    assert_eq!(driver.area_word(at::EVENTS), event::TX_QUEUE | event::RX_QUEUE);
    assert_eq!((driver.queue_word(0, at::STOPPED), driver.queue_word(1, at::STOPPED)), (1, 1));
    assert_eq!(machine.lines.raised(1), 1);
}

#[test]
fn a_new_map_counts_from_the_next_activation_on() {
    let (machine, driver) = active(DriverSpec::linux(6));
    machine.set_map(vmlane_mem::MemoryMap::default());
    assert!(deliver(&machine, &frame(60)), "the map of the activation stays in use");
    assert_eq!(driver.try_activate(&machine), 1);
    assert!(!machine.frames.is_attached());
}

#[test]
fn capability_words_grant_what_is_offered() {
    let machine = NicMachine::with_profile(Profile::Full);
    machine.write(Reg::Revision, 1 << 6);
    let offered = machine.read(Reg::Capability(0));
    assert_eq!(offered, 1 << 16 | 0b1111_1101);
    assert_eq!(machine.command(Command::GetMaxCapabilities), offered);
    assert_eq!(machine.read(Reg::PassThrough(0)), 1 << 31, "no pass-through");
    assert_eq!(machine.command(Command::GetCapabilities), 0);
    machine.write(Reg::Capability(0), u32::MAX);
    assert_eq!(machine.command(Command::GetCapabilities), offered);
    machine.write(Reg::Capability(0), 1 << 5 | 1 << 17);
    assert_eq!(machine.command(Command::GetCapabilities), 1 << 5, "receive completions come in order");
    assert_eq!(machine.read(Reg::Capability(0)), offered, "the offer is read, whatever was granted");
    machine.write(Reg::Revision, 1 << 6);
    assert_eq!(machine.command(Command::GetCapabilities), 0, "another driver has wished for nothing yet");
    for word in 1..8 {
        machine.write(Reg::Capability(word), u32::MAX);
        assert_eq!(machine.read(Reg::Capability(word)), 0);
    }
    let earlier = NicMachine::with_profile(Profile::Vmxnet3);
    assert_eq!((earlier.read(Reg::Capability(0)), earlier.read(Reg::PassThrough(0))), (0, 0));
}
