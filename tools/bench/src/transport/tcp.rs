//! TCP: resolve, set buffers before the handshake (they decide the window scale), connect or listen.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::options::{BACKLOG, Buffers, set_plain_buffers};
use crate::address::{Address, IpVersion};
use crate::error::Error;

pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // A static binary may have no resolver at all; this name must work nevertheless.
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    Ok((host, port).to_socket_addrs()?.collect())
}

pub fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

/// The address with its host's name resolved to this version of IP.
pub fn only(address: &Address, version: IpVersion) -> Result<Address, Error> {
    let Address::Tcp { host, port } = address else {
        return Err(Error::Usage(format!("{address}: -4 and -6 are for tcp: and udp:")));
    };
    let all = resolve(host, *port).map_err(|cause| Error::Connect {
        address: address.to_string(),
        hint: String::new(),
        cause,
    })?;
    let fits = all.into_iter().find(|ip| ip.is_ipv4() == (version == IpVersion::V4));
    let ip = fits.ok_or_else(|| {
        let version = if version == IpVersion::V4 { "IPv4" } else { "IPv6" };
        Error::Usage(format!("{address} has no {version} address: leave -4 or -6 out"))
    })?;
    Ok(Address::Tcp { host: ip.ip().to_string(), port: *port })
}

/// `segment`: bytes of the largest one, in both directions; none: as the path allows.
pub fn connect(
    host: &str,
    port: u16,
    buffers: Buffers,
    segment: Option<u32>,
    timeout: Duration,
) -> io::Result<Socket> {
    let mut last = no_address();
    for address in resolve(host, port)? {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        set_plain_buffers(&socket, buffers)?;
        // The peer learns it as the connection opens.
        segment.map_or(Ok(()), |bytes| socket.set_tcp_mss(bytes))?;
        match socket.connect_timeout(&address.into(), timeout) {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    // socket2's own time-out carries no errno; give it the kernel's.
    if last.kind() == io::ErrorKind::TimedOut {
        Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
    } else {
        Err(last)
    }
}

pub fn listen(host: &str, port: u16, buffers: Buffers) -> io::Result<(Socket, Address)> {
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    let address = resolve(host, port)?.into_iter().next().ok_or_else(no_address)?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    set_plain_buffers(&socket, buffers)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_socket().map_or(port, |local| local.port());
    Ok((socket, Address::Tcp { host: host.to_owned(), port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_send_segments_as_small_as_was_asked_for() {
        let (listener, address) = listen("127.0.0.1", 0, Buffers::default()).unwrap();
        let Address::Tcp { port, .. } = address else { panic!("{address}") };
        for (segment, is_small) in [(Some(536), true), (None, false)] {
            let timeout = Duration::from_secs(60);
            let near = connect("127.0.0.1", port, Buffers::default(), segment, timeout).unwrap();
            let (far, _) = listener.accept().unwrap();
            for socket in [near, far] {
                let bytes = socket.tcp_mss().unwrap();
                assert_eq!(bytes <= 536, is_small, "{bytes}");
            }
        }
    }
}
