//! What a driver of VMCI does, access by access, in Linux's order (`docs/facts/vmci.md`, 1.5 and 2.4).

use std::time::{Duration, Instant};

use anyhow::ensure;
use vmlane_wire::pci::{MsixCapability, command, offset};
use vmlane_wire::vmci::{
    CAPS_DATAGRAM, CAPS_DMA_DATAGRAM, CAPS_PPN64, CONTROL_INT_ENABLE, DMA_HEADER, DMA_INLINE, DmaHeader,
    Handle, MAX_DATAGRAM, MMIO_OFFSET, Reg, datagram,
};
use zerocopy::IntoBytes as _;

use super::qtest::{Machine, SLOT};
use crate::data_in;

/// Where the device's BARs are put.
const BAR0: u32 = 0xc000;
const BAR1: u32 = 0xe000_0000;
/// The device's MSI-X capability.
const MSIX: usize = 0x58;
const VECTORS: u32 = 3;
/// Guest addresses: an interrupt is a store of 1 into a word of memory, a line for each vector.
const INTERRUPTS: u32 = 0x30_0000;
const LINE: u32 = 64;
const OUT: u32 = 0x40_0000;
const IN: u32 = 0x50_0000;
const UNUSED: u32 = 0x60_0000;
/// A resource that takes datagrams.
const RESOURCE: u32 = 2000;
/// As large as a notice's.
const PAYLOAD: usize = 32;
const LONGEST: Duration = Duration::from_secs(5);

/// A VM whose driver is up.
pub struct Guest {
    machine: Machine,
    /// Bytes of the datagram that [`Guest::send`] sends.
    sent: usize,
}

impl Guest {
    /// Sets the function up as a BIOS and the driver do.
    pub fn probe(machine: Machine) -> anyhow::Result<Guest> {
        let mut guest = Guest { machine, sent: 0 };
        guest.configure(offset::BAR0, BAR0)?;
        guest.configure(offset::BAR0 + 4, BAR1)?;
        guest.configure(offset::BAR0 + 8, 0)?;
        guest.configure(offset::COMMAND, (command::IO | command::MEMORY | command::BUS_MASTER).into())?;
        guest.connect_interrupts()?;
        let wanted = CAPS_DATAGRAM | CAPS_PPN64 | CAPS_DMA_DATAGRAM;
        let offered = guest.read(Reg::Caps)?;
        ensure!(offered & wanted == wanted, "the device offers {offered:#x}");
        guest.write(Reg::Caps, wanted)?;
        guest.write(Reg::GuestPageShift, 12)?;
        guest.write(Reg::DataInHigh, 0)?;
        guest.write(Reg::DataOutHigh, 0)?;
        guest.write(Reg::Imr, 7)?;
        guest.write(Reg::Control, CONTROL_INT_ENABLE)?;
        Ok(guest)
    }

    fn connect_interrupts(&mut self) -> anyhow::Result<()> {
        for vector in 0..VECTORS {
            let words = [INTERRUPTS + vector * LINE, 0, 1, 0];
            for (entry, word) in (BAR1 + 16 * vector..).step_by(4).zip(words) {
                self.machine.ask(format_args!("writel {entry:#x} {word:#x}"))?;
            }
        }
        self.configure(MSIX, u32::from(MsixCapability::ENABLE) << 16)
    }

    fn configure(&mut self, at: usize, value: u32) -> anyhow::Result<()> {
        let address = 1 << 31 | SLOT << 11 | at as u32;
        self.machine.ask(format_args!("outl 0xcf8 {address:#x}"))?;
        self.machine.ask(format_args!("outl 0xcfc {value:#x}")).map(drop)
    }

    /// A read of a register.
    pub fn read(&mut self, reg: Reg) -> anyhow::Result<u32> {
        let value = self.machine.ask(format_args!("readl {:#x}", place(reg)))?;
        Ok(value as u32)
    }

    fn write(&mut self, reg: Reg, value: u32) -> anyhow::Result<()> {
        self.machine.ask(format_args!("writel {:#x} {value:#x}", place(reg))).map(drop)
    }

    /// A read of memory, which leads to no device.
    pub fn read_ram(&mut self) -> anyhow::Result<u64> {
        self.machine.ask(format_args!("readl {UNUSED:#x}"))
    }

    /// The datagram that each [`Guest::send`] sends, with its sender's CID and its receiver's.
    pub fn prepare_send(&mut self, (from, to): (u32, u32)) -> anyhow::Result<()> {
        let bytes = datagram(Handle::new(to, RESOURCE), Handle::new(from, RESOURCE), &[0; PAYLOAD]);
        self.sent = bytes.len();
        let header = DmaHeader::new(1, DMA_INLINE, bytes.len() as u32);
        self.machine.memory.write(OUT.into(), header.as_bytes())?;
        Ok(self.machine.memory.write(u64::from(OUT) + DMA_HEADER as u64, &bytes)?)
    }

    /// The buffer for [`Guest::receive`].
    pub fn prepare_receive(&mut self) -> anyhow::Result<()> {
        Ok(self.machine.memory.write(IN.into(), &data_in::header(IN.into(), MAX_DATAGRAM))?)
    }

    /// Sends, and asks for the result as often as Linux does.
    pub fn send(&mut self) -> anyhow::Result<()> {
        self.write(Reg::DataOutLow, OUT)?;
        let results = [self.read(Reg::ResultLow)?, self.read(Reg::ResultLow)?];
        ensure!(results == [self.sent as u32; 2], "a send of {} bytes gave {results:?}", self.sent);
        Ok(())
    }

    /// Waits for vector 0, and acknowledges it.
    pub fn await_vector_0(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LONGEST;
        while self.word(INTERRUPTS)? == 0 {
            ensure!(Instant::now() < deadline, "no interrupt within {LONGEST:?}");
            std::thread::yield_now();
        }
        Ok(self.machine.memory.store_u32(INTERRUPTS.into(), 0)?)
    }

    /// Fetches what has arrived.
    pub fn receive(&mut self) -> anyhow::Result<()> {
        self.write(Reg::DataInLow, IN)?;
        let destination = self.word(data_in::first(IN.into()) as u32)?;
        ensure!(destination != u32::MAX, "an interrupt, and no datagram");
        Ok(())
    }

    fn word(&self, address: u32) -> anyhow::Result<u32> {
        let mut bytes = [0; 4];
        self.machine.memory.read(address.into(), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

fn place(reg: Reg) -> u64 {
    u64::from(BAR1) + MMIO_OFFSET + reg.offset()
}
