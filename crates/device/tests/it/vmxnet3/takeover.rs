//! The daemon dies under a NIC and the next one restores it: rings, filters, masks, moderation; and what
//! it does with forged state.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use proptest::prelude::*;
use vmlane_device::pci::{CONFIG_REGION, PciDevice};
use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, frame, receive, try_deliver};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, Remains, TxRequest};
use vmlane_port::{Filter, Needs};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{Command, PageReg, Reg, event, rx_mode};
use vmlane_wire::vmxnet3::shared::{BlockRef, Coalesce, at};
use zerocopy::IntoBytes;

use super::linux;

fn replaced(machine: NicMachine) -> NicMachine {
    let (machine, resumed) = NicMachine::take_over(machine.die());
    resumed.expect("to be gone on with");
    machine
}

/// The same where the next daemon's configuration has another profile.
fn replaced_by(profile: Profile, machine: NicMachine) -> NicMachine {
    let mut remains = machine.die();
    remains.set_profile(profile);
    let (machine, resumed) = NicMachine::take_over(remains);
    resumed.expect("to be gone on with");
    machine
}

/// A frame that carries its number.
fn numbered(number: u32) -> Vec<u8> {
    let mut frame = frame(64 + number as usize % 1200);
    frame[20..24].copy_from_slice(&number.to_le_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[20..24].try_into().expect("four bytes"))
}

/// Takes what the guest has posted, at most `most`; finished or not.
fn fetch(machine: &NicMachine, most: usize, finish: bool) -> Vec<u32> {
    let fetched = machine.frames.with(|end| {
        let mut numbers = Vec::new();
        while numbers.len() < most
            && let Some(token) = end.fetch_one()
        {
            let in_flight = end.frame(token);
            let mut bytes = vec![0; in_flight.len()];
            in_flight.spans.read(0, &mut bytes);
            numbers.push(number(&bytes));
            if finish {
                end.finish(&[token]);
            }
        }
        end.flush(Instant::now());
        numbers
    });
    fetched.expect("something is attached")
}

fn send(driver: &mut NicDriver, number: u32) -> bool {
    driver.tx[0].send(&numbered(number), &[20, 30], &TxRequest::NONE)
}

#[test]
fn rings_go_on_lap_after_lap() {
    let (mut machine, mut driver) = active(linux());
    let (mut sent, mut arrived) = (0, Vec::new());
    for round in 0..200u32 {
        // Whatever the ring has room for, some of it taken by each daemon.
        while sent < 13 * (round + 1) && send(&mut driver, sent) {
            sent += 1;
        }
        arrived.extend(fetch(&machine, 5 + round as usize % 9, true));
        driver.tx[0].reap();
        for n in 0..round % 7 {
            assert!(deliver(&machine, &numbered(1000 * round + n)));
        }
        machine = replaced(machine);
        assert!(machine.frames.is_attached());
        for n in 0..round % 7 {
            let got = receive(&mut driver).expect("a frame that was delivered");
            assert_eq!(number(&got.bytes), 1000 * round + n);
        }
        assert!(receive(&mut driver).is_none());
    }
    while let numbers @ [_, ..] = &fetch(&machine, 100, true)[..] {
        arrived.extend(numbers);
    }
    driver.tx[0].reap();
    assert_eq!(driver.tx[0].outstanding(), 0, "each was completed, once and in order");
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
}

/// What was in flight and not completed is in flight again.
#[test]
fn frames_in_flight_are_sent_again() {
    let (machine, mut driver) = active(linux());
    for n in 0..10 {
        assert!(send(&mut driver, n));
    }
    assert_eq!(fetch(&machine, 4, true), [0, 1, 2, 3]);
    assert_eq!(fetch(&machine, 3, false), [4, 5, 6]);
    let machine = replaced(machine);
    driver.tx[0].reap();
    assert_eq!(driver.tx[0].outstanding(), 6);
    assert_eq!(fetch(&machine, 100, true), [4, 5, 6, 7, 8, 9]);
    driver.tx[0].reap();
    assert_eq!(driver.tx[0].outstanding(), 0);
}

