//! A guest that does whatever hurts: sizes, addresses, names, floods, at random.

use vmlane_device::vmci::Limits;
use vmlane_guestsim::{Driver, Machine, PairSpec, Path, Placement, Queues, alloc_call};
use vmlane_wire::vmci::{
    CID_ANY, DMA_INLINE, DMA_LIST, DmaElement, DmaHeader, Handle, INVALID_ID, Reg, call, datagram,
};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::{Sizes, detach};

/// Connections that a guest of its kind may have.
pub const CONNECTIONS: usize = 100;

/// What else such a guest may use.
pub const LIMITS: Limits = Limits {
    queue_pairs: 64,
    queue_pair_bytes: Some(8 << 20),
    doorbells: 200,
    inbox_bytes: 2 * 69_632,
    overflow_bytes: 1 << 20,
};

/// A guest without manners.
pub struct Villain {
    driver: Driver,
    random: Sizes,
    /// Handles of its own pairs, so that some get detached.
    pairs: Vec<(Handle, Vec<u64>)>,
}

impl Villain {
    pub fn new(machine: &Machine, path: Path) -> Villain {
        Villain { driver: machine.probe(path), random: Sizes::new(0xbad, 1 << 20), pairs: Vec::new() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.next() % limit
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn any_cid(&mut self) -> u32 {
        self.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 99, CID_ANY])
    }

    /// Handles that the honest guests use, and others.
    fn any_handle(&mut self) -> Handle {
        Handle::new(self.any_cid(), self.pick(&[0, 1, 1023, 1024, 1025, 1030, 5000, INVALID_ID]))
    }

    /// One bad deed.
    pub fn act(&mut self) {
        match self.below(12) {
            0 => self.wrong_sizes(),
            1 => self.buffers_out_of_memory(),
            2 | 3 => self.queue_pairs(),
            4 => self.other_peoples_pairs(),
            5 => self.forged_sources(),
            6 => self.doorbells_and_maps(),
            7 => self.request_flood(),
            8 | 9 => self.packet_flood(),
            10 => self.datagram_flood(),
            _ => self.registers(),
        }
    }

    fn wrong_sizes(&mut self) {
        let handle = self.any_handle();
        let mut bytes = datagram(handle, Handle::new(self.driver.cid, 9), &[0xa5; 200]);
        let claimed = self.pick(&[0, 199, 201, 69_609, 262_225, u64::MAX]);
        bytes[16..24].copy_from_slice(&claimed.to_le_bytes());
        let len = self.pick(&[1, 23, 24, 100, 224]);
        self.driver.send(&bytes[..len]);
        let (id, len) = (self.below(20) as u32, self.below(64));
        self.driver.call(id, &[0xff; 64][..len]);
    }

    fn buffers_out_of_memory(&mut self) {
        let (opcode, size) =
            (self.pick(&[DMA_INLINE, DMA_LIST, 9]), self.pick(&[1, 18, 19, 69_632, u32::MAX]));
        let address = self.pick(&[0, 0xf_ffff, 1 << 33, u64::MAX - 10]);
        let (pages, _) = self.driver.send_buffer();
        pages.write(0, DmaHeader::new(1, opcode, size).as_bytes());
        pages.write(24, DmaElement { addr: address.into(), size: u64::from(size).into() }.as_bytes());
        self.driver.start_send();
        for reg in [Reg::DataInLow, Reg::DataInHigh] {
            self.driver.write(reg, address as u32);
        }
    }

    fn queue_pairs(&mut self) {
        let handle = Handle::new(self.driver.cid, 1024 + self.below(200) as u32);
        let spec = PairSpec {
            handle,
            peer: self.pick(&[3, 4, 5, 6, CID_ANY]),
            flags: self.below(16) as u32,
            produce: self.pick(&[0, 1, 128, 4096, 5003, 262_144, u64::MAX]),
            consume: self.pick(&[0, 2, 128, 4096, 65_536, 128 << 20]),
        };
        let count = (spec.produce.saturating_add(spec.consume)).min(1 << 20).div_ceil(4096) as usize + 2;
        let mut pages = self.driver.ram.alloc(count, Placement::Scattered);
        let own = pages.clone();
        match self.below(4) {
            0 => pages.fill(own[0]),
            1 => pages.reverse(),
            2 => pages[count - 1] = 0xdead_b000,
            _ => {}
        }
        let result = self.driver.call(call::QUEUEPAIR_ALLOC, &alloc_call(&spec, &pages, true));
        if result < 0 {
            self.driver.ram.free(&own);
        } else {
            self.pairs.push((handle, own));
        }
        if self.pairs.len() > 20 {
            let index = self.below(self.pairs.len());
            let (handle, pages) = self.pairs.swap_remove(index);
            detach(&mut self.driver, handle);
            self.driver.ram.free(&pages);
        }
    }

