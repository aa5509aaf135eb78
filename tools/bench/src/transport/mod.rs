//! Sockets: streams of three families, and datagrams of two.

mod datagram;
mod hint;
mod host;
mod options;
mod stream;
mod tcp;
mod unix;
mod vsock;

pub use datagram::{DatagramConn, Sent};
pub use options::{BufferSizes, Buffers, PeerHost, is_timeout};
pub use stream::{Conn, Listener, announced};
pub use tcp::only;
