//! ACTIVATE: what the driver put into memory becomes a [`Setup`](super::setup::Setup), or is refused
//! with a reason. Everything is copied out once; only the copies are examined.

use vmlane_mem::{MemoryMap, Window};
use vmlane_wire::vmxnet3::regs::{EXTENDED_VECTORS, VECTORS};
use vmlane_wire::vmxnet3::shared::{
    DriverShared, EXTENDED_SIZE, ExtendedInterruptBlock, MAGIC, QUEUE_SIZE, RxQueueDesc, TxQueueDesc, at,
};
use zerocopy::{FromZeros, IntoBytes};

use super::setup::{Ring, RxSetup, TxSetup};

/// Bytes of a descriptor of any ring.
const DESCRIPTOR: usize = 16;
const MAX_RING: u32 = 4096;
const MAX_RX_COMPLETIONS: u32 = 8192;
const MIN_MTU: u32 = 60;
/// Where the array of queue descriptors may start.
const TABLE_ALIGN: u64 = 128;
/// Bytes of a slot of the receive data ring.
const DATA_SLOTS: std::ops::RangeInclusive<u16> = 64..=2048;
const DATA_SLOT_STEP: u16 = 64;

/// A ring, in the words of the driver's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingName {
    Tx,
    TxCompletion,
    Rx0,
    Rx1,
    RxCompletion,
}

impl std::fmt::Display for RingName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RingName::Tx => "txRing",
            RingName::TxCompletion => "tx compRing",
            RingName::Rx0 => "rxRing[0]",
            RingName::Rx1 => "rxRing[1]",
            RingName::RxCompletion => "rx compRing",
        })
    }
}

/// Why an activation was refused: the field and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedActivation {
    #[error("no shared area: DSAL and DSAH are 0")]
    NoSharedArea,
    #[error("bus mastering is off in the PCI command register")]
    NotBusMaster,
    #[error("shared area at {addr:#x}: {len} bytes are not in one piece of writable memory, or unaligned")]
    SharedArea { addr: u64, len: usize },
    #[error("magic is {found:#x}, not {MAGIC:#x}")]
    Magic { found: u32 },
    #[error("numTxQueues is {count}: between 1 and {most} are possible")]
    TxQueues { count: u8, most: u8 },
    #[error("numRxQueues is {count}: between 1 and {most} are possible")]
    RxQueues { count: u8, most: u8 },
    #[error(
        "queueDescPA {addr:#x}: {len} bytes are not in one piece of writable memory, or not {TABLE_ALIGN}-aligned"
    )]
    QueueTable { addr: u64, len: usize },
    #[error("mtu is {mtu}: between {MIN_MTU} and {most} are possible")]
    Mtu { mtu: u32, most: u32 },
    #[error("numIntrs is {count}: between 1 and {most} are possible")]
    Interrupts { count: u8, most: u8 },
    #[error("eventIntrIdx is {index}, numIntrs {count}")]
    EventVector { index: u8, count: u8 },
    #[error("queue {queue}: intrIdx is {index}, numIntrs {count}")]
    Vector { queue: u8, index: u8, count: u8 },
    #[error("queue {queue}: {ring} has {size} descriptors: between 1 and {most} are possible")]
    RingSize { ring: RingName, queue: u8, size: u32, most: u32 },
    #[error(
        "queue {queue}: {ring} at {addr:#x}, {size} descriptors, is not in one piece of memory, or unaligned"
    )]
    RingMemory { ring: RingName, queue: u8, addr: u64, size: u32 },
}

/// What decides beside the shared area.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The revision by which fields are read.
    pub revision: u8,
    /// The driver chose it (a driver that chose none has no extended interrupt block).
    pub chosen: bool,
    /// The most queues of either kind that the NIC has (revision 6 on).
    pub max_queues: u8,
}

impl Rules {
    /// The most transmit and receive queues. Earlier revisions cannot ask how many there are.
    pub fn queues(&self) -> (u8, u8) {
        if self.revision >= 6 && self.chosen { (self.max_queues, self.max_queues) } else { (8, 16) }
    }

    fn max_mtu(&self) -> u32 {
        if self.revision >= 6 { 9190 } else { 9000 }
    }

    fn is_extended(&self, tx: u8, rx: u8) -> bool {
        self.revision >= 6 && (tx > 8 || rx > 16)
    }
}

/// Interrupts, from whichever block holds them.
#[derive(Clone, Copy, Debug)]
pub struct InterruptSetup {
    pub auto_mask: bool,
    pub count: u8,
    pub event: u8,
    /// Offsets in DriverShared: the control word, the moderation level of index 0.
    pub control: usize,
    pub levels: usize,
}

