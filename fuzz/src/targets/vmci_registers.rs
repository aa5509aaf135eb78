//! Register accesses of every width and order, memory scribbled on, memory and interrupts coming and
//! going: the device as its guest sees it.

use vmlane_device::pci::PciDevice;
use vmlane_mem::MemoryMap;

use crate::{Input, RAM, World};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    if input.byte() & 1 == 1 {
        world.probe_all();
    }
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let vm = usize::from(input.byte()) % world.vms.len();
        let target = &mut world.vms[vm];
        match input.byte() % 10 {
            0..=4 => {
                let region = [0, 1, 1, 7][usize::from(input.byte()) % 4];
                let offset = match region {
                    1 => 0x20000 + input.number::<1>(),
                    _ => input.number::<1>(),
                };
                let width = [1, 2, 4, 4, 4, 8][usize::from(input.byte()) % 6];
                if input.byte() & 1 == 0 {
                    let mut out = vec![0; width];
                    let _ = target.device.read(region, offset, &mut out);
                } else {
                    let data = input.bytes(width);
                    let posted = input.byte() & 1 == 1;
                    let _ = target.device.write(region, offset, data, posted);
                }
            }
            5 | 6 => {
                let at = input.number::<3>() % RAM;
                let len = usize::from(input.byte());
                let _ = target.memory.write(at, input.bytes(len));
            }
            7 => target.device.irqs_changed(),
            8 if input.byte() & 3 == 0 => target.device.reset(),
            9 if input.byte() & 3 == 0 => {
                target.device.unmap(0, RAM);
                target.device.memory(&MemoryMap::default());
                target.device.memory(&target.memory);
            }
            _ => world.streams.turn_all(),
        }
    }
    world.check();
}
