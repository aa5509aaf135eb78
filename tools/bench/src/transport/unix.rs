//! Unix sockets by path. A listener removes its path when it goes; one left by a killed server is
//! recognised (it does not answer) and replaced.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use super::options::{BACKLOG, Buffers, set_plain_buffers};
use crate::address::Address;

pub fn connect(path: &Path, buffers: Buffers) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    set_plain_buffers(&socket, buffers)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket)
}

pub fn listen(path: &Path, buffers: Buffers) -> io::Result<(Socket, Address)> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    set_plain_buffers(&socket, buffers)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_stale(path, &address) => {
            std::fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        other => other?,
    }
    socket.listen(BACKLOG)?;
    Ok((socket, Address::Unix(path.to_owned())))
}

fn is_stale(path: &Path, address: &SockAddr) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let Ok(probe) = Socket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    is_socket && probe.connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
