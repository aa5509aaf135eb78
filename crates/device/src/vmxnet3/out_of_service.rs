//! A NIC that the operator, or the daemon itself, has taken out of service: a driver that probes finds no revision
//! it knows and leaves; one that runs finds the link down and its activation refused.

use vmlane_wire::vmxnet3::regs::{Command, Reg};

use super::device::{Vmxnet3Device, known};

impl Vmxnet3Device {
    /// True while the NIC does nothing. An active one is stopped first.
    pub(super) fn is_out_of_service(&mut self) -> bool {
        let out = self.nic.handle.is_quarantined();
        if out && self.active.is_some() {
            self.quiesce();
            self.regs.result = 0;
        }
        out
    }

    /// `data` is zero: so read all registers but the result of a command.
    pub(super) fn read_out_of_service(&mut self, region: usize, offset: u64, data: &mut [u8]) {
        if let (1, Some(Reg::Command), [a, b, c, d]) = (region, Reg::at(offset), data) {
            [*a, *b, *c, *d] = self.regs.result.to_le_bytes();
        }
    }

    /// Commands are done but for ACTIVATE, which is refused.
    pub(super) fn write_out_of_service(&mut self, region: usize, offset: u64, data: &[u8]) {
        if let (1, Some(Reg::Command), &[a, b, c, d]) = (region, Reg::at(offset), data) {
            let command = known(u32::from_le_bytes([a, b, c, d]), self.revision());
            self.regs.result = u32::from(command == Some(Command::Activate));
        }
    }
}