/// The daemon is killed between showing completions and storing where it is.
#[test]
fn completions_that_were_shown_count_although_nothing_is_stored() {
    for laps in [0, 3] {
        let (machine, mut driver) = active(linux());
        for n in 0..laps * 50 {
            assert!(send(&mut driver, n) && deliver(&machine, &numbered(n)));
            assert_eq!(fetch(&machine, 1, true), [n]);
            driver.tx[0].reap();
            receive(&mut driver).expect("a frame");
        }
        let stored = |remains: &Remains| {
            let mut bytes = vec![0; 4096];
            let file = std::fs::File::from(remains.files.0["rings"].try_clone().unwrap());
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let remains = machine.die();
        let before = stored(&remains);
        let (machine, _) = NicMachine::take_over(remains);
        for n in 0..5 {
            assert!(send(&mut driver, 900 + n) && deliver(&machine, &numbered(n)));
        }
        assert_eq!(fetch(&machine, 3, true), [900, 901, 902]);
        let remains = machine.die();
        assert_ne!(stored(&remains), before);
        let file = std::fs::File::from(remains.files.0["rings"].try_clone().unwrap());
        file.write_all_at(&before, 0).unwrap();
        let (machine, resumed) = NicMachine::take_over(remains);
        resumed.expect("to be gone on with");
        driver.tx[0].reap();
        assert_eq!(driver.tx[0].outstanding(), 2, "three are done, none of them twice");
        assert_eq!(fetch(&machine, 100, true), [903, 904]);
        for n in 0..5 {
            assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(n));
        }
        assert!(deliver(&machine, &numbered(77)));
        assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(77));
    }
}

/// Packets that were written and not shown are taken back: the driver sees nothing half done.
#[test]
fn a_batch_that_was_not_shown_is_as_if_it_had_not_been() {
    let (machine, mut driver) = active(linux());
    assert!(deliver(&machine, &numbered(1)));
    receive(&mut driver).expect("a frame");
    let sender = vmlane_guestsim::Ram::new(1 << 16);
    let page = sender.alloc(1, vmlane_guestsim::Placement::Scattered)[0];
    let bytes = numbered(2);
    sender.write(page, &bytes);
    let mut spans = vmlane_mem::Spans::new(sender.device_map(), false);
    spans.push(page, bytes.len()).expect("a page of this memory");
    let packet = vmlane_port::RxFrame {
        head: &bytes[..64],
        body: &spans,
        body_at: 64,
        body_len: bytes.len() - 64,
        tag: None,
        layers: Default::default(),
        checksum: vmlane_port::ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    };
    for _ in 0..3 {
        machine.frames.with(|end| end.deliver_one(&packet).expect("room")).expect("something attached");
    }
    assert!(receive(&mut driver).is_none(), "it was not shown");
    let machine = replaced(machine);
    assert!(receive(&mut driver).is_none(), "nor is it now");
    assert!(deliver(&machine, &numbered(3)));
    assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(3));
    assert!(receive(&mut driver).is_none());
}

#[test]
fn what_a_driver_chose_once_stays_chosen() {
    let (machine, mut driver) =
        active(DriverSpec { rx_mode: rx_mode::UNICAST | rx_mode::MULTICAST, ..linux() });
    let mac = Mac([0x52, 0x54, 0, 0, 7, 7]);
    machine.write(Reg::MacLow, u32::from_le_bytes([0x52, 0x54, 0, 0]));
    machine.write(Reg::MacHigh, u32::from_le_bytes([7, 7, 0, 0]));
    driver.shared.multicast_table.set(driver.spare);
    driver.shared.multicast_len.set(12);
    machine.ram.write(driver.spare, &[1, 0, 0x5e, 0, 0, 1, 1, 0, 0x5e, 0, 0, 2]);
    driver.shared.vlan_table[0].set(1 | 1 << 9);
    driver.store(&machine);
    for command in [Command::UpdateRxMode, Command::UpdateMacFilters, Command::UpdateVlanFilters] {
        assert_eq!(machine.command(command), 0);
    }
    let filter = |machine: &NicMachine| -> Filter {
        machine.frames.with(|end| end.filter().clone()).expect("an active NIC")
    };
    let before = (filter(&machine), machine.frames.with(|end| end.capabilities()));
    assert!(before.0.unicast);
    let machine = replaced(machine);
    assert_eq!((filter(&machine), machine.frames.with(|end| end.capabilities())), before);
    assert_eq!(
        (machine.read(Reg::MacLow), machine.read(Reg::MacHigh)),
        (u32::from_le_bytes([0x52, 0x54, 0, 0]), 0x0707)
    );
    assert_eq!(
        machine.command(Command::GetPermanentMacLow),
        u32::from_le_bytes(machine.mac.0[..4].try_into().unwrap())
    );
    assert!(mac.is_unicast());
    // A closed NIC stays closed.
    driver.close(&machine);
    let machine = replaced(machine);
    assert!(!machine.frames.is_attached());
    orderly(machine);
}

