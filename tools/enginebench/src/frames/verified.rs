//! A NIC's port that marks its frames as an uplink marks those whose checksums the host's kernel has
//! verified (`VIRTIO_NET_HDR_F_DATA_VALID` of a TAP interface).

use vmlane_device::vmxnet3::port::NicPort;
use vmlane_port::wrap::FrameWrapper;
use vmlane_port::{FramePort, Token, TxFrame};

/// The port.
pub struct Verified(pub NicPort);

impl FrameWrapper for Verified {
    fn inner(&self) -> &dyn FramePort {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut dyn FramePort {
        &mut self.0
    }

    fn frame(&self, token: Token) -> TxFrame<'_> {
        TxFrame { verified: true, ..self.0.frame(token) }
    }
}
