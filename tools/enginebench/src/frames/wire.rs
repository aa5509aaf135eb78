//! Two NICs and nothing between them: what ports cost without a switch.

use std::time::Instant;

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_guestsim::OneByOne;
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, Network, Offload, PartialChecksum, RxFrame,
    Transport,
};

/// Frames moved in one direction before the other has its turn.
const BATCH: usize = 64;

/// Carries frames from one port to another, whatever their addresses.
pub struct Wire(pub [NicPort; 2]);

impl Wire {
    /// One batch each way.
    pub fn step(&mut self) {
        let [a, b] = &mut self.0;
        carry(a, b);
        carry(b, a);
        let now = Instant::now();
        self.0.iter_mut().for_each(|port| port.flush(now));
    }
}

fn carry(from: &mut NicPort, to: &mut NicPort) {
    for _ in 0..BATCH {
        if !to.has_room() {
            return;
        }
        let Some(token) = from.fetch_one() else { return };
        let in_flight = from.frame(token);
        let (partial_checksum, aggregate) = match in_flight.offload {
            Offload::Checksum { start, field } => {
                (Some(PartialChecksum { start, field, never_zero: false, head_sum: None }), None)
            }
            Offload::Segment { header, mss } => {
                let segments = (in_flight.len() - usize::from(header)).div_ceil(usize::from(mss)) as u16;
                (None, Some(Aggregate { mss, segments, header }))
            }
            _ => (None, None),
        };
        let packet = RxFrame {
            head: in_flight.head,
            body: in_flight.spans,
            body_at: in_flight.head.len(),
            body_len: in_flight.len() - in_flight.head.len(),
            tag: in_flight.tag,
            layers: Layers {
                network: Network::V4,
                transport: Transport::Tcp,
                fragment: false,
                network_at: 14,
                transport_at: 34,
            },
            checksum: ChecksumStatus::Good,
            aggregate,
            partial_checksum,
        };
        let delivered = to.deliver_one(&packet);
        from.finish(&[token]);
        assert!(matches!(delivered, Ok(()) | Err(DropReason::NoBuffers)), "{delivered:?}");
    }
}
