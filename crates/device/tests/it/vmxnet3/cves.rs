//! Classes of CVEs in other implementations (facts 7.3) that are not tested beside what they are about: where
//! the others are is in the table in `SECURITY.md`.

use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, frame, receive};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RingsSpec, TxRequest};
use vmlane_wire::vmxnet3::regs::{Command, Reg};

use super::Nic;

/// Every word of the three BARs.
fn words(machine: &NicMachine) -> Vec<u32> {
    let bars = [(0, 0x2000), (1, 0x1000), (2, 0x2000)];
    bars.iter().flat_map(|&(bar, size)| (0..size).step_by(4).map(move |at| machine.read32(bar, at))).collect()
}

/// VMware's were uninitialised stack used by commands, and leaked to the guest: no register and no result
/// holds anything but what it is meant to.
#[test]
fn cve_2018_6981_6982_a_guest_reads_no_uninitialised_memory() {
    let (used, mut driver) = active(DriverSpec::linux(7));
    assert!(deliver(&used, &frame(700)) && receive(&mut driver).is_some());
    for code in (0xcafe_0000..0xcafe_0040).chain(0xf00d_0000..0xf00d_0040) {
        used.command_code(code);
    }
    vmlane_device::pci::PciDevice::reset(&mut *used.device.lock());
    used.set_bus_master(true);
    let fresh = NicMachine::new(|config| config.max_queues = 8);
    fresh.write(Reg::Revision, 1 << 6);
    // As a driver sets it at its probe: one that resumes does not do so again.
    fresh.write(Reg::Capability(0), 1 << 16);
    assert_eq!(words(&used), words(&fresh), "nothing of what was before is left");
    for code in (0xf00d_0000..0xf00d_0040u32).chain([0, 1, u32::MAX]) {
        assert_eq!(used.command_code(code), fresh.command_code(code), "{code:#x}");
    }
}

/// Statistics and status go where the driver's table is, and nowhere beside it.
#[test]
fn cve_2020_3971_answers_stay_inside_what_the_driver_gave() {
    let (machine, driver) = active(DriverSpec::linux(6));
    let table = (driver.table, 2 * 256u64);
    let size = 16 << 20;
    let before = snapshot(&machine, size);
    for command in [Command::GetStats, Command::GetQueueStatus, Command::GetLink, Command::GetCapabilities] {
        machine.command(command);
    }
    let after = snapshot(&machine, size);
    let changed = before.iter().zip(&after).filter(|(before, after)| before.1 != after.1);
    for ((addr, _), _) in changed {
        assert!((table.0..table.0 + table.1).contains(addr), "{addr:#x} was written");
    }
}

/// All of a machine's memory that can be read, in pieces of 64 bytes.
fn snapshot(machine: &NicMachine, _size: u64) -> Vec<(u64, [u8; 64])> {
    let regions = machine.ram.regions();
    let pieces = regions.iter().flat_map(|&(start, len, _)| (start..start + len).step_by(64));
    pieces
        .map(|addr| {
            let mut bytes = [0; 64];
            machine.ram.read(addr, &mut bytes);
            (addr, bytes)
        })
        .collect()
}

/// VMware's was an integer overflow over a length from the guest, on the host's heap.
#[test]
fn cve_2025_41236_no_sum_of_addresses_and_lengths_wraps() {
    // In a packet: pieces at the end of the address space, whose sums wrap to something small.
    for pieces in [1, 2, 64, 200] {
        let mut nic = Nic::new(&RingsSpec { tx: 256, ..RingsSpec::linux() });
        for addr in [u64::MAX, u64::MAX - 1, u64::MAX - 16_383, u64::MAX - 16_384, 1 << 63] {
            assert!(nic.guest.tx[0].post(&vec![(addr, 16_384); pieces], &TxRequest::NONE));
            assert!(nic.port.fetch_one().is_none(), "{pieces} pieces at {addr:#x}");
            nic.flush();
            assert_eq!(nic.guest.tx[0].reap(), 1);
        }
    }
    // In what an activation names: each length and address at its extremes, alone and together.
    type Edit = fn(&mut NicDriver, u64);
    let edits: [Edit; 9] = [
        |driver, value| driver.tx_descs[0].ring.set(value),
        |driver, value| driver.tx_descs[0].ring_size.set(value as u32),
        |driver, value| driver.tx_descs[0].completions.set(value),
        |driver, value| driver.rx_descs[0].rings[0].set(value),
        |driver, value| driver.rx_descs[0].ring_sizes[0].set(value as u32),
        |driver, value| driver.rx_descs[0].completions_size.set(value as u32),
        |driver, value| driver.shared.multicast_table.set(value),
        |driver, value| driver.shared.multicast_len.set(value as u16),
        |driver, value| driver.shared.rss.addr.set(value),
    ];
    let values = [u64::MAX, u64::MAX - 511, 1 << 63, u64::from(u32::MAX), 0x1000_0000, 1 << 31, 0];
    for value in values {
        for (number, first) in edits.iter().enumerate() {
            for second in &edits[number..] {
                let machine = NicMachine::new(|_| {});
                let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
                first(&mut driver, value);
                second(&mut driver, value);
                // Refused or not: nothing panics, and what is active stays inside memory.
                if driver.try_activate(&machine) == 0 {
                    machine.command(Command::UpdateMacFilters);
                    machine.command(Command::UpdateRss);
                    machine.command(Command::GetStats);
                    machine.frames.with(|end| end.fetch_one());
                }
            }
        }
    }
}
