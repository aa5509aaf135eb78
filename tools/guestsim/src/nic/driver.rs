//! A driver that makes its NIC active through registers, in Linux's order.

use vmlane_mem::Window;
use vmlane_wire::vmxnet3::regs::{Command, PageReg, Reg, capability, feature, rx_mode};
use vmlane_wire::vmxnet3::shared::{
    DriverShared, EXTENDED_SIZE, ExtendedInterruptBlock, MAGIC, QUEUE_SIZE, RssBlock, RxQueueDesc,
    TxQueueDesc, at,
};
use zerocopy::{FromZeros, IntoBytes};

use super::registers::NicRegisters;
use super::rx_ring::{RxRings, RxShape};
use super::tx_ring::TxRing;
use super::{alloc, window};

/// What a driver is set up for.
#[derive(Clone, Debug)]
pub struct DriverSpec {
    pub revision: u8,
    pub tx_queues: u8,
    pub rx_queues: u8,
    pub mtu: u32,
    pub max_rx_sg: u16,
    /// Descriptors of a transmit queue.
    pub tx: u16,
    pub rx: RxShape,
    pub features: u64,
    pub rx_mode: u32,
    pub auto_mask: bool,
}

impl DriverSpec {
    /// Linux with one queue pair and small rings.
    pub fn linux(revision: u8) -> DriverSpec {
        DriverSpec {
            revision,
            tx_queues: 1,
            rx_queues: 1,
            mtu: 1500,
            max_rx_sg: 18,
            tx: 64,
            rx: RxShape::linux(64),
            features: feature::RX_CHECKSUM | feature::RX_VLAN | feature::LRO,
            rx_mode: rx_mode::UNICAST | rx_mode::BROADCAST,
            auto_mask: false,
        }
    }

    /// `count` queue pairs with scaling.
    pub fn with_queues(self, count: u8) -> DriverSpec {
        let features = self.features | feature::RSS;
        DriverSpec { tx_queues: count, rx_queues: count, features, ..self }
    }
}

/// A driver and what it has in memory. The copies are written there by [`NicDriver::store`].
pub struct NicDriver {
    pub spec: DriverSpec,
    pub shared: DriverShared,
    /// Stored behind the shared area if there is one.
    pub extended: Option<ExtendedInterruptBlock>,
    pub tx_descs: Vec<TxQueueDesc>,
    pub rx_descs: Vec<RxQueueDesc>,
    pub rss: RssBlock,
    pub tx: Vec<TxRing>,
    pub rx: Vec<RxRings>,
    /// Address of the shared area, of the queue descriptors, of the RSS block, of a spare page.
    pub area: u64,
    pub table: u64,
    pub rss_at: u64,
    pub spare: u64,
    /// Doorbells are in the second page of BAR 0.
    large_bar: bool,
    area_window: Window,
    table_window: Window,
}

impl NicDriver {
    /// Chooses the revision, allocates and fills everything; nothing is active yet.
    pub fn probe(machine: &dyn NicRegisters, spec: DriverSpec) -> NicDriver {
        machine.write(Reg::Revision, 1 << (spec.revision - 1));
        assert_eq!(machine.read(Reg::UptRevision) & 1, 1);
        machine.write(Reg::UptRevision, 1);
        let large_bar = spec.revision >= 7 && wish_large_bar(machine);
        NicDriver { large_bar, ..NicDriver::allocate(machine, spec) }
    }

    /// The same without telling the device.
    pub fn allocate(machine: &dyn NicRegisters, spec: DriverSpec) -> NicDriver {
        let ram = machine.ram();
        let (tx_count, rx_count) = (usize::from(spec.tx_queues), usize::from(spec.rx_queues));
        let tx: Vec<_> = (0..tx_count).map(|_| TxRing::new(ram, spec.tx, spec.tx)).collect();
        let rx = (0..spec.rx_queues)
            .map(|number| RxRings::new(ram, &spec.rx, number.into(), spec.rx_queues.into()));
        let rx: Vec<_> = rx.collect();
        let table_len = (tx_count + rx_count) * QUEUE_SIZE;
        let (area, table, rss_at, spare) =
            (alloc(ram, EXTENDED_SIZE), alloc(ram, table_len), alloc(ram, 4096), alloc(ram, 4096));
        let mut driver = NicDriver {
            shared: DriverShared::new_zeroed(),
            extended: None,
            tx_descs: tx.iter().map(tx_desc).collect(),
            rx_descs: rx.iter().map(rx_desc).collect(),
            rss: rss_block(spec.rx_queues),
            area_window: window(ram, area, EXTENDED_SIZE),
            table_window: window(ram, table, table_len),
            large_bar: false,
            spec,
            tx,
            rx,
            area,
            table,
            rss_at,
            spare,
        };
        driver.number_vectors();
        driver.fill_shared();
        driver
    }

