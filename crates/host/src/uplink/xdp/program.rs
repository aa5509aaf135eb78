//! The XDP program of an interface: it gives each frame to the socket of the queue that the frame came by,
//! and those of queues without a socket to the host. Five instructions, written by hand
//! (docs/decisions/0016-af-xdp.md).
#![allow(unsafe_code)] // bpf(2)

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), and other numbers of linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const FUNC_REDIRECT_MAP: i32 = 51;
const PSEUDO_MAP_FD: u8 = 1;
const XDP_PASS: i32 = 2;
/// Of `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;

/// How a program is attached (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// `XDP_FLAGS_SKB_MODE`: by the kernel, for any driver; each frame has become a packet buffer before.
    Generic = 1 << 1,
    /// `XDP_FLAGS_DRV_MODE`: in the driver.
    Native = 1 << 2,
}

/// An instruction: code, registers (destination in the lower half), offset, constant.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

/// `union bpf_attr` of [`MAP_CREATE`].
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Of [`MAP_UPDATE_ELEM`].
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Of [`PROG_LOAD`].
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Of [`LINK_CREATE`].
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads the attributes, and what they point to; both outlive the call. It writes
    // nothing.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn number(file: BorrowedFd<'_>) -> u32 {
    file.as_raw_fd() as u32
}

/// The sockets of an interface's queues, by the queue's number.
pub struct Sockets(OwnedFd);

impl Sockets {
    pub fn new(queues: u32) -> io::Result<Sockets> {
        let attributes = MapCreate {
            map_type: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            map_flags: 0,
        };
        bpf(MAP_CREATE, &attributes).map(|fd| Sockets(owned(fd)))
    }

    /// From now on, the socket gets the frames of that queue.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = number(socket);
        let attributes = MapUpdate {
            map_fd: number(self.0.as_fd()),
            _pad: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
    }

    /// Loads the program.
    pub fn program(&self) -> io::Result<OwnedFd> {
        let program = [
            // r2 = context.rx_queue_index
            Instruction(0x61, 0x12, RX_QUEUE_INDEX, 0),
            // r1 = the map; the constant takes two places
            Instruction(0x18, PSEUDO_MAP_FD << 4 | 1, 0, self.0.as_raw_fd()),
            Instruction(0, 0, 0, 0),
            // r3 = what becomes of a frame whose queue has no socket
            Instruction(0xb7, 3, 0, XDP_PASS),
            // return bpf_redirect_map(r1, r2, r3)
            Instruction(0x85, 0, 0, FUNC_REDIRECT_MAP),
            Instruction(0x95, 0, 0, 0),
        ];
        let mut prog_name = [0; 16];
        prog_name.iter_mut().zip(b"vmlane_uplink").for_each(|(to, from)| *to = *from);
        let attributes = ProgLoad {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: program.len() as u32,
            insns: program.as_ptr() as u64,
            license: c"Apache-2.0".as_ptr() as u64,
            prog_name,
            expected_attach_type: ATTACH_TYPE_XDP,
            ..ProgLoad::default()
        };
        bpf(PROG_LOAD, &attributes).map(owned)
    }
}

/// Attaches a program to an interface, for as long as the file that is returned is open.
pub fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        prog_fd: number(program),
        target_ifindex: interface,
        attach_type: ATTACH_TYPE_XDP,
        flags: mode as u32,
    };
    bpf(LINK_CREATE, &attributes).map(owned)
}
