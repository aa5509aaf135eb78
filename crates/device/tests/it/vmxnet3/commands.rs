//! Commands of a VMXNET3 NIC: each has taken effect when it returns.

use std::time::Instant;

use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, deliver_as, frame};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RxShape, TxRequest};
use vmlane_port::{Filter, Layers, Network, RxCapabilities, Transport};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{Command, Reg, event, feature, rx_mode};
use vmlane_wire::vmxnet3::shared::{BlockRef, Coalesce, DriverShared, at};
use zerocopy::{FromBytes, IntoBytes};

use super::linux;

fn filter(machine: &NicMachine) -> Filter {
    machine.frames.with(|end| end.filter().clone()).expect("an active NIC")
}

fn capabilities(machine: &NicMachine) -> RxCapabilities {
    machine.frames.with(|end| end.capabilities()).expect("an active NIC")
}

#[test]
fn every_command_is_harmless_in_every_state() {
    let all = |machine: &NicMachine| {
        for family in [0xcafe_0000u32, 0xf00d_0000] {
            for number in 0..0x40 {
                machine.command_code(family | number);
            }
        }
    };
    for profile in Profile::ALL {
        let machine = NicMachine::with_profile(profile);
        all(&machine);
        machine.set_bus_master(false);
        all(&machine);
        machine.set_bus_master(true);
        machine.set_shared(0x10);
        all(&machine);
        machine.set_shared(u64::MAX);
        all(&machine);
        let spec = DriverSpec::linux(profile.revision());
        let mut driver = NicDriver::probe(&machine, spec);
        driver.store(&machine);
        machine.set_shared(driver.area);
        all(&machine);
        driver.open(&machine);
        all(&machine);
    }
}

/// Drivers send codes that were never published and examine the result.
#[test]
fn unknown_commands_answer_with_0() {
    let (machine, _driver) = active(linux());
    for code in [0, 0xcafe_000a, 0xcafe_000c, 0xcafe_000d, 0xcafe_0011, 0xf00d_000d, 0xf00d_0010, u32::MAX] {
        assert_eq!(machine.command_code(code), 0, "{code:#x}");
    }
    assert!(machine.frames.is_attached());
    assert_eq!(machine.count("unknown_commands"), 8);
}

#[test]
fn answers_are_those_of_the_profile() {
    let asked = |profile, command| {
        let machine = NicMachine::with_profile(profile);
        machine.write(Reg::Revision, 1 << (profile.revision() - 1));
        machine.command(command)
    };
    use Command::*;
    let cases = [
        (GetDeviceIdLow, 0x07b0, 0x07b0),
        (GetDeviceIdHigh, 1, 1),
        (GetExtraInfo, 0, 0),
        (GetAdaptiveRing, 1, 1),
        (GetTxDataSize, 128, 0),
        (GetRssFields, 3, 0),
        (GetMaxQueues, 0x0808, 0),
        (GetMaxCapabilities, 0, 0),
        (GetTimestampSize, 0, 0),
        (GetDisabledOffloads, 0, 0),
        (LoadPlugin, 1, 1),
        (Quiesce, 0, 0),
        (Reset, 0, 0),
        (RegisterMemory, 0, 0),
        (SetRingBufferSize, 0, 0),
        (UpdateWakeUp, 0, 0),
    ];
    for (command, modern, older) in cases {
        assert_eq!(asked(Profile::Vmxnet3, command), modern, "{command:?}");
        assert_eq!(asked(Profile::Vmxnet2Class, command), older, "{command:?}");
    }
}

#[test]
fn a_command_of_a_later_revision_means_nothing() {
    let (machine, driver) = active(DriverSpec::linux(3));
    driver.set_arguments(&machine, &[15, 0, 0, 0]);
    assert_eq!(machine.command(Command::SetRssFields), 0);
    assert_eq!(machine.command(Command::GetRssFields), 0);
    assert_eq!(machine.command(Command::GetMaxQueues), 0);
    assert_eq!(machine.command(Command::GetTxDataSize), 128);
}

#[test]
fn rx_mode_becomes_a_filter() {
    let (machine, mut driver) = active(linux());
    let expected = Filter { mac: machine.mac, unicast: true, broadcast: true, ..Filter::default() };
    let vlans = filter(&machine).vlans;
    assert_eq!(filter(&machine), Filter { vlans: vlans.clone(), ..expected.clone() });
    driver.shared.rx_mode.set(rx_mode::ALL_MULTICAST);
    driver.store(&machine);
    assert!(!filter(&machine).all_multicast, "not before the command");
    machine.write(Reg::Command, Command::UpdateRxMode.code());
    let only = Filter { mac: machine.mac, all_multicast: true, vlans, ..Filter::default() };
    assert_eq!(filter(&machine), only);
    driver.shared.rx_mode.set(0x1f);
    driver.store(&machine);
    machine.write(Reg::Command, Command::UpdateRxMode.code());
    let all = filter(&machine);
    assert!(all.promiscuous && all.unicast && all.vlans.is_none(), "{all:?}");
}