    /// Queue pairs share an index where they are equally many; events have the last one.
    fn number_vectors(&mut self) {
        let (tx, rx) = (self.spec.tx_queues, self.spec.rx_queues);
        let first_rx = if tx == rx { 0 } else { tx };
        (0..).zip(&mut self.tx_descs).for_each(|(index, desc)| desc.vector = index);
        (first_rx..).zip(&mut self.rx_descs).for_each(|(index, desc)| desc.vector = index);
        let event = first_rx + rx;
        // Every level as the device sees fit, and nothing fires yet.
        let auto_mask = self.spec.auto_mask.into();
        let block = &mut self.shared.interrupts;
        (block.auto_mask, block.event, block.count) = (auto_mask, event, event + 1);
        block.levels.fill(8);
        block.control.set(1);
        if self.spec.revision >= 6 && (tx > 8 || rx > 16) {
            let mut block = ExtendedInterruptBlock::new_zeroed();
            (block.auto_mask, block.event, block.count) = (auto_mask, event, event + 1);
            block.levels.fill(8);
            block.control.set(1);
            self.extended = Some(block);
        }
    }

    fn fill_shared(&mut self) {
        let (spec, shared) = (&self.spec, &mut self.shared);
        shared.magic.set(MAGIC);
        shared.features.set(spec.features);
        shared.queue_table.set(self.table);
        shared.queue_table_len.set((QUEUE_SIZE * (self.tx_descs.len() + self.rx_descs.len())) as u32);
        shared.mtu.set(spec.mtu);
        shared.max_rx_sg.set(spec.max_rx_sg);
        (shared.tx_queues, shared.rx_queues) = (spec.tx_queues, spec.rx_queues);
        shared.rx_mode.set(spec.rx_mode);
        // Linux always has VLAN 0 in its table.
        shared.vlan_table[0].set(1);
        shared.rss.version.set(1);
        shared.rss.len.set(size_of::<RssBlock>() as u32);
        shared.rss.addr.set(self.rss_at);
    }

    /// Writes the copies into memory.
    pub fn store(&self, machine: &dyn NicRegisters) {
        let ram = machine.ram();
        ram.write(self.area, self.shared.as_bytes());
        if let Some(extended) = &self.extended {
            ram.write(self.area + at::EXTENDED as u64, extended.as_bytes());
        }
        let tx = self.tx_descs.iter().map(IntoBytes::as_bytes);
        let rx = self.rx_descs.iter().map(IntoBytes::as_bytes);
        for (queue, desc) in tx.chain(rx).enumerate() {
            ram.write(self.table + (queue * QUEUE_SIZE) as u64, desc);
        }
        ram.write(self.rss_at, self.rss.as_bytes());
    }

    /// Stores, latches, activates; returns the command's result.
    pub fn try_activate(&self, machine: &dyn NicRegisters) -> u32 {
        self.store(machine);
        machine.set_shared(self.area);
        machine.command(Command::Activate)
    }

    /// Linux's whole open: buffers, activation, producers, filters, link, vectors unmasked.
    pub fn open(&mut self, machine: &dyn NicRegisters) {
        self.rx.iter_mut().for_each(RxRings::fill);
        assert_eq!(self.try_activate(machine), 0, "the activation was refused");
        for queue in 0..self.spec.rx_queues {
            machine.write_page(PageReg::RxProducer(queue), u32::from(self.spec.rx.ring0) - 1);
            machine.write_page(PageReg::RxProducer2(queue), u32::from(self.spec.rx.ring1.saturating_sub(1)));
        }
        for command in [Command::UpdateRxMode, Command::UpdateVlanFilters, Command::UpdateMacFilters] {
            assert_eq!(machine.command(command), 0);
        }
        assert_eq!(machine.command(Command::GetLink) & 1, 1);
        (0..self.vectors()).for_each(|index| machine.write_page(PageReg::Mask(index), 0));
        self.set_control(0);
    }

