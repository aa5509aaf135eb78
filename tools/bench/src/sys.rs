//! The few calls no safe crate offers: vsock's own socket options, a vsock address with flags, a thread's
//! time, and a thread's own table of files.
//!
//! `unsafe` is opened here because the options are 64-bit values at level AF_VSOCK and the flags byte
//! of `sockaddr_vm` lies in what libc calls padding; everything passed to the kernel lives on our stack.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{SockAddr, SockAddrStorage, Socket};

/// User and system time of the calling thread. Per thread rather than per process, because one server
/// process serves many clients and each must see its own share.
///
/// By the C library: rustix insists on a vDSO with getcpu, and User Mode Linux has one without.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which is there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Gives the calling thread a table of open files of its own, with `socket` and the standard ones alone in
/// it. Where threads share a table, each call counts references of its file: in an emulated guest a tenth of
/// what a message of 512 bytes takes. Descriptors that the thread closes from now on stay open for the
/// others. An error (Linux before 5.9) changes nothing.
pub fn keep_only(socket: &Socket) -> io::Result<()> {
    const STANDARD: libc::c_uint = 3;
    let number = socket.as_raw_fd() as libc::c_uint;
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: closes descriptors in a copy of the table that only this thread sees, which uses none of
        // them.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if number > STANDARD {
        close(STANDARD, number - 1)?;
    }
    close(STANDARD.max(number + 1), libc::c_uint::MAX)
}

/// `SO_VM_SOCKETS_BUFFER_*`, from linux/vm_sockets.h.
#[derive(Clone, Copy, Debug)]
pub enum VsockBuffer {
    Size = 0,
    Min = 1,
    Max = 2,
}

/// `VMADDR_FLAG_TO_HOST`: hand the connection to the hypervisor whatever the CID is.
pub const FLAG_TO_HOST: u8 = 1;

/// `struct sockaddr_vm` with the flags byte by its name (libc still calls it `svm_zero[0]`).
#[derive(Clone, Copy)]
#[repr(C)]
struct SockaddrVm {
    family: libc::sa_family_t,
    reserved: u16,
    port: u32,
    cid: u32,
    flags: u8,
    zero: [u8; 3],
}
const _: () = assert!(size_of::<SockaddrVm>() == size_of::<libc::sockaddr_vm>());

pub fn vsock_address(cid: u32, port: u32, flags: u8) -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    let address = SockaddrVm { family: libc::AF_VSOCK as u16, reserved: 0, port, cid, flags, zero: [0; 3] };
    // SAFETY: SockaddrVm is plain data, smaller and less aligned than sockaddr_storage (the kernel's own
    // contract for every sockaddr), and has the layout AF_VSOCK promises (asserted above).
    unsafe {
        *storage.view_as::<SockaddrVm>() = address;
        SockAddr::new(storage, size_of::<SockaddrVm>() as libc::socklen_t)
    }
}

pub fn set_vsock_option(socket: impl AsFd, option: VsockBuffer, value: u64) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call; pointer and length describe `value`, which outlives
    // it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::AF_VSOCK,
            option as libc::c_int,
            (&raw const value).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub fn vsock_option(socket: impl AsFd, option: VsockBuffer) -> io::Result<u64> {
    let mut value = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length` bytes into
    // `value`, any bit pattern of which is a valid u64.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::AF_VSOCK,
            option as libc::c_int,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// One datagram and who sent it.
pub fn receive_from(socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, SockAddr)> {
    let room: *mut [u8] = buffer;
    // SAFETY: MaybeUninit<u8> has the layout of u8, and socket2 promises to write only initialized bytes into
    // it, so `buffer` stays a slice of bytes. The borrow ends with the call.
    let room = unsafe { &mut *(room as *mut [MaybeUninit<u8>]) };
    socket.recv_from(room)
}

/// What TCP knows of a connection. Bytes, microseconds and counts. Zero: this kernel does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpState {
    pub retransmits: u64,
    pub cwnd_segments: u64,
    pub mss: u64,
    pub rtt_us: u64,
    pub min_rtt_us: u64,
    /// How long there was something to send, and how much of that the peer's window and our send buffer held
    /// it up.
    pub busy_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
}

/// `IP_PMTUDISC_PROBE`: the don't-fragment bit is set, and what the kernel believes of the path is not asked.
pub fn set_dont_fragment(socket: impl AsFd, is_v6: bool) -> io::Result<()> {
    let (level, option) = if is_v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
    };
    let value: libc::c_int = libc::IP_PMTUDISC_PROBE;
    // SAFETY: the descriptor is borrowed for the call; pointer and length describe `value`, which outlives
    // it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `TCP_INFO` (linux/tcp.h).
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpState> {
    // SAFETY: a structure of plain numbers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpState {
        retransmits: info.tcpi_total_retrans.into(),
        cwnd_segments: info.tcpi_snd_cwnd.into(),
        mss: info.tcpi_snd_mss.into(),
        rtt_us: info.tcpi_rtt.into(),
        min_rtt_us: info.tcpi_min_rtt.into(),
        busy_us: info.tcpi_busy_time,
        rwnd_limited_us: info.tcpi_rwnd_limited,
        sndbuf_limited_us: info.tcpi_sndbuf_limited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flagged_address_reads_back() {
        let address = vsock_address(7, 4_000_000_000, FLAG_TO_HOST);
        assert_eq!(address.as_vsock_address(), Some((7, 4_000_000_000)));
    }

    #[test]
    fn vsock_options_where_the_family_exists() {
        let Ok(socket) = socket2::Socket::new(socket2::Domain::VSOCK, socket2::Type::STREAM, None) else {
            return;
        };
        set_vsock_option(&socket, VsockBuffer::Max, 1 << 20).unwrap();
        set_vsock_option(&socket, VsockBuffer::Size, 1 << 20).unwrap();
        assert_eq!(vsock_option(&socket, VsockBuffer::Size).unwrap(), 1 << 20);
    }
}
