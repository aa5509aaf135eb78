//! Datagrams by both paths: headers and payloads as the guest likes, hypervisor calls above all.

use vmlane_device::pci::PciDevice;
use vmlane_wire::vmci::{Handle, Reg, datagram};

use crate::{Input, RAM, World};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    world.probe_all();
    while !input.is_empty() {
        let vm = usize::from(input.byte()) % world.vms.len();
        let own = 3 + vm as u32;
        let context = |byte: u8| [0, 0, 0, 1, 2, 3, 4, 5, u32::MAX, own][usize::from(byte) % 10];
        let dst = Handle::new(context(input.byte()), u32::from(input.byte()) % 20);
        let src = if input.byte() & 7 == 0 {
            Handle::new(context(input.byte()), input.number::<2>() as u32)
        } else {
            Handle::new(own, 1)
        };
        let len = input.number::<2>() as usize % 600;
        let mut bytes = datagram(dst, src, input.bytes(len));
        if input.byte() & 15 == 0 {
            bytes[16..24].copy_from_slice(&input.number::<8>().to_le_bytes());
        }
        if input.byte() & 1 == 0 {
            let mut buffer = vec![1, 0, 0, 0, 0, 0, 0, 0];
            buffer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            buffer.resize(24, 0);
            buffer.extend_from_slice(&bytes);
            let _ = world.vms[vm].memory.write(0x1000, &buffer);
            world.set(vm, Reg::DataOutLow, 0x1000);
        } else {
            let _ = world.vms[vm].device.write(0, 0x10, &bytes, false);
        }
        // Every other guest fetches what it was sent, by either path.
        let reader = usize::from(input.byte()) % world.vms.len();
        if input.byte() & 1 == 0 {
            let element = [0x20000u64.to_le_bytes(), 69632u64.to_le_bytes()].concat();
            let mut buffer = vec![0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
            buffer.resize(24, 0);
            buffer.extend_from_slice(&element);
            let _ = world.vms[reader].memory.write(RAM - 0x1000, &buffer);
            world.set(reader, Reg::DataInLow, (RAM - 0x1000) as u32);
        } else {
            let _ = world.vms[reader].device.read(0, 0x14, &mut vec![0; 512]);
        }
    }
    world.check();
}
