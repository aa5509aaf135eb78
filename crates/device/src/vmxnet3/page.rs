//! BAR 0 where the VMM traps it: the same words that a guest reaches directly where it is mapped.

use vmlane_wire::vmxnet3::regs::PageReg;

use super::device::Vmxnet3Device;

impl Vmxnet3Device {
    /// A trapped write of one word. Harmless while the NIC is not active.
    pub(super) fn write_page(&mut self, offset: u64, value: u32) {
        let Some(reg) = PageReg::at(offset) else {
            self.stats().register_holes.inc();
            return;
        };
        self.stats().trapped_writes.inc();
        self.page.store_u32(offset as usize, value);
        let Some(active) = &self.active else { return };
        if matches!(reg, PageReg::Mask(_)) {
            self.vectors.fire_pending(active.running.control_word());
        }
        self.frames.kick(self.port);
    }
}