#[test]
fn a_driver_that_never_updates_has_its_filter_from_the_start() {
    let machine = NicMachine::new(|_| {});
    let spec = DriverSpec { rx_mode: rx_mode::UNICAST | rx_mode::MULTICAST, ..DriverSpec::linux(1) };
    let mut driver = NicDriver::probe(&machine, spec);
    machine.ram.write(driver.spare, &[1, 0, 0x5e, 0, 0, 1]);
    driver.shared.multicast_table.set(driver.spare);
    driver.shared.multicast_len.set(6);
    assert_eq!(driver.try_activate(&machine), 0);
    let filter = filter(&machine);
    assert_eq!((filter.unicast, filter.broadcast), (true, false));
    assert_eq!(filter.multicast, [Mac([1, 0, 0x5e, 0, 0, 1])]);
    driver.spec.rx_mode = 0;
}

/// Linux frees the table as soon as the command is written.
#[test]
fn multicast_addresses_are_copied_before_the_command_returns() {
    let (machine, mut driver) = active(linux());
    let addresses = [[1, 0, 0x5e, 0, 0, 9], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 9]];
    machine.ram.write(driver.spare, addresses.as_bytes());
    driver.shared.multicast_table.set(driver.spare);
    // Half an address at the end is none.
    driver.shared.multicast_len.set(20);
    driver.shared.rx_mode.set(rx_mode::MULTICAST);
    driver.store(&machine);
    for command in [Command::UpdateRxMode, Command::UpdateVlanFilters, Command::UpdateMacFilters] {
        machine.write(Reg::Command, command.code());
    }
    machine.ram.write(driver.spare, &[0xee; 18]);
    let kept = filter(&machine);
    assert_eq!(kept.multicast, [Mac(addresses[0]), Mac(addresses[1])]);
    assert!(kept.accepts(Mac(addresses[1])) && !kept.accepts(Mac([1, 0, 0x5e, 0, 0, 8])));
    machine.write(Reg::Command, Command::UpdateRxMode.code());
    assert_eq!(filter(&machine).multicast, kept.multicast, "only its own command reads the table");
}

#[test]
fn a_multicast_table_outside_memory_is_empty() {
    let (machine, mut driver) = active(linux());
    driver.shared.rx_mode.set(rx_mode::MULTICAST);
    for (addr, len) in [(u64::MAX, 6), (u64::MAX - 5, 6), (0, 65535), (8, 12)] {
        driver.shared.multicast_table.set(addr);
        driver.shared.multicast_len.set(len);
        driver.store(&machine);
        machine.command(Command::UpdateRxMode);
        assert_eq!(machine.command(Command::UpdateMacFilters), 0);
        assert!(filter(&machine).multicast.is_empty());
    }
    assert_eq!(machine.count("bad_addresses"), 4);
}

#[test]
fn an_empty_vlan_table_is_no_filter() {
    let (machine, mut driver) = active(linux());
    driver.shared.vlan_table[5].set(1 << 3);
    driver.shared.vlan_table[63].set(1 << 63);
    driver.store(&machine);
    machine.command(Command::UpdateVlanFilters);
    let filter_of = || filter(&machine);
    let taken: Vec<u16> = (0..4096).filter(|&vlan| filter_of().accepts_vlan(vlan)).collect();
    assert_eq!(taken, [0, 323, 4095]);
    driver.shared.vlan_table.iter_mut().for_each(|word| word.set(0));
    driver.store(&machine);
    machine.command(Command::UpdateVlanFilters);
    assert!(filter_of().vlans.is_none());
}

#[test]
fn features_change_while_frames_flow() {
    let (machine, mut driver) = active(linux());
    assert!(capabilities(&machine).tso4 && capabilities(&machine).tso6);
    driver.shared.features.set(feature::RX_CHECKSUM);
    driver.store(&machine);
    assert!(capabilities(&machine).tso4);
    machine.write(Reg::Command, Command::UpdateFeatures.code());
    assert!(!capabilities(&machine).tso4 && !capabilities(&machine).tso6, "no super-frame after the command");
}

