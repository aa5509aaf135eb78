//! What a virtio guest sends, receives into and asks for: headers with frames, buffers, control commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_device::virtio::vhost::{NoLines, Setup, VhostDevice};
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::InlineFrames;
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_mem::Spans;
use vmlane_port::{
    Aggregate, ChecksumStatus, Layers, MAX_FRAME, MAX_HEAD, Network, Offload, PartialChecksum, PortId,
    RxFrame, Transport,
};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::virtio::feature;

use crate::Input;
use crate::virtio::{SIZE, act, ram};

const HEADER: usize = 12;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let packed = choice & 1 != 0;
    let ram = ram();
    let mut rings = [(); 3].map(|()| DriverRing::new(&ram, SIZE, packed));
    let frames = Arc::new(InlineFrames::default());
    let config = NetConfig {
        mac: Mac([0x52, 0, 0, 0, 0, 1]),
        mtu: 1500,
        queues: 1,
        lro: choice & 2 != 0,
        packed: true,
    };
    let stats = Arc::new(VirtioNetStats::default());
    let mut device = NetDevice::new(config, frames.clone(), PortId(7), Arc::new(NoLines), stats);
    // Any subset of what is on offer.
    let mut features = device.features() & (input.number::<8>() | feature::VERSION_1);
    features = if packed { features | feature::PACKED } else { features & !feature::PACKED };
    let setups = rings.iter().map(|ring| Some(ring.setup())).collect();
    device.run(Setup { features, memory: ram.device_map(), rings: setups, resumed: false });
    let page = rings[0].alloc(1 << 17);
    let mut now = Instant::now();
    while !input.is_empty() {
        now += Duration::from_millis(2);
        match input.byte() % 8 {
            0 => {
                let at = usize::from(input.byte()) % 3;
                act(&mut input, &mut rings[at]);
            }
            1 | 2 => {
                let len = input.number::<2>() as usize % 3000;
                let mut bytes = vec![0; HEADER + len];
                let given = input.bytes(bytes.len().min(160));
                bytes[..given.len()].copy_from_slice(given);
                ram.write(page, &bytes);
                let cut = usize::from(input.byte()).min(bytes.len());
                rings[1].post(&[out(page, cut), out(page + cut as u64, bytes.len() - cut)]);
            }
            3 => {
                rings[0].post(&[into(page + (1 << 16), input.number::<2>() as usize)]);
            }
            4 => {
                let command = input.bytes(40);
                ram.write(page, command);
                rings[2].post(&[out(page, command.len()), into(page + 4096, 1)]);
                frames.with(|end| {
                    end.tick(now);
                });
            }
            5 => {
                frames.with(|end| {
                    while let Some(token) = end.fetch_one() {
                        let in_flight = end.frame(token);
                        let len = in_flight.len();
                        assert!((14..=MAX_FRAME).contains(&len) && in_flight.head.len() <= MAX_HEAD.min(len));
                        match in_flight.offload {
                            Offload::Segment { header, mss } => {
                                assert!(mss > 0 && usize::from(header) <= in_flight.head.len());
                            }
                            Offload::Checksum { field, .. } => assert!(usize::from(field) + 2 <= len),
                            _ => {}
                        }
                        end.finish(&[token]);
                    }
                    end.flush(now);
                });
            }
            _ => {
                let len = 14 + input.number::<2>() as usize % 9000;
                let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
                ram.write(page, &bytes);
                let mut spans = Spans::new(ram.device_map(), false);
                spans.push(page, len).expect("its own memory");
                let head = len.min(64);
                let kind = input.byte();
                let udp = kind & 4 != 0;
                let layers = Layers {
                    network: if kind & 8 != 0 { Network::V6 } else { Network::V4 },
                    transport: if udp { Transport::Udp } else { Transport::Tcp },
                    fragment: false,
                    network_at: 14,
                    transport_at: 34,
                };
                let whole = kind & 1 != 0 && head == 64;
                let packet = RxFrame {
                    head: &bytes[..head],
                    body: &spans,
                    body_at: head,
                    body_len: len - head,
                    tag: None,
                    layers,
                    checksum: ChecksumStatus::Good,
                    aggregate: whole.then_some(Aggregate { mss: 1000, segments: 2, header: 54 }),
                    partial_checksum: (kind & 2 != 0 && head == 64).then_some(PartialChecksum {
                        start: 34,
                        field: 50,
                        never_zero: udp,
                        head_sum: None,
                    }),
                };
                frames.with(|end| {
                    let _ = end.deliver_one(&packet);
                    end.flush(now);
                });
            }
        }
    }
    device.stop();
}
