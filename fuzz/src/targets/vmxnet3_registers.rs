//! A NIC as its guest sees it: registers and commands of every width and order, its shared area and
//! rings scribbled on, memory and bus mastering coming and going.

use std::time::Instant;

use vmlane_device::pci::PciDevice;
use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, RxShape};
use vmlane_mem::MemoryMap;
use vmlane_wire::vmxnet3::regs::{Command, Reg};

use crate::Input;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let profile = Profile::ALL[usize::from(input.byte()) % 3];
    let queues = [1, 2, 9][usize::from(input.byte()) % 3];
    let machine = NicMachine::new(|config| (config.profile, config.max_queues) = (profile, 32));
    let rx = RxShape { ring0: 8, ring1: 4, completions: 12, data: 128, ..RxShape::linux(8) };
    let spec = DriverSpec { tx: 8, rx, ..DriverSpec::linux(profile.revision()).with_queues(queues) };
    let mut driver = NicDriver::probe(&machine, spec);
    driver.store(&machine);
    machine.set_shared(driver.area);
    let whole = machine.map();
    for _ in 0..300 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=2 => {
                let region = [0, 1, 1, 7][usize::from(input.byte()) % 4];
                let offset = if region == 0 { input.number::<2>() } else { input.number::<1>() };
                let width = [1, 2, 4, 4, 4, 8][usize::from(input.byte()) % 6];
                let posted = input.byte();
                if posted & 2 == 0 {
                    let _ = machine.device.lock().read(region, offset, &mut vec![0; width]);
                } else {
                    let _ = machine.device.lock().write(region, offset, input.bytes(width), posted & 1 == 1);
                }
            }
            3..=5 => {
                let command = Command::ALL[usize::from(input.byte()) % Command::ALL.len()];
                machine.write(Reg::Command, command.code());
            }
            6 => {
                let activated = machine.command(Command::Activate) == 0;
                assert_eq!(activated, machine.frames.is_attached());
            }
            7..=9 => {
                let base = match input.byte() % 8 {
                    0..=3 => driver.area,
                    4 => driver.table,
                    5 => driver.rss_at,
                    6 => driver.tx[0].addresses[0],
                    _ => driver.rx[0].addresses()[0],
                };
                let offset = input.number::<2>() % 800;
                let len = 1 + usize::from(input.byte() % 16);
                machine.ram.write(base + offset, input.bytes(len));
            }
            10 => {
                driver.store(&machine);
                machine.set_bus_master(true);
                machine.set_shared(driver.area);
            }
            11 => driver.rx.iter_mut().for_each(|queue| queue.fill()),
            12 => {
                machine.frames.with(|end| {
                    for _ in 0..64 {
                        let Some(token) = end.fetch_one() else { break };
                        end.finish(&[token]);
                    }
                    end.flush(Instant::now());
                    end.tick(Instant::now());
                });
            }
            13 => machine.handle.set_link(input.byte() & 1 == 1),
            14 if input.byte() & 3 == 0 => {
                for (start, len, _) in machine.ram.regions() {
                    machine.device.lock().unmap(start, len);
                }
                machine.set_map(MemoryMap::default());
                machine.set_map(whole.clone());
            }
            15 if input.byte() & 3 == 0 => machine.device.lock().reset(),
            _ => machine.device.lock().irqs_changed(),
        }
        assert_eq!(machine.handle.view().active, machine.frames.is_attached());
    }
}
