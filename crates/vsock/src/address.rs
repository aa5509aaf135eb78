//! Addresses of the CID space.

/// A context id: one VM, or the host.
pub type Cid = u32;
/// A port of one context. Not a port of the switch.
pub type SockPort = u32;
/// The host, and its programs.
pub const HOST: Cid = 2;

/// Where a socket is.
pub type SocketAddress = (Cid, SockPort);

/// Both real addresses of a connection: a forward is resolved already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The end that connected.
    pub client: SocketAddress,
    /// The end that listened.
    pub server: SocketAddress,
}
