//! Stream connections: control packets, queue pairs and indices in any order, two guests and a
//! stranger. The engine turns on what they leave in their rings.

use vmlane_device::pci::PciDevice;
use vmlane_wire::vmci::{Handle, QueuePairAlloc, RawHandle, call, datagram};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use crate::{Input, World};

/// Ring sizes that matter: tiny, odd, a page, more than one.
const SIZES: [u64; 6] = [0, 1, 2, 128, 4096, 5003];

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    world.probe_all();
    while !input.is_empty() {
        let vm = usize::from(input.byte()) % world.vms.len();
        let own = 3 + vm as u32;
        let peer = [2, 3, 4, 5][usize::from(input.byte()) % 4];
        let handle = Handle::new(3 + u32::from(input.byte()) % 2, 1024 + u32::from(input.byte()) % 3);
        let bytes = match input.byte() % 8 {
            0..=3 => {
                let kind = PacketType::from_wire(input.byte() % 13).unwrap_or(PacketType::Invalid);
                let ports = [7, 5000, 9, 11];
                let (src, dst) = (ports[usize::from(input.byte()) % 4], ports[usize::from(input.byte()) % 4]);
                let packet = ControlPacket::new(kind, src, dst);
                let packet = match kind {
                    PacketType::Offer | PacketType::Attach => packet.with_handle(handle),
                    PacketType::Shutdown => packet.with_mode(u64::from(input.byte() % 4)),
                    _ => packet.with_size(SIZES[usize::from(input.byte()) % SIZES.len()], 1),
                };
                datagram(Handle::new(peer, 1), Handle::new(own, 1), packet.as_bytes())
            }
            4 | 5 => {
                let size = SIZES[usize::from(input.byte()) % SIZES.len()];
                let pages = size.div_ceil(4096);
                let alloc = QueuePairAlloc {
                    handle: handle.into(),
                    peer: peer.into(),
                    flags: u32::from(input.byte() % 4).into(),
                    produce_size: size.into(),
                    consume_size: size.into(),
                    num_ppns: (2 * pages + 2).into(),
                };
                let mut payload = alloc.as_bytes().to_vec();
                for _ in 0..2 * pages + 2 {
                    // Low pages, so that they overlap often.
                    payload.extend_from_slice(&u64::from(input.byte() % 64).to_le_bytes());
                }
                datagram(Handle::new(0, call::QUEUEPAIR_ALLOC), Handle::INVALID, &payload)
            }
            6 => {
                let payload = RawHandle::from(handle);
                datagram(Handle::new(0, call::QUEUEPAIR_DETACH), Handle::INVALID, payload.as_bytes())
            }
            _ => {
                // Indices and data, behind the engine's back.
                let at = u64::from(input.byte() % 64) * 4096 + u64::from(input.byte() % 4) * 8;
                let value = input.number::<2>() % 6000;
                let _ = world.vms[vm].memory.write(at, &value.to_le_bytes());
                world.streams.turn_all();
                continue;
            }
        };
        let _ = world.vms[vm].device.write(0, 0x10, &bytes, false);
        if input.byte() & 3 == 0 {
            let _ = world.vms[vm].device.read(0, 0x14, &mut vec![0; 4096]);
        }
    }
    world.check();
}
