//! A NIC's port that says of its frames what an uplink says of those whose checksums the host's kernel has verified
//! (`VIRTIO_NET_HDR_F_DATA_VALID` of a TAP interface).

use std::os::fd::BorrowedFd;
use std::time::Instant;

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_port::{Filter, FramePort, Refused, RxCapabilities, RxFrame, Token, TxFrame, WakeUp};

/// The port.
pub struct Verified(pub NicPort);

impl FramePort for Verified {
    fn fetch(&mut self, tokens: &mut [Token]) -> usize {
        self.0.fetch(tokens)
    }

    fn look_ahead(&self) -> usize {
        self.0.look_ahead()
    }

    fn take_overhead(&mut self) -> usize {
        self.0.take_overhead()
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        TxFrame { verified: true, ..self.0.frame(token) }
    }

    fn finish(&mut self, tokens: &[Token]) {
        self.0.finish(tokens);
    }

    fn capabilities(&self) -> RxCapabilities {
        self.0.capabilities()
    }

    fn filter(&self) -> &Filter {
        self.0.filter()
    }

    fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused> {
        self.0.deliver(frames)
    }

    fn has_room(&mut self) -> bool {
        self.0.has_room()
    }

    fn flush(&mut self, now: Instant) {
        self.0.flush(now);
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.0.tick(now)
    }

    fn changed(&mut self) -> bool {
        self.0.changed()
    }

    fn refresh(&mut self) {
        self.0.refresh();
    }
}

impl WakeUp for Verified {
    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.doorbell_fd()
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.readable_fd()
    }
}
