//! What a connection between a virtio guest and another endpoint is known by.

use vmlane_vsock::{Call, Key, Vm};
use vmlane_wire::virtio_vsock::{Header, kind};

/// A connection: the guest's address here, the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub cid: u32,
    pub port: u32,
    pub peer: u32,
    pub peer_port: u32,
}

impl Name {
    pub fn of(header: &Header) -> Name {
        Name {
            cid: header.src_cid.get() as u32,
            port: header.src_port.get(),
            peer: header.dst_cid.get() as u32,
            peer_port: header.dst_port.get(),
        }
    }

    /// The connection that is requested of the guest `vm`.
    pub fn asked(vm: &Vm, call: Call) -> Name {
        let Key { client, server } = call.key;
        Name { cid: vm.cid, port: server.1, peer: vm.as_seen(client.0), peer_port: client.1 }
    }

    /// A packet to the guest.
    pub fn packet(&self, op: u16) -> Header {
        Header::new((self.peer, self.peer_port), (self.cid, self.port), kind::STREAM, op)
    }
}