/// A shared area that was found in order.
#[derive(Debug)]
pub struct Checked {
    pub area: Window,
    /// All queue descriptors.
    pub table: Window,
    pub driver: DriverShared,
    pub interrupts: InterruptSetup,
    pub mtu: u16,
    pub tx: Vec<TxSetup>,
    pub rx: Vec<RxSetup>,
}

/// Copies DriverShared out of the window over it.
pub fn snapshot(area: &Window) -> DriverShared {
    let mut driver = DriverShared::new_zeroed();
    area.read(0, driver.as_mut_bytes());
    driver
}

/// One byte of the shared area.
pub fn byte(area: &Window, offset: usize) -> u8 {
    let mut byte = [0];
    area.read(offset, &mut byte);
    byte[0]
}

/// The window over the shared area at `addr`.
pub fn shared_area(memory: &MemoryMap, addr: u64, len: usize) -> Result<Window, RefusedActivation> {
    memory.window(addr, len, true).map_err(|_| RefusedActivation::SharedArea { addr, len })
}

/// Checks everything that the data path will rely on.
pub fn check(memory: &MemoryMap, addr: u64, rules: &Rules) -> Result<Checked, RefusedActivation> {
    if addr == 0 {
        return Err(RefusedActivation::NoSharedArea);
    }
    let area = shared_area(memory, addr, size_of::<DriverShared>())?;
    let driver = snapshot(&area);
    if driver.magic.get() != MAGIC {
        return Err(RefusedActivation::Magic { found: driver.magic.get() });
    }
    let (most_tx, most_rx) = rules.queues();
    let (tx, rx) = (driver.tx_queues, driver.rx_queues);
    if !(1..=most_tx).contains(&tx) {
        return Err(RefusedActivation::TxQueues { count: tx, most: most_tx });
    }
    if !(1..=most_rx).contains(&rx) {
        return Err(RefusedActivation::RxQueues { count: rx, most: most_rx });
    }
    let (mtu, most) = (driver.mtu.get(), rules.max_mtu());
    if !(MIN_MTU..=most).contains(&mtu) {
        return Err(RefusedActivation::Mtu { mtu, most });
    }
    let (area, interrupts) = if rules.is_extended(tx, rx) {
        let area = shared_area(memory, addr, EXTENDED_SIZE)?;
        let interrupts = extended_interrupts(&area);
        (area, interrupts)
    } else {
        (area, plain_interrupts(&driver))
    };
    check_interrupts(&interrupts)?;
    let table = queue_table(memory, &driver)?;
    let place = |queue: u8| usize::from(queue) * QUEUE_SIZE;
    let queues = Queues { memory, rules, base: driver.queue_table.get(), interrupts: &interrupts };
    let tx_setups = (0..tx).map(|queue| {
        let mut desc = TxQueueDesc::new_zeroed();
        table.read(place(queue), desc.as_mut_bytes());
        queues.tx(queue, &desc)
    });
    let tx_setups = tx_setups.collect::<Result<_, _>>()?;
    let rx_setups = (0..rx).map(|queue| {
        let mut desc = RxQueueDesc::new_zeroed();
        table.read(place(tx + queue), desc.as_mut_bytes());
        queues.rx(queue, tx + queue, &desc)
    });
    let rx_setups = rx_setups.collect::<Result<_, _>>()?;
    Ok(Checked { area, table, driver, interrupts, mtu: mtu as u16, tx: tx_setups, rx: rx_setups })
}

fn plain_interrupts(driver: &DriverShared) -> InterruptSetup {
    let block = &driver.interrupts;
    InterruptSetup {
        auto_mask: block.auto_mask(),
        count: block.count,
        event: block.event,
        control: at::INTERRUPT_CONTROL,
        levels: at::LEVELS,
    }
}

fn extended_interrupts(area: &Window) -> InterruptSetup {
    let mut block = ExtendedInterruptBlock::new_zeroed();
    area.read(at::EXTENDED, block.as_mut_bytes());
    InterruptSetup {
        auto_mask: block.auto_mask(),
        count: block.count,
        event: block.event,
        control: at::EXTENDED_INTERRUPT_CONTROL,
        levels: at::EXTENDED_LEVELS,
    }
}

/// Indices may exceed the vectors that are connected (FreeBSD's do); those never fire.
fn check_interrupts(interrupts: &InterruptSetup) -> Result<(), RefusedActivation> {
    let InterruptSetup { count, event, control, .. } = *interrupts;
    let most = if control == at::INTERRUPT_CONTROL { VECTORS } else { EXTENDED_VECTORS };
    if !(1..=most).contains(&count) {
        return Err(RefusedActivation::Interrupts { count, most });
    }
    if event >= count {
        return Err(RefusedActivation::EventVector { index: event, count });
    }
    Ok(())
}