#[test]
fn masks_and_pending_interrupts_outlive_the_daemon() {
    let (machine, mut driver) = active(linux());
    machine.write_page(PageReg::Mask(0), 1);
    assert!(deliver(&machine, &numbered(1)));
    machine.lines.take(0);
    let machine = replaced(machine);
    assert!(!machine.lines.pending(0), "masked");
    machine.frames.with(|end| end.flush(Instant::now()));
    machine.write_page(PageReg::Mask(0), 0);
    machine.frames.with(|end| end.flush(Instant::now()));
    assert!(machine.lines.take(0), "what may have been raised is raised");
    assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(1));
    let machine = replaced(machine);
    machine.frames.with(|end| end.tick(Instant::now()));
    assert!(machine.lines.take(0), "once more: it may not have arrived");
}

/// A daemon of a version that knew no second page had a NIC of the same profile: its VMM maps all of BAR 0,
/// and its driver rings there.
#[test]
fn a_bar_keeps_the_size_that_the_vmm_knows() {
    use Profile::{Full, Vmxnet3};
    for (before, after, size, granted) in
        [(Vmxnet3, Full, 0x1000, 0), (Full, Full, 0x2000, 1 << 16), (Full, Vmxnet3, 0x2000, 0)]
    {
        let machine = NicMachine::with_profile(before);
        let mut driver = NicDriver::probe(&machine, DriverSpec::linux(before.revision()));
        driver.open(&machine);
        let machine = replaced_by(after, machine);
        assert_eq!(machine.device.lock().region(0).size, size);
        machine.write32(CONFIG_REGION, 0x10, u32::MAX);
        assert_eq!(u64::from(!machine.read32(CONFIG_REGION, 0x10)) + 1, size);
        assert_eq!(machine.read(Reg::Capability(0)) & 1 << 16, granted);
        assert_eq!(machine.page().map(|page| page.len()), Some(0x1000), "the masks' page");
        assert!(send(&mut driver, 1) && deliver(&machine, &numbered(2)));
        assert_eq!(fetch(&machine, 1, true), [1]);
        assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(2));
        machine.frames.with(|end| end.tick(Instant::now()));
        let armed = machine.frames.with(|end| (end.arm(), end.needs())).expect("something is attached");
        let needs = if granted == 0 { Needs::Nothing } else { Needs::Announces };
        assert_eq!(armed, (false, needs));
    }
}

#[test]
fn moderation_goes_on() {
    let (machine, driver) = active(linux());
    let scheme = Coalesce::new(Coalesce::RATE, [5000, 0, 0]);
    machine.ram.write(driver.spare, scheme.as_bytes());
    let mut block = BlockRef::default();
    block.version.set(1);
    block.addr.set(driver.spare);
    block.len.set(size_of::<Coalesce>() as u32);
    driver.set_arguments(&machine, block.as_bytes());
    assert_eq!(machine.command(Command::SetCoalesce), 0);
    let read = |machine: &NicMachine| {
        machine.ram.write(driver.spare, &[0; size_of::<Coalesce>()]);
        driver.set_arguments(machine, block.as_bytes());
        let result = machine.command(Command::GetCoalesce);
        let mut back = [0; size_of::<Coalesce>()];
        machine.ram.read(driver.spare, &mut back);
        (result, back)
    };
    let before = read(&machine);
    let machine = replaced(machine);
    assert_eq!(read(&machine), before);
}

