//! vsock: which way a CID leads depends on the kernel, and buffers have options of their own.
//!
//! Up to Linux 7.0 a plain connect from a VMCI guest to another VM's CID works, unless a host-side
//! transport for nested VMs (vhost) is loaded, which answers ENODEV; from 7.1 on it always answers
//! ENODEV there. `VMADDR_FLAG_TO_HOST` is the cure for both. The other way round, on a host the flag is
//! what fails, or worse, leads to the host's own hypervisor. So: plain first, flag on ENODEV.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use socket2::{Domain, Socket, Type};

use super::host::FIRST_GUEST;
use super::options::{BACKLOG, Buffers};
use crate::address::Address;
use crate::sys::{FLAG_TO_HOST, VsockBuffer, set_vsock_option, vsock_address};

/// Set by the kernel at creation; a smaller wish needs the minimum lowered first.
const DEFAULT_MIN: u64 = 128;
const DEFAULT_MAX: u64 = 256 << 10;

/// The flags that worked last, so that a connect-per-request test pays for the discovery once.
static FLAGS: AtomicU8 = AtomicU8::new(0);

pub fn connect(cid: u32, port: u32, buffers: Buffers) -> io::Result<Socket> {
    if cid < FIRST_GUEST {
        return attempt(cid, port, 0, buffers);
    }
    let first = FLAGS.load(Ordering::Relaxed);
    let error = match attempt(cid, port, first, buffers) {
        Ok(socket) => return Ok(socket),
        Err(error) => error,
    };
    // EINVAL: a kernel before 5.11 wants the flags byte to be 0.
    if !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) {
        return Err(error);
    }
    let second = first ^ FLAG_TO_HOST;
    match attempt(cid, port, second, buffers) {
        Ok(socket) => {
            FLAGS.store(second, Ordering::Relaxed);
            Ok(socket)
        }
        // An old kernel's "invalid argument" would hide the real reason.
        Err(other) if other.raw_os_error() == Some(libc::EINVAL) => Err(error),
        Err(other) => Err(other),
    }
}

fn attempt(cid: u32, port: u32, flags: u8, buffers: Buffers) -> io::Result<Socket> {
    let socket = prepared(buffers)?;
    socket.connect(&vsock_address(cid, port, flags))?; // the kernel gives up after 2 s
    Ok(socket)
}

pub fn listen(cid: u32, port: u32, buffers: Buffers) -> io::Result<(Socket, Address)> {
    let socket = prepared(buffers)?;
    socket.bind(&vsock_address(cid, port, 0))?;
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_vsock_address().map_or(port, |(_, port)| port);
    Ok((socket, Address::Vsock { cid, port }))
}

fn prepared(buffers: Buffers) -> io::Result<Socket> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    let size = buffers.size.unwrap_or(0);
    let maximum = size.max(buffers.maximum.unwrap_or(0));
    // The kernel clamps the size into [min, max] without a word: move the bounds first.
    if maximum > DEFAULT_MAX {
        set_vsock_option(&socket, VsockBuffer::Max, maximum)?;
    }
    if size > 0 {
        if size < DEFAULT_MIN {
            set_vsock_option(&socket, VsockBuffer::Min, size)?;
        }
        set_vsock_option(&socket, VsockBuffer::Size, size)?;
    }
    Ok(socket)
}
