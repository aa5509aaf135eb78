//! How a driver reaches its NIC: a device of this process, or one behind a vfio-user socket (`attached.rs`).

use std::sync::Arc;

use vmlane_wire::vmxnet3::regs::{Command, PageReg, Reg};

use super::machine::NicMachine;
use crate::ram::Ram;

/// A NIC's registers, and the memory of its guest.
pub trait NicRegisters {
    fn ram(&self) -> &Arc<Ram>;

    fn read32(&self, region: usize, offset: u64) -> u32;

    fn write32(&self, region: usize, offset: u64, value: u32);

    fn read(&self, reg: Reg) -> u32 {
        self.read32(1, reg.offset())
    }

    fn write(&self, reg: Reg, value: u32) {
        self.write32(1, reg.offset(), value);
    }

    /// A trapped access to BAR 0.
    fn write_page(&self, reg: PageReg, value: u32) {
        self.write32(0, reg.offset(), value);
    }

    /// A command and its result.
    fn command(&self, command: Command) -> u32 {
        self.write(Reg::Command, command.code());
        self.read(Reg::Command)
    }

    /// Latches an address of a shared area.
    fn set_shared(&self, addr: u64) {
        self.write(Reg::SharedLow, addr as u32);
        self.write(Reg::SharedHigh, (addr >> 32) as u32);
    }
}

impl NicRegisters for NicMachine {
    fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    fn read32(&self, region: usize, offset: u64) -> u32 {
        NicMachine::read32(self, region, offset)
    }

    fn write32(&self, region: usize, offset: u64, value: u32) {
        NicMachine::write32(self, region, offset, value);
    }
}
