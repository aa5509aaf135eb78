//! What a guest sends: descriptors, bytes and offload requests of its choice. Whatever is in_flight is what
//! the switch may rely on.

use std::time::Instant;

use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::TxRequest;
use vmlane_port::{FramePort, MAX_FRAME, MAX_HEAD, Offload, TxFrame};
use vmlane_wire::vmxnet3::desc::OffloadMode;

use crate::Input;
use crate::nic::{self, RING};

/// What every in_flight frame promises.
fn check(in_flight: &TxFrame<'_>) {
    let len = in_flight.len();
    assert!((14..=MAX_FRAME).contains(&len) && in_flight.head.len() <= MAX_HEAD.min(len), "{len}");
    match in_flight.offload {
        Offload::None => {}
        Offload::Checksum { start, field } => {
            assert!(usize::from(start) < len && usize::from(field) + 2 <= len, "{:?}", in_flight.offload);
        }
        Offload::Segment { header, mss } => {
            assert!(mss > 0 && usize::from(header) < len, "{:?}", in_flight.offload);
            assert!(usize::from(header) <= in_flight.head.len());
        }
        Offload::Tunnel { header, .. } => assert!(usize::from(header) <= in_flight.head.len()),
    }
    let mut bytes = vec![0; len];
    in_flight.spans.read(0, &mut bytes);
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (mut rings, mut port) = nic::port(&mut input, true);
    let modes = [OffloadMode::None, OffloadMode::Encapsulated, OffloadMode::Checksum, OffloadMode::Segment];
    let mut in_flight = Vec::new();
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        let queue = usize::from(input.byte()) % rings.tx.len();
        match input.byte() % 8 {
            0 | 1 => {
                // A descriptor as it comes, one after the other.
                let addr = nic::address(&mut input, &rings);
                let generation = u64::from(rings.tx[queue].generation());
                let control = input.number::<8>() & !(1 << 14) | generation << 14;
                rings.tx[queue].post_raw(addr, control);
            }
            2..=4 => {
                let (kind, numbers) = (input.byte(), (input.byte(), input.number::<2>() as u16));
                let request = TxRequest {
                    mode: modes[usize::from(kind & 3)],
                    header: u16::from(numbers.0),
                    mss_or_field: numbers.1 & 0x3fff,
                    inner: kind & 4 != 0,
                    outer_sum: kind & 8 != 0,
                    ..TxRequest::NONE
                };
                let len = input.number::<2>() as usize % 3000;
                let mut frame = vec![0; len];
                let given = input.bytes(len.min(200));
                frame[..given.len()].copy_from_slice(given);
                let split = [usize::from(input.byte())];
                let split: &[usize] = if split[0] > 0 && split[0] < len { &split } else { &[] };
                if len > 0 && rings.tx[queue].room() > 2 {
                    rings.tx[queue].send(&frame, split, &request);
                }
            }
            5 => {
                let at = usize::from(input.byte()) % usize::from(RING) * 16;
                rings.tx[queue].commands.store_u64(at + 8, input.number::<8>());
            }
            6 => {
                while let Some(token) = in_flight.pop() {
                    port.finish(&[token]);
                }
                port.flush(Instant::now());
            }
            _ => {
                for _ in 0..usize::from(RING) {
                    let Some(token) = port.fetch_one() else { break };
                    check(&port.frame(token));
                    in_flight.push(token);
                }
            }
        }
    }
    in_flight.into_iter().for_each(|token| port.finish(&[token]));
    port.flush(Instant::now());
    port.tick(Instant::now());
}
