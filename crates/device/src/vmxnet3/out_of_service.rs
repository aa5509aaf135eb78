//! A NIC that the operator, or the daemon itself, has taken out of service: a driver that probes finds no
//! revision it knows and leaves; one that runs finds the link down and its activation refused.

use vmlane_wire::vmxnet3::regs::{Command, Reg};

use super::command::known;
use super::nic::Registers;

/// `data` is zero: so read all registers but the result of a command.
pub fn read(regs: &Registers, region: usize, offset: u64, data: &mut [u8]) {
    if let (1, Some(Reg::Command), [a, b, c, d]) = (region, Reg::at(offset), data) {
        [*a, *b, *c, *d] = regs.result.to_le_bytes();
    }
}

/// Commands are done but for ACTIVATE, which is refused. `revision`: by which they are known.
pub fn write(regs: &mut Registers, revision: u8, region: usize, offset: u64, data: &[u8]) {
    if let (1, Some(Reg::Command), &[a, b, c, d]) = (region, Reg::at(offset), data) {
        let command = known(u32::from_le_bytes([a, b, c, d]), revision);
        regs.result = u32::from(command == Some(Command::Activate));
    }
}