    /// The doorbell that is to be rung for what a transmit queue has posted. None: the device asks for none.
    /// Linux compares a count of frames, which is 1 for a frame that is sent alone.
    pub fn doorbell(&self, queue: u8) -> Option<PageReg> {
        let rings = self.queue_word(queue.into(), at::TX_THRESHOLD) <= 1;
        let doorbell =
            if self.large_bar { PageReg::LargeTxProducer(queue) } else { PageReg::TxProducer(queue) };
        rings.then_some(doorbell)
    }

    /// Rings it. False: the device asks for none.
    pub fn announce(&self, machine: &dyn NicRegisters, queue: u8) -> bool {
        let doorbell = self.doorbell(queue);
        doorbell.iter().for_each(|doorbell| machine.write_page(*doorbell, 1));
        doorbell.is_some()
    }

    /// Interrupt indices in use.
    pub fn vectors(&self) -> u8 {
        self.extended.map_or(self.shared.interrupts.count, |extended| extended.count)
    }

    /// The interrupt control word; 1: nothing fires.
    pub fn set_control(&self, word: u32) {
        let extended = self.extended.is_some();
        let at = if extended { at::EXTENDED_INTERRUPT_CONTROL } else { at::INTERRUPT_CONTROL };
        self.area_window.store_u32(at, word);
    }

    /// Linux's close.
    pub fn close(&mut self, machine: &dyn NicRegisters) {
        machine.write(Reg::Command, Command::Quiesce.code());
        self.set_control(1);
        (0..self.vectors()).for_each(|index| machine.write_page(PageReg::Mask(index), 1));
    }

    /// A word of the shared area as it is in memory now.
    pub fn area_word(&self, offset: usize) -> u32 {
        self.area_window.load_u32(offset)
    }

    pub fn set_area_word(&self, offset: usize, value: u32) {
        self.area_window.store_u32(offset, value);
    }

    /// Words of a queue descriptor as they are in memory now; transmit queues come first.
    pub fn queue_word(&self, queue: usize, offset: usize) -> u32 {
        self.table_window.load_u32(queue * QUEUE_SIZE + offset)
    }

    /// A row of a queue's statistics.
    pub fn row(&self, queue: usize, row: usize) -> u64 {
        self.table_window.load_u64(queue * QUEUE_SIZE + at::STATISTICS + 8 * row)
    }

    /// Writes arguments of a command.
    pub fn set_arguments(&self, machine: &dyn NicRegisters, arguments: &[u8]) {
        machine.ram().write(self.area + at::COMMAND_INFO as u64, arguments);
    }
}

/// Asks for doorbells in a second page, as Linux does where they are offered.
fn wish_large_bar(machine: &dyn NicRegisters) -> bool {
    let offered = machine.read(Reg::Capability(0)) & capability::LARGE_BAR;
    if offered != 0 {
        machine.write(Reg::Capability(0), offered);
    }
    machine.command(Command::GetCapabilities) & capability::LARGE_BAR != 0
}

fn tx_desc(ring: &TxRing) -> TxQueueDesc {
    let mut desc = TxQueueDesc::new_zeroed();
    desc.ring.set(ring.addresses[0]);
    desc.completions.set(ring.addresses[1]);
    desc.ring_size.set(ring.size().into());
    desc.completions_size.set(ring.completion_size().into());
    desc
}

fn rx_desc(rings: &RxRings) -> RxQueueDesc {
    let ([ring0, ring1, completions], shape) = (rings.addresses(), rings.shape());
    let mut desc = RxQueueDesc::new_zeroed();
    desc.rings[0].set(ring0);
    desc.rings[1].set(ring1);
    desc.completions.set(completions);
    desc.ring_sizes[0].set(shape.ring0.into());
    desc.ring_sizes[1].set(shape.ring1.into());
    desc.completions_size.set(shape.completions.into());
    if let Some((addr, slot)) = rings.data() {
        desc.data_ring.set(addr);
        desc.data_slot.set(slot);
    }
    desc
}

/// All four kinds hashed, entries spread evenly.
fn rss_block(queues: u8) -> RssBlock {
    let mut block = RssBlock::new_zeroed();
    block.hash_type.set(RssBlock::IPV4 | RssBlock::TCP4 | RssBlock::IPV6 | RssBlock::TCP6);
    block.function.set(RssBlock::TOEPLITZ);
    block.key_len.set(40);
    block.table_len.set(128);
    (0u8..).zip(&mut block.key).for_each(|(at, byte)| *byte = at.wrapping_mul(37) ^ 0x6d);
    (0u8..).zip(&mut block.table).for_each(|(at, entry)| *entry = at % queues.max(1));
    block
}
