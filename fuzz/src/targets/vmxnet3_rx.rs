//! What a guest receives: packets of every kind laid into descriptors of the guest's choice. All of
//! a packet goes into its buffers, or none of it.

use std::time::Instant;

use vmlane_guestsim::OneByOne;
use vmlane_port::FramePort;

use crate::Input;
use crate::nic::{self, RING, Sender};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let posted = input.byte() & 1 == 1;
    let (rings, mut port) = nic::port(&mut input, posted);
    let mut sender = Sender::new();
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        let queue = usize::from(input.byte()) % rings.rx.len();
        match input.byte() % 8 {
            0..=2 => {
                // A descriptor as it comes; often of the generation that is looked for.
                let second = input.byte();
                let ring = usize::from(second & 1 == 1 && rings.rx[queue].addresses()[1] != 0);
                let at = usize::from(input.byte()) % usize::from(RING) * 16;
                let addr = nic::address(&mut input, &rings);
                let control = input.number::<4>() & 0x7fff_ffff | u64::from(second >> 7) << 31;
                let window = rings.rx[queue].window(ring);
                window.store_u64(at, addr);
                window.store_u64(at + 8, control);
            }
            3..=5 => {
                let mut head = [0; 192];
                let packet = sender.packet(&mut input, &mut head);
                let counted = || {
                    rings
                        .shared
                        .rx_stats
                        .iter()
                        .map(|queue| queue.0[2].get() + queue.0[4].get() + queue.0[6].get())
                        .sum::<u64>()
                };
                let before = counted();
                let delivered = port.deliver_one(&packet).is_ok();
                assert_eq!(delivered, counted() > before, "a delivered packet is counted, no other is");
            }
            6 => {
                port.flush(Instant::now());
                port.tick(Instant::now());
            }
            _ => {
                port.has_room();
                let capabilities = port.capabilities();
                assert!(capabilities.aggregate >= capabilities.frame);
            }
        }
    }
    port.flush(Instant::now());
}