    fn other_peoples_pairs(&mut self) {
        let handle = self.any_handle();
        if handle.context != self.driver.cid {
            detach(&mut self.driver, handle);
        }
        let size = self.pick(&[4096, 65_536, 262_144]);
        let spec = PairSpec { handle, peer: self.any_cid(), flags: 1, produce: size, consume: size };
        if handle.context != self.driver.cid {
            // Attaching to what an accomplice has made succeeds now and then; the pages stay in use.
            let _ = self.driver.alloc(&spec, Placement::Scattered).map(|queues| self.keep(queues));
        }
        let kind = self.pick(&[PacketType::Offer, PacketType::Attach]);
        let packet = ControlPacket::new(kind, 1024, 5000).with_handle(handle);
        self.driver.control(self.random.next() as u32 % 7, packet);
    }

    fn keep(&mut self, queues: Queues) {
        self.pairs.push((queues.handle, queues.addresses));
    }

    fn forged_sources(&mut self) {
        let (dst, src) = (self.any_handle(), self.any_handle());
        if src.context != self.driver.cid && dst.context != 0 {
            let result = self.driver.send(&datagram(dst, src, &[0; 32]));
            assert!(result < 0, "{src} was accepted as a source");
        }
    }

    fn doorbells_and_maps(&mut self) {
        let payload = [u64::from(self.driver.cid) | (self.below(5000) as u64) << 32, self.below(5000) as u64];
        let id = self.pick(&[
            call::DOORBELL_LINK,
            call::DOORBELL_LINK,
            call::DOORBELL_UNLINK,
            call::DOORBELL_NOTIFY,
            call::DATAGRAM_REQUEST_MAP,
            call::DATAGRAM_REMOVE_MAP,
        ]);
        self.driver.call(id, payload.map(u64::to_le_bytes).as_flattened());
    }

    fn request_flood(&mut self) {
        for _ in 0..20 {
            let port = self.below(1 << 16) as u32;
            let request = ControlPacket::new(PacketType::Request2, port, 9).with_size(u64::from(port), 1);
            let cid = self.pick(&[3, 4, 5, 6]);
            self.driver.control(cid, request);
        }
    }

    /// Every type, at the honest connections' ports and its own.
    fn packet_flood(&mut self) {
        for _ in 0..20 {
            let kind = PacketType::from_wire(self.below(13) as u8).expect("a type");
            let (src, dst) = (self.pick(&[1024, 1025, 5000, 5001]), self.pick(&[1024, 1025, 5000, 5001]));
            let mut packet = ControlPacket::new(kind, src, dst).with_mode(3);
            packet.as_mut_bytes()[1] = self.pick(&[kind as u8, kind as u8, 5, 6, 7, 13, 255]);
            let cid = self.pick(&[2, 3, 4, 5, 6]);
            self.driver.control(cid, packet);
        }
    }

    fn datagram_flood(&mut self) {
        let size = self.pick(&[0, 1000, 69_608]);
        for _ in 0..5 {
            let cid = self.pick(&[3, 4, 5, 6]);
            self.driver.send_to(Handle::new(cid, 77), 9, &vec![0x5a; size]);
        }
    }

    fn registers(&mut self) {
        let (region, offset) = (self.pick(&[0, 1]), self.below(0x60) as u64);
        let offset = if region == 1 { 0x2_0000 + offset } else { offset };
        // Resets are for other tests: they would undo the rest of the mischief.
        if !(4..8).contains(&(offset & 0xff)) && !(0x18..0x1c).contains(&(offset & 0xff)) {
            let value = self.random.next() as u32;
            self.driver.registers_mut().write32(region, offset, value);
        }
        let mut bytes = [0; 9];
        let len = self.below(9);
        self.driver.registers_mut().read_bytes(region, offset & 0x3f, &mut bytes[..len]);
        self.driver.write(Reg::GuestPageShift, 12);
        self.driver.restore_addresses();
    }
}
