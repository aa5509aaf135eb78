//! A NIC's port that says of its frames what an uplink says of those whose checksums the host's kernel has verified
//! (`VIRTIO_NET_HDR_F_DATA_VALID` of a TAP interface).

use std::os::fd::BorrowedFd;
use std::time::Instant;

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_port::{
    Filter, FramePort, Glance, Refused, RxCapabilities, RxFrame, Sign, Token, TxFrame, WakeUp,
};

/// The port.
pub struct Verified(pub NicPort);

impl FramePort for Verified {
    fn frame(&self, token: Token) -> TxFrame<'_> {
        TxFrame { verified: true, ..self.0.frame(token) }
    }

    vmlane_port::forward! { 0;
        fn fetch(&mut self, tokens: &mut [Token]) -> usize;
        fn look_ahead(&self) -> usize;
        fn take_overhead(&mut self) -> usize;
        fn finish(&mut self, tokens: &[Token]);
        fn capabilities(&self) -> RxCapabilities;
        fn filter(&self) -> &Filter;
        fn deliver(&mut self, frames: &[RxFrame<'_>]) -> Result<(), Refused>;
        fn has_room(&mut self) -> bool;
        fn flush(&mut self, now: Instant);
        fn tick(&mut self, now: Instant) -> bool;
        fn changed(&mut self) -> bool;
        fn refresh(&mut self);
        fn fail(&mut self);
    }
}

impl WakeUp for Verified {
    vmlane_port::forward! { 0;
        fn arm(&mut self) -> bool;
        fn disarm(&mut self);
        fn glance(&self) -> Glance;
        fn signs(&self, into: &mut Vec<Sign>) -> bool;
        fn doorbell_fd(&self) -> Option<BorrowedFd<'_>>;
        fn readable_fd(&self) -> Option<BorrowedFd<'_>>;
    }
}
