//! Packets that the daemon itself sends to guests, and what captures see of all packets.

use std::sync::Arc;

use vmlane_port::wrap::{PacketPayload, StreamTap, wall_clock};
use vmlane_wire::virtio_vsock::{END_OF_MESSAGE, END_OF_RECORD, Header, op};

use super::port::{Outgoing, Port};

/// Asks the receiver of a packet what it has taken.
pub fn ask_for_credit(receiver: &mut Port, header: &Header, taps: &[Arc<dyn StreamTap>]) {
    let (op, len, flags) = (op::CREDIT_REQUEST.into(), 0.into(), 0.into());
    reply(receiver, Header { op, len, flags, ..*header }, taps);
}

/// The guest of `port` gets a packet without payload that no guest has sent.
pub fn reply(port: &mut Port, header: Header, taps: &[Arc<dyn StreamTap>]) {
    if !taps.is_empty() {
        show_header(taps, &header, None);
    }
    port.reply(header);
}

/// Shows what was delivered of a packet from its byte `before` on: the header that the receiver got, and
/// these bytes, which still lie in the memory of their sender.
#[cold]
pub fn show(taps: &[Arc<dyn StreamTap>], from: &Port, outgoing: &Outgoing, before: usize, whole: bool) {
    let len = outgoing.done - before;
    if len == 0 && !whole {
        return;
    }
    let mut header = outgoing.header;
    header.len = (len as u32).into();
    if !whole {
        header.flags = (header.flags.get() & !(END_OF_MESSAGE | END_OF_RECORD)).into();
    }
    show_header(taps, &header, Some(PacketPayload { spans: from.payload(), at: before, len }));
}

#[cold]
fn show_header(taps: &[Arc<dyn StreamTap>], header: &Header, payload: Option<PacketPayload<'_>>) {
    let now = wall_clock();
    taps.iter().for_each(|tap| tap.packet(header, payload, now));
}

/// The packet that ends the connection of `header` for its receiver, where its sender is not asked.
pub fn peer_reset(header: &Header) -> Header {
    let (src, dst) = (header.src_cid.get() as u32, header.dst_cid.get() as u32);
    Header::new((src, header.src_port.get()), (dst, header.dst_port.get()), header.kind.get(), op::RST)
}
