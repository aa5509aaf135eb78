//! The layouts that guests, VMMs and host processes send, each by itself: what is read can be written again
//! and is the same, what cannot be is nothing. The first byte says which.

use vmlane_guestsim::nic::desc::{RxFields, TxFields, rx_desc, tx_completion, tx_desc};
use vmlane_state::Reader;
use vmlane_wire::ethernet::{Mac, Tci};
use vmlane_wire::vmci::{DatagramHeader, DmaElement, DmaHeader, Handle, QueuePairAlloc, RawHandle, Reg};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use vmlane_wire::vmxnet3::desc::{
    MAX_TX_LEN, OffloadMode, RssType, RxCompletion, RxDesc, RxLayers, TxDesc, completion_generation,
};
use vmlane_wire::vmxnet3::{regs, shared};
use vmlane_wire::{host, vfio_user, vhost_user, virtio, virtio_vsock, vmci};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 12 {
        0 => vfio(bytes),
        1 => vhost(bytes),
        2 => datagram(bytes),
        3 => control(bytes),
        4 => vsock(bytes),
        5 => transmit(bytes),
        6 => receive(bytes),
        7 => completion(bytes),
        8 => blocks(bytes),
        9 => host_request(bytes),
        10 => record(bytes),
        _ => numbers(bytes),
    }
}