#[test]
fn the_older_class_takes_no_super_frames() {
    let machine = NicMachine::with_profile(Profile::Vmxnet2Class);
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(1));
    driver.open(&machine);
    assert!(!capabilities(&machine).tso4 && !capabilities(&machine).tso6);
}

#[test]
fn commands_before_activation_change_nothing() {
    let machine = NicMachine::new(|_| {});
    let driver = NicDriver::probe(&machine, linux());
    driver.store(&machine);
    let before = machine.frames.calls();
    for command in [Command::UpdateFeatures, Command::UpdateVlanFilters, Command::GetStats] {
        assert_eq!(machine.command(command), 0);
    }
    machine.set_shared(driver.area);
    for command in [Command::UpdateRss, Command::UpdateModeration, Command::GetQueueStatus] {
        assert_eq!(machine.command(command), 0);
    }
    assert_eq!(machine.frames.calls(), before);
}

#[test]
fn statistics_are_written_when_asked_for_and_begin_with_the_activation() {
    let (machine, mut driver) = active(linux());
    let broadcast = |driver: &NicDriver| (driver.row(0, 6), driver.row(1, 6), driver.row(1, 7));
    assert!(deliver(&machine, &frame(100)) && deliver(&machine, &frame(60)));
    driver.tx[0].send(&frame(60), &[], &TxRequest::NONE);
    let sent = machine.frames.with(|end| end.fetch_one().map(|token| end.finish(&[token])));
    assert_eq!(sent, Some(Some(())));
    assert_eq!(broadcast(&driver), (0, 0, 0));
    machine.write(Reg::Command, Command::GetStats.code());
    assert_eq!(broadcast(&driver), (1, 2, 160));
    assert_eq!(driver.try_activate(&machine), 0);
    machine.write(Reg::Command, Command::GetStats.code());
    assert_eq!(broadcast(&driver), (0, 0, 0));
}

#[test]
fn a_queue_that_stopped_is_reported() {
    let (machine, mut driver) = active(linux().with_queues(2));
    // A packet without an end, on the second transmit queue.
    driver.tx[1].commands.store_u64(8, 1 << 14 | 60);
    for at in 1..64 {
        driver.tx[1].commands.store_u64(16 * at + 8, 1 << 14 | 60);
    }
    machine.frames.with(|end| {
        while let Some(token) = end.fetch_one() {
            end.finish(&[token]);
        }
    });
    assert_eq!(driver.area_word(at::EVENTS), event::TX_QUEUE);
    assert_eq!(machine.read(Reg::Events), event::TX_QUEUE);
    machine.command(Command::GetQueueStatus);
    let stopped: Vec<u32> = (0..4).map(|queue| driver.queue_word(queue, at::STOPPED)).collect();
    assert_eq!(stopped, [0, 1, 0, 0]);
    assert_ne!(driver.queue_word(1, at::ERROR), 0);
    machine.command(Command::Quiesce);
    machine.command(Command::Reset);
    driver = NicDriver::allocate(&machine, linux().with_queues(2));
    driver.open(&machine);
    machine.command(Command::GetQueueStatus);
    assert_eq!(driver.queue_word(1, at::STOPPED), 0);
}

/// A block for coalescing, written where `block` says.
fn set_scheme(machine: &NicMachine, driver: &NicDriver, scheme: &Coalesce) -> u32 {
    machine.ram.write(driver.spare, scheme.as_bytes());
    point_to(machine, driver, driver.spare, 16);
    machine.command(Command::SetCoalesce)
}

fn point_to(machine: &NicMachine, driver: &NicDriver, addr: u64, len: u32) {
    let mut block = BlockRef::default();
    block.version.set(1);
    block.len.set(len);
    block.addr.set(addr);
    driver.set_arguments(machine, block.as_bytes());
}

fn get_scheme(machine: &NicMachine, driver: &NicDriver) -> Coalesce {
    let place = driver.spare + 64;
    point_to(machine, driver, place, 16);
    assert_eq!(machine.command(Command::GetCoalesce), 0);
    let mut bytes = [0; 16];
    machine.ram.read(place, &mut bytes);
    Coalesce::read_from_bytes(&bytes).unwrap()
}