/// Positions are gone, cut short or malformed: the driver is notified to reset its NIC, and a new one works.
#[test]
fn a_driver_whose_positions_are_lost_is_notified() {
    let spoil: [fn(&mut Remains); 4] = [
        |remains| drop(remains.files.0.remove("rings")),
        |remains| {
            let short = vmlane_mem::memfd("short", 512).unwrap();
            remains.files.0.insert("rings".into(), short);
        },
        |remains| {
            let file = std::fs::File::from(remains.files.0["rings"].try_clone().unwrap());
            file.write_all_at(&[0xff; 4096], 0).unwrap();
        },
        |remains| {
            remains.files.0.clear();
            remains.records.clear();
        },
    ];
    for (way, spoil) in spoil.into_iter().enumerate() {
        let (machine, mut driver) = active(linux());
        assert!(deliver(&machine, &numbered(1)) && send(&mut driver, 2));
        assert_eq!(fetch(&machine, 1, true), [2]);
        let mut remains = machine.die();
        spoil(&mut remains);
        let (machine, resumed) = NicMachine::take_over(remains);
        assert!(resumed.is_ok());
        if way < 3 {
            assert!(!machine.frames.is_attached(), "way {way}");
            assert_ne!(driver.area_word(at::EVENTS) & (event::TX_QUEUE | event::RX_QUEUE), 0, "way {way}");
        }
        orderly(machine);
    }
}

/// A driver that is loaded now finds a NIC that works.
fn orderly(machine: NicMachine) {
    machine.set_bus_master(true);
    machine.command(Command::Reset);
    let mut driver = NicDriver::probe(&machine, linux());
    driver.open(&machine);
    assert!(deliver(&machine, &numbered(9)));
    assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(9));
    assert!(send(&mut driver, 10));
    assert_eq!(fetch(&machine, 2, true), [10]);
    let machine = replaced(machine);
    driver.tx[0].reap();
    assert_eq!(driver.tx[0].outstanding(), 0);
    assert!(deliver(&machine, &numbered(11)));
    assert_eq!(receive(&mut driver).map(|got| number(&got.bytes)), Some(11));
}

/// Bytes to write, where: 0 and 1 the files, 2 and 3 the records.
type Scribble = (usize, usize, Vec<u8>);

fn scribble() -> impl Strategy<Value = Scribble> {
    let byte = prop_oneof![Just(0u8), Just(0xff), Just(1), Just(0x80), any::<u8>()];
    (0usize..4, 0usize..4096, proptest::collection::vec(byte, 1..16))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_left_nothing_panics(
        scribbles in proptest::collection::vec(scribble(), 1..5),
        cut in proptest::option::of((0usize..2, 0usize..200)),
        laps in 0u32..3,
    ) {
        let (machine, mut driver) = active(linux());
        for n in 0..laps * 40 {
            prop_assert!(send(&mut driver, n) && deliver(&machine, &numbered(n)));
            fetch(&machine, 1, true);
            driver.tx[0].reap();
            receive(&mut driver);
        }
        let mut remains = machine.die();
        for (which, at, bytes) in scribbles {
            let name = ["bar0", "rings"][which % 2];
            if which < 2 {
                // Most of them where positions are.
                let at = if which == 1 { at % 100 } else { at };
                let file = std::fs::File::from(remains.files.0[name].try_clone().unwrap());
                file.write_all_at(&bytes, at as u64).unwrap();
            } else if let Some((_, record)) = remains.records.get_mut(which - 2) {
                let at = at % record.len().max(1);
                let len = bytes.len().min(record.len() - at);
                record[at..at + len].copy_from_slice(&bytes[..len]);
            }
        }
        if let Some((which, len)) = cut
            && let Some((_, record)) = remains.records.get_mut(which)
        {
            record.truncate(len);
        }
        let (machine, _) = NicMachine::take_over(remains);
        if machine.frames.is_attached() {
            fetch(&machine, 100, true);
            let _ = try_deliver(&machine, &numbered(3));
            machine.command(Command::GetStats);
        }
        orderly(machine);
    }
}