fn queue_table(memory: &MemoryMap, driver: &DriverShared) -> Result<Window, RefusedActivation> {
    let addr = driver.queue_table.get();
    let len = (usize::from(driver.tx_queues) + usize::from(driver.rx_queues)) * QUEUE_SIZE;
    let refused = RefusedActivation::QueueTable { addr, len };
    if !addr.is_multiple_of(TABLE_ALIGN) {
        return Err(refused);
    }
    memory.window(addr, len, true).map_err(|_| refused)
}

/// One queue after the other.
struct Queues<'a> {
    memory: &'a MemoryMap,
    rules: &'a Rules,
    base: u64,
    interrupts: &'a InterruptSetup,
}

impl Queues<'_> {
    fn vector(&self, queue: u8, index: u8) -> Result<u8, RefusedActivation> {
        let count = self.interrupts.count;
        if index < count { Ok(index) } else { Err(RefusedActivation::Vector { queue, index, count }) }
    }

    /// The descriptor of queue `number` of all. The table around it is known to be in memory.
    fn descriptor(&self, number: u8) -> Result<Window, RefusedActivation> {
        let addr = self.base + u64::from(number) * QUEUE_SIZE as u64;
        let refused = RefusedActivation::QueueTable { addr, len: QUEUE_SIZE };
        self.memory.window(addr, QUEUE_SIZE, true).map_err(|_| refused)
    }

    /// A ring that the device only reads unless it is one of completions.
    fn ring(&self, ring: RingName, queue: u8, addr: u64, size: u32) -> Result<Ring, RefusedActivation> {
        let most = if ring == RingName::RxCompletion { MAX_RX_COMPLETIONS } else { MAX_RING };
        // Before anything is computed from it: the largest ring has 128 KiB.
        if !(1..=most).contains(&size) {
            return Err(RefusedActivation::RingSize { ring, queue, size, most });
        }
        let written = matches!(ring, RingName::TxCompletion | RingName::RxCompletion);
        let window = self.memory.window(addr, size as usize * DESCRIPTOR, written);
        let window = window.map_err(|_| RefusedActivation::RingMemory { ring, queue, addr, size })?;
        Ok(Ring { window, size: size as u16 })
    }

    /// The transmit data ring is ordinary memory that descriptors point to: nothing to check.
    fn tx(&self, queue: u8, desc: &TxQueueDesc) -> Result<TxSetup, RefusedActivation> {
        let completions = (desc.completions.get(), desc.completions_size.get());
        Ok(TxSetup {
            vector: self.vector(queue, desc.vector)?,
            commands: self.ring(RingName::Tx, queue, desc.ring.get(), desc.ring_size.get())?,
            completions: self.ring(RingName::TxCompletion, queue, completions.0, completions.1)?,
            descriptor: self.descriptor(queue)?,
        })
    }

    fn rx(&self, queue: u8, number: u8, desc: &RxQueueDesc) -> Result<RxSetup, RefusedActivation> {
        let [addr0, addr1] = desc.rings.map(|addr| addr.get());
        let [size0, size1] = desc.ring_sizes.map(|size| size.get());
        let completions = (desc.completions.get(), desc.completions_size.get());
        let ring0 = self.ring(RingName::Rx0, queue, addr0, size0)?;
        let ring1 = if size1 == 0 || addr1 == 0 {
            None
        } else {
            Some(self.ring(RingName::Rx1, queue, addr1, size1)?)
        };
        Ok(RxSetup {
            vector: self.vector(queue, desc.vector)?,
            data: self.data_ring(desc, ring0.size),
            ring0,
            ring1,
            completions: self.ring(RingName::RxCompletion, queue, completions.0, completions.1)?,
            descriptor: self.descriptor(number)?,
        })
    }

    /// The receive data ring, if there is one that can be used: a driver works without.
    fn data_ring(&self, desc: &RxQueueDesc, slots: u16) -> Option<(u64, u16)> {
        let (addr, slot) = (desc.data_ring.get(), desc.data_slot.get());
        let sound = DATA_SLOTS.contains(&slot) && slot.is_multiple_of(DATA_SLOT_STEP) && addr != 0;
        if self.rules.revision < 3 || !sound {
            return None;
        }
        self.memory.check_writable(addr, usize::from(slots) * usize::from(slot)).ok()?;
        Some((addr, slot))
    }
}