#[test]
fn coalescing_is_kept_until_a_reset() {
    let (machine, driver) = active(linux());
    let adaptive = Coalesce::new(Coalesce::ADAPTIVE, [0; 3]);
    assert_eq!(get_scheme(&machine, &driver), adaptive);
    let rate = Coalesce::new(Coalesce::RATE, [20_000, 0, 0]);
    assert_eq!(set_scheme(&machine, &driver, &rate), 0);
    assert_eq!(get_scheme(&machine, &driver), rate);
    machine.command(Command::Quiesce);
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(get_scheme(&machine, &driver), rate);
    machine.command(Command::Reset);
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(get_scheme(&machine, &driver), adaptive);
    for (addr, len) in [(u64::MAX, 16), (driver.spare, 8), (8, 16)] {
        point_to(&machine, &driver, addr, len);
        assert_eq!((machine.command(Command::SetCoalesce), machine.command(Command::GetCoalesce)), (0, 0));
    }
    assert_eq!(get_scheme(&machine, &driver), adaptive);
}

/// How many interrupts ten packets make that arrive one by one, at once.
fn interrupts_of_ten(machine: &NicMachine) -> u64 {
    let before = machine.lines.raised(0);
    (0..10).for_each(|_| assert!(deliver(machine, &frame(60))));
    machine.lines.raised(0) - before
}

#[test]
fn a_scheme_holds_interrupts_back() {
    let (machine, driver) = active(linux());
    set_scheme(&machine, &driver, &Coalesce::new(Coalesce::DISABLED, [0; 3]));
    assert_eq!(interrupts_of_ten(&machine), 10);
    set_scheme(&machine, &driver, &Coalesce::new(Coalesce::RATE, [100, 0, 0]));
    // One every 10 ms. A machine that took longer for the ten than for nine of these showed nothing.
    let shown = (0..20).any(|_| {
        let begun = Instant::now();
        let made = interrupts_of_ten(&machine);
        let most = 1 + begun.elapsed().as_millis() as u64 / 10;
        assert!(made <= most, "{made} interrupts, {most} at most at 100 a second");
        most < 10
    });
    assert!(shown, "ten packets took 90 ms each time");
}

#[test]
fn moderation_levels_are_read_on_command() {
    let (machine, mut driver) = active(DriverSpec::linux(1));
    driver.shared.interrupts.levels = [0; 25];
    driver.store(&machine);
    driver.set_control(0);
    machine.command(Command::UpdateModeration);
    assert_eq!(interrupts_of_ten(&machine), 10);
    driver.shared.interrupts.levels[0] = 7;
    driver.store(&machine);
    driver.set_control(0);
    assert_eq!(interrupts_of_ten(&machine), 10, "not before the command");
    machine.command(Command::UpdateModeration);
    assert!(interrupts_of_ten(&machine) < 10);
}

/// A TCP/IPv4 segment of one of many flows.
fn segment(flow: u8) -> (Vec<u8>, Layers) {
    let mut bytes = frame(74);
    bytes[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 3]);
    bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6]);
    bytes[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x80, flow, 0x14, 0x51]);
    let (network, transport) = (Network::V4, Transport::Tcp);
    (bytes, Layers { network, transport, fragment: false, network_at: 14, transport_at: 34 })
}

/// Queues that 32 flows reach.
fn reached(machine: &NicMachine, driver: &mut NicDriver) -> Vec<bool> {
    for flow in 0..32 {
        let (bytes, layers) = segment(flow);
        deliver_as(machine, &bytes, layers).expect("there is room");
    }
    driver.rx.iter_mut().map(|queue| queue.drain().0 > 0).collect()
}

#[test]
fn flows_are_spread_over_queues_by_the_table() {
    let spec = DriverSpec { rx: RxShape::linux(64), ..linux().with_queues(4) };
    let (machine, mut driver) = active(spec);
    assert_eq!(reached(&machine, &mut driver), [true; 4]);
    driver.rss.table = [2; 128];
    driver.store(&machine);
    assert_eq!(reached(&machine, &mut driver), [true; 4], "not before the command");
    machine.command(Command::UpdateRss);
    assert_eq!(reached(&machine, &mut driver), [false, false, true, false]);
    driver.rss.table = [200; 128];
    driver.store(&machine);
    machine.command(Command::UpdateRss);
    assert_eq!(reached(&machine, &mut driver), [true, false, false, false], "no such queue");
}

