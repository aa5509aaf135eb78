//! What the worker does with it: it reads the multicast messages of ports that snoop, and asks their guests.

use std::time::Instant;

use vmlane_port::{ChecksumStatus, RxFrame};
use vmlane_wire::ethernet::{HEADER, Mac, Tci};

use super::{ANY, Change, Group, Message, Snooped, group_key, kind, message, query, records};
use crate::Slot;
use crate::ingress::Frame;
use crate::parse;
use crate::port::Port;
use crate::table::Table;

/// Bytes of a packet that are read, at most: a report is no longer than a frame.
const LONGEST: usize = 1500;

/// Where the packet of a frame begins in its head, and of what kind it is.
fn packet<'h>(frame: &Frame<'h>) -> Option<(u16, &'h [u8])> {
    Some((parse::word(frame.head, HEADER - 2)?, frame.head.get(HEADER..)?))
}

/// Could it be a message of IGMP or MLD?
fn is_control(ether_type: u16, packet: &[u8]) -> bool {
    use vmlane_wire::ethernet::ether_type::{IPV4, IPV6};
    match ether_type {
        IPV4 => packet.get(9) == Some(&2),
        IPV6 => packet.get(6) == Some(&0) && packet.get(40) == Some(&58),
        _ => false,
    }
}

/// What a frame to a group address is; notes what it reports of its sender's groups.
#[cold]
pub fn classify(sender: &mut Port, frame: &Frame<'_>, vlan: u16, now: Instant) -> Group {
    let to = frame.destination();
    let Some((ether_type, head)) = packet(frame) else { return ANY };
    let group = (kind(to, ether_type, head), group_key(vlan, to));
    if let Some(snooped) = sender.snooped_mut()
        && is_control(ether_type, head)
    {
        // One copy of the guest's bytes, of which all is checked.
        let mut bytes = [0; LONGEST];
        let len = (frame.len() - HEADER).min(LONGEST);
        let Some(bytes) = bytes.get_mut(..len) else { return group };
        frame.tx.spans.read(HEADER + frame.popped, bytes);
        let refused = note(snooped, message(ether_type, bytes), vlan, now);
        sender.stats.multicast_refused.bump(refused);
    }
    group
}

/// Notes what a message reports. Returns how many groups were refused.
fn note(snooped: &mut Snooped, message: Option<Message<'_>>, vlan: u16, now: Instant) -> u64 {
    let mut change = |change: Change| u64::from(!snooped.change(vlan, change, now));
    match message {
        None => 0,
        Some(Message::Query) => {
            snooped.note_router(now);
            0
        }
        Some(Message::One(one)) => change(one),
        Some(Message::Records { v6, count, bytes }) => records(v6, count, bytes).map(&mut change).sum(),
    }
}

impl Port {
    /// Does it get a frame to a group?
    #[inline]
    pub fn gets(&self, (kind, key): Group, now: Instant) -> bool {
        self.snooped().is_none_or(|snooped| snooped.wants(kind, key, now))
    }

    /// Sends a frame of the switch's own to a group address. False: it is not wanted, or there is no buffer
    /// for it.
    pub fn send_own(&mut self, head: &[u8], tag: Option<Tci>, body: &vmlane_mem::Spans) -> bool {
        let to = head.first_chunk::<6>().map_or(Mac::default(), |bytes| Mac(*bytes));
        if !self.accepts_group(to) {
            return false;
        }
        let frame = RxFrame {
            head,
            body,
            body_at: 0,
            body_len: 0,
            tag,
            layers: parse::layers(head),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        };
        let sent = self.end.as_mut().is_some_and(|end| end.deliver(std::slice::from_ref(&frame)).is_ok());
        if sent {
            self.rx.counts.frames += 1;
            self.rx.counts.bytes += head.len() as u64;
        }
        sent
    }
}

/// Asks the guest of a port for its groups, if it is time: in its own VLAN, and in those in which it is in
/// any group.
#[cold]
pub fn ask_for_groups(table: &mut Table, slot: Slot, now: Instant) {
    let Table { ports, nothing, .. } = table;
    let Some(port) = ports.get_mut(slot) else { return };
    let Some(answers) = port.snooped_mut().and_then(|snooped| snooped.asks(now)) else { return };
    let frames = [&query::igmp(answers)[..], &query::mld(answers)];
    let native = port.config.vlan.ingress(None);
    // One that finds no buffers comes again.
    let ask = |port: &mut Port, tag| {
        for frame in frames {
            port.send_own(frame, tag, nothing);
        }
    };
    if native.is_some() {
        ask(port, None);
    }
    let mut after = 0;
    while let Some(vlan) = port.snooped().and_then(|snooped| snooped.vlan_after(after)) {
        after = vlan;
        if Some(vlan) != native && port.carries(vlan) {
            ask(port, Some(Tci::default().with_vlan(vlan)));
        }
    }
    table.mark(slot);
}