/// The layout at the front, if there are enough bytes: the same bytes again.
fn front<T: FromBytes + IntoBytes + Immutable + KnownLayout>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let read = T::read_from_prefix(bytes);
    assert_eq!(read.is_ok(), bytes.len() >= size_of::<T>());
    let (value, rest) = read.ok()?;
    assert_eq!(value.as_bytes(), &bytes[..size_of::<T>()]);
    Some((value, rest))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(8 * at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn vfio(bytes: &[u8]) {
    use vfio_user::*;
    let Some((header, body)) = front::<Header>(bytes) else { return };
    let echo = Header::failure(&header, 22);
    assert!(echo.failed() && !echo.no_reply() && echo.kind() == Kind::Reply && echo.size.get() == 16);
    let reply = Header::reply(&header, body.len());
    assert!(!reply.failed() && reply.size.get() as usize == HEADER + body.len());
    for answer in [echo, reply] {
        assert_eq!((answer.id, answer.command), (header.id, header.command));
    }
    let Some(command) = Command::from_code(header.command.get()) else { return };
    assert_eq!(command.code(), header.command.get());
    match command {
        Command::Version => drop(front::<Version>(body)),
        Command::DmaMap => {
            if let Some((map, _)) = front::<DmaMap>(body) {
                assert_eq!(map.writable(), body[4] & 2 != 0);
            }
        }
        Command::DmaUnmap => drop(front::<DmaUnmap>(body)),
        Command::DeviceInfo => drop(front::<DeviceInfo>(body)),
        Command::RegionInfo => drop(front::<RegionInfo>(body)),
        Command::IrqInfo => drop(front::<IrqInfo>(body)),
        Command::SetIrqs => {
            let Some((set, _)) = split::<SetIrqs>(body) else { return };
            let flags = set.flags.get();
            let one = |bits: u32| (flags & bits).count_ones() == 1;
            assert_eq!(set.operation().is_some(), one(7) && one(56) && flags < 64, "{flags:#x}");
        }
        _ => drop(front::<RegionAccess>(body)),
    }
}

fn vhost(bytes: &[u8]) {
    use vhost_user::*;
    let Some((header, body)) = front::<Header>(bytes) else { return };
    assert!(!(header.is_request() && header.is_reply()));
    let (number, needs) = (header.request.get(), header.needs_reply());
    let again = Header::request(number, body.len(), needs);
    assert!(again.is_request() && again.needs_reply() == needs && again.size.get() as usize == body.len());
    assert!(Header::reply(number, 0).is_reply());
    match number {
        request::SET_MEM_TABLE => {
            let Some((table, mut rest)) = front::<MemoryTable>(body) else { return };
            for _ in 0..table.regions.get().min(MAX_FDS as u32) {
                let Some((_, behind)) = front::<MemoryRegion>(rest) else { return };
                rest = behind;
            }
        }
        request::SET_VRING_ADDR => drop(front::<RingAddress>(body)),
        request::ADD_MEM_REG | request::REM_MEM_REG => drop(front::<OneRegion>(body)),
        request::SET_LOG_BASE => drop(front::<LogBase>(body)),
        request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD => drop(front::<InflightArea>(body)),
        request::GET_CONFIG | request::SET_CONFIG => drop(front::<ConfigSpace>(body)),
        _ => drop(front::<RingState>(body)),
    }
}

fn datagram(bytes: &[u8]) {
    let Some((header, body)) = front::<DatagramHeader>(bytes) else { return };
    let (dst, src) = (header.dst(), header.src());
    if let Ok(claimed) = usize::try_from(header.payload_size()) {
        let same = DatagramHeader::new(dst, src, claimed);
        assert_eq!(same.as_bytes(), header.as_bytes());
        assert!(claimed > vmci::MAX_HYPERCALL || vmci::padded(claimed) - claimed < 8);
    }
    assert_eq!(Handle::from(RawHandle::from(dst)), dst);
    if let Some((dma, list)) = front::<DmaHeader>(body) {
        let same = DmaHeader::new(0, dma.opcode(), dma.size());
        assert_eq!((same.opcode(), same.size()), (dma.opcode(), dma.size()));
        let _ = front::<DmaElement>(list);
    }
    if let Some((call, _)) = front::<QueuePairAlloc>(body) {
        assert_eq!(RawHandle::from(Handle::from(call.handle)).as_bytes(), &body[..8]);
    }
}

fn control(bytes: &[u8]) {
    let packet = ControlPacket::parse(bytes);
    assert_eq!(packet.is_some(), bytes.len() >= 32);
    let Some(packet) = packet else { return };
    let (handle, size) = (packet.handle(), packet.size());
    assert_eq!(packet.with_handle(handle).as_bytes(), packet.as_bytes());
    assert_eq!(packet.with_size(size, packet.proto()).as_bytes(), packet.as_bytes());
    assert_eq!(packet.with_mode(packet.mode()).as_bytes(), &bytes[..32]);
    let Some(kind) = packet.kind() else {
        assert!(PacketType::from_wire(bytes[1]).is_none() && bytes[1] > 12);
        return;
    };
    let same = ControlPacket::new(kind, packet.src_port(), packet.dst_port());
    assert!(same.kind() == Some(kind) && same.as_bytes()[4..12] == bytes[4..12]);
    let turned = packet.with_ports(packet.dst_port(), packet.src_port());
    assert_eq!((turned.src_port(), turned.dst_port()), (packet.dst_port(), packet.src_port()));
}

fn vsock(bytes: &[u8]) {
    use virtio_vsock::{Header, op};
    let Some((header, _)) = front::<Header>(bytes) else { return };
    let reset = header.reset();
    assert!(reset.op.get() == op::RST && reset.len.get() == 0 && reset.flags.get() == 0);
    assert_eq!((reset.src_cid, reset.src_port), (header.dst_cid, header.dst_port));
    assert_eq!((reset.dst_cid, reset.dst_port), (header.src_cid, header.src_port));
    let back = reset.reset();
    assert_eq!((back.src_cid, back.dst_cid, back.kind), (header.src_cid, header.dst_cid, header.kind));
}

fn transmit(bytes: &[u8]) {
    let desc = TxDesc::from_words(word(bytes, 0), word(bytes, 1));
    assert!((1..=MAX_TX_LEN).contains(&desc.len()) && desc.header() < 1024 && desc.mss_or_field() < 16384);
    let mut same = tx_desc(desc.addr, desc.len())
        .with_generation(desc.control() >> 14 & 1 != 0)
        .with_offload(desc.mode(), desc.header(), desc.mss_or_field());
    if desc.end() {
        same = same.with_end(desc.wants_completion());
    }
    for (set, with) in [
        (desc.inner(), TxFields::with_inner as fn(TxDesc) -> TxDesc),
        (desc.outer_sum(), TxFields::with_outer_sum),
        (desc.unknown_type(), TxFields::with_unknown_type),
    ] {
        same = if set { with(same) } else { same };
    }
    same = desc.tag().map_or(same, |tag| same.with_tag(tag));
    // What a driver leaves in fields that do not count is not kept; bit 46 is reserved.
    let mut counts = !(1 << 46);
    counts &= if desc.tag().is_none() { (1 << 48) - 1 } else { u64::MAX };
    counts &= if desc.end() { u64::MAX } else { !(1 << 45) };
    assert_eq!(same.control(), desc.control() & counts);
    assert_eq!(desc.mode() == OffloadMode::None, desc.control() >> 42 & 3 == 0);
}

fn receive(bytes: &[u8]) {
    let (addr, control) = (word(bytes, 0), word(bytes, 1));
    let desc = RxDesc::from_words(addr, control);
    let same = rx_desc(addr, desc.len(), desc.is_body(), control >> 31 & 1 != 0);
    assert_eq!(same.control(), control & 0x8000_7fff);
    assert_eq!(desc.is_empty(), control & 0x3fff == 0);
    let [low, high] = [word(bytes, 2), word(bytes, 3)];
    match tx_completion(low, high) {
        Some(done) => assert_eq!(done.words(completion_generation(high)), [low, high]),
        None => assert!(low > 0xfff || high << 1 != 0),
    }
}

/// A completion put together from a guest's frame says what was put in.
fn completion(bytes: &[u8]) {
    let (flags, rest) = (word(bytes, 0), word(bytes, 1));
    let bit = |at: u32| flags >> at & 1 != 0;
    let (v4, tcp) = (bit(0), bit(1));
    let layers = RxLayers { v4, v6: !v4 && bit(2), tcp, udp: !tcp && bit(3), fragment: bit(4), good: bit(5) };
    let tag = bit(6).then_some(Tci(rest as u16));
    let (index, ring, len) = ((rest >> 16) as u16 & 0xfff, (rest >> 28) as u16 & 0x3ff, (rest >> 40) as u16);
    let done = RxCompletion::of(layers, tag).buffer(index, ring, len & 0x3fff).ends(bit(7), bit(8));
    let aggregate = bit(9).then_some(((flags >> 16) as u8, (flags >> 24) as u16));
    let hash = (flags >> 32) as u32;
    let done = match aggregate {
        Some((segments, mss)) => done.lro(segments, mss),
        None => done.rss(RssType::Tcp4, hash),
    };
    let [low, high] = done.words(bit(10));
    assert_eq!(completion_generation(high), bit(10));
    let read = RxCompletion::from_words(low, high);
    assert!(read == done && read.layers() == layers && read.tag() == tag && read.place() == (index, ring));
    assert_eq!((read.index(), read.ring(), read.len()), (index, ring, usize::from(len & 0x3fff)));
    assert!(read.is_start() == bit(7) && read.is_end() == bit(8) && read.is_frame_good() && !read.is_error());
    assert_eq!(read.aggregate(), aggregate);
    assert!(aggregate.is_some() || read.hash() == (2, hash) && read.sum() == 0);
}

fn blocks(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first % 6 {
        0 => drop(front::<shared::DriverShared>(rest)),
        1 => drop(front::<shared::TxQueueDesc>(rest)),
        2 => drop(front::<shared::RxQueueDesc>(rest)),
        3 => drop(front::<shared::RssBlock>(rest)),
        4 => drop(front::<shared::Coalesce>(rest)),
        _ => {
            if let Some((block, _)) = front::<shared::ExtendedInterruptBlock>(rest) {
                assert_eq!(block.auto_mask(), rest[0] != 0);
            }
        }
    }
}

fn host_request(bytes: &[u8]) {
    use host::{MAGIC, Peer, Reply, Request, VERSION};
    let Some((request, rest)) = front::<Request>(bytes) else { return };
    let ours = request.magic.get() == MAGIC && request.version.get() == VERSION;
    assert_eq!(request.op().is_some(), ours && (1..=3).contains(&request.op.get()));
    if let Some(op) = request.op() {
        let words = [request.cid, request.port, request.arg, request.flags].map(|word| word.get());
        assert_eq!(op as u16, request.op.get());
        let same = Request::new(op, words[0], words[1], words[2], words[3]);
        assert_eq!(same.as_bytes(), request.as_bytes());
    }
    if let Some((reply, rest)) = front::<Reply>(rest) {
        let same = Reply::new(reply.error.get(), reply.cid.get(), reply.port.get());
        assert_eq!(same.as_bytes()[4..], reply.as_bytes()[4..]);
        let _ = front::<Peer>(rest);
    }
}

/// Records of state, by a schema that the input chooses: never past the end, never more than is there.
fn record(bytes: &[u8]) {
    let Some((schema, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let mut reader = Reader::new(bytes);
    for step in 0..4 {
        let before = reader.0.len();
        let whole = match u16::from_le_bytes(*schema) >> (3 * step) & 7 {
            0 => reader.u8().map(|_| before - 1),
            1 => reader.u32().map(|_| before - 4),
            2 => reader.u64().map(|_| before - 8),
            3 => reader.flag().map(|_| before - 1),
            4 => reader.option().map(|_| before - 9),
            5 => reader.words().map(|words| before - 4 - 8 * words.len()),
            _ => reader.bytes().map(|bytes| before - 4 - bytes.len()),
        };
        let Some(left) = whole else { return };
        assert_eq!(reader.0.len(), left);
    }
    assert_eq!(reader.end().is_some(), reader.0.is_empty());
}

/// Registers, commands, addresses as text, the sums of rings.
fn numbers(bytes: &[u8]) {
    let (number, more) = (word(bytes, 0), word(bytes, 1));
    if let Some(reg) = Reg::at(number) {
        assert_eq!(reg.offset(), number);
    }
    if let Some(reg) = regs::Reg::at(number) {
        assert_eq!(reg.offset(), number);
    }
    if let Some(reg) = regs::PageReg::at(number) {
        assert!(regs::PageReg::at(reg.offset()) == Some(reg), "{number:#x}");
    }
    if let Some(command) = regs::Command::from_code(number as u32) {
        assert_eq!(command.code(), number as u32);
    }
    let [old, step, ahead] = [number, more, more >> 16].map(|word| word as u16);
    // Of all places ahead of `old`, those are passed that lie within the step.
    let passed = virtio::passes(old.wrapping_add(ahead), old.wrapping_add(step), old);
    assert_eq!(passed, ahead < step, "{ahead} ahead, {step} steps");
    if let Some(text) = bytes.get(..17).and_then(|text| std::str::from_utf8(text).ok())
        && let Ok(mac) = text.parse::<Mac>()
    {
        assert!(mac.to_string() == text.to_ascii_lowercase().replace('-', ":"));
    }
}