#[test]
fn a_block_that_makes_no_sense_switches_scaling_off() {
    type Edit = fn(&mut NicDriver);
    let edits: [(&str, Edit); 8] = [
        ("feature off", |driver| driver.shared.features.set(0)),
        ("function", |driver| driver.rss.function.set(2)),
        ("key", |driver| driver.rss.key_len.set(41)),
        ("table", |driver| driver.rss.table_len.set(129)),
        ("empty table", |driver| driver.rss.table_len.set(0)),
        ("table beyond the block", |driver| driver.shared.rss.len.set(100)),
        ("no block", |driver| driver.shared.rss.len.set(47)),
        ("address", |driver| driver.shared.rss.addr.set(u64::MAX - 100)),
    ];
    for (name, edit) in edits {
        let (machine, mut driver) = active(linux().with_queues(2));
        assert_eq!(reached(&machine, &mut driver), [true; 2]);
        edit(&mut driver);
        driver.store(&machine);
        machine.command(Command::UpdateFeatures);
        machine.command(Command::UpdateRss);
        assert_eq!(reached(&machine, &mut driver), [true, false], "{name}");
    }
    let (machine, mut driver) = active(linux().with_queues(2));
    driver.rss.table_len.set(52);
    driver.shared.rss.len.set(100);
    driver.store(&machine);
    machine.command(Command::UpdateRss);
    assert_eq!(reached(&machine, &mut driver), [true; 2], "a shorter block is one");
}

#[test]
fn rss_fields_are_granted_as_far_as_they_go() {
    let (machine, driver) = active(linux().with_queues(2));
    driver.set_arguments(&machine, &[0xff, 0xff, 0, 0]);
    assert_eq!(machine.command(Command::SetRssFields), 0);
    assert_eq!(machine.command(Command::GetRssFields), 0xf);
    machine.command(Command::Quiesce);
    assert_eq!(machine.command(Command::GetRssFields), 0xf);
    machine.command(Command::Reset);
    assert_eq!(machine.command(Command::GetRssFields), 3);
}

/// Ports of UDP are hashed from revision 4 on, when the driver asks for them.
#[test]
fn ports_of_udp_are_hashed_when_asked_for() {
    let (machine, mut driver) = active(linux().with_queues(2));
    let mut reached = || {
        for flow in 0..32 {
            let (mut bytes, layers) = segment(flow);
            bytes[23] = 17;
            deliver_as(&machine, &bytes, Layers { transport: Transport::Udp, ..layers }).unwrap();
        }
        driver.rx.iter_mut().map(|queue| usize::from(queue.drain().0 > 0)).sum::<usize>()
    };
    assert_eq!(reached(), 1, "one pair of addresses");
    driver_fields(&machine, 0xf);
    assert_eq!(reached(), 2);
}

fn driver_fields(machine: &NicMachine, fields: u32) {
    // The shared area is where the register says.
    let addr = u64::from(machine.read(Reg::SharedHigh)) << 32 | u64::from(machine.read(Reg::SharedLow));
    machine.ram.write(addr + at::COMMAND_INFO as u64, &fields.to_le_bytes());
    assert_eq!(machine.command(Command::SetRssFields), 0);
}

/// Nothing is written where the shared area would be if it were at address 0.
#[test]
fn nothing_is_written_without_a_shared_area() {
    use vmlane_mem::{MapRequest, memfd};
    let machine = NicMachine::new(|_| {});
    let request =
        MapRequest { guest: 0, len: 1 << 16, offset: 0, fd: memfd("zero", 1 << 16).unwrap(), writable: true };
    machine.set_map(machine.map().map(request).unwrap());
    machine.handle.set_link(false);
    for command in Command::ALL {
        machine.command(*command);
    }
    machine.write(Reg::Events, u32::MAX);
    let mut bytes = vec![0; 1 << 16];
    machine.map().read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(size_of::<DriverShared>() < bytes.len());
}

/// After QUIESCE the driver frees its memory without looking back.
#[test]
fn nothing_is_written_after_quiesce() {
    let (machine, mut driver) = active(linux());
    driver.close(&machine);
    let [(start, len, _), _] = machine.ram.regions();
    let mut before = vec![0; len as usize];
    machine.map().read(start, &mut before).unwrap();
    machine.handle.set_link(false);
    machine.command(Command::GetStats);
    machine.command(Command::GetQueueStatus);
    machine.frames.with(|end| end.flush(Instant::now()));
    let mut after = vec![0; len as usize];
    machine.map().read(start, &mut after).unwrap();
    assert!(before == after);
}

/// QUIESCE, RESET and a new activation: what a change of MTU does.
#[test]
fn a_driver_that_reconfigures_keeps_its_filters_and_address() {
    let (machine, mut driver) = active(linux());
    for mtu in [9000, 1500, 9190] {
        driver.close(&machine);
        machine.command(Command::Reset);
        driver = NicDriver::allocate(&machine, DriverSpec { mtu, ..linux() });
        driver.open(&machine);
        assert_eq!(capabilities(&machine).frame, mtu as usize + 14);
        assert!(deliver(&machine, &frame(60)));
    }
    assert_eq!(filter(&machine).mac, machine.mac);
}
