//! What needs rights: the program of an interface, and a socket with memory for each of its queues. The files
//! that come out of it may go to a process without rights, which makes a port of them.
#![allow(unsafe_code)] // system calls that no crate has: options and addresses of AF_XDP sockets, ioctl, mmap

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};
use vmlane_mem::memfd;
use vmlane_wire::ethernet::{HEADER, TAG};

use super::program::{Mode, Sockets, attach};
use super::rings::{ENTRIES, Rings};
use crate::uplink::link::Link;

/// Which interface, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Up to 15 bytes. It must be there.
    pub name: String,
    /// How many of its queues, from the first one on; None: all that are in use. Frames of other queues go to
    /// the host.
    pub queues: Option<u16>,
}

impl XdpOptions {
    pub const MOST_QUEUES: u16 = 16;
}

/// Why an uplink could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    #[error("interface {name:?}: there is none of this name (`ip link` lists them)")]
    Missing { name: String },
    #[error(
        "interface {name:?} is a member of a bridge or bond, which would get no frame any more; `ip link set {name} nomaster`, \
         or make a TAP interface a member of the bridge and use `tap`"
    )]
    Member { name: String },
    #[error(
        "interface {name:?} has an MTU of {mtu} bytes, and AF_XDP frames carry {most} at most; `ip link set {name} mtu {most}`, \
         or use a TAP interface"
    )]
    Mtu { name: String, mtu: usize, most: usize },
    #[error(
        "interface {name:?} has {have} receive queues and `queues` is {wanted}; use at most {have}, or `ethtool -L {name} \
         combined {wanted}`"
    )]
    NoSuchQueue { name: String, have: u32, wanted: u32 },
    #[error(
        "interface {name:?} has {have} receive queues, of which at most {} can be used: those that come by others would go to the host; \
         `ethtool -L {name} combined {}`, or set `queues`",
        XdpOptions::MOST_QUEUES,
        XdpOptions::MOST_QUEUES
    )]
    TooManyQueues { name: String, have: u32 },
    #[error(
        "interface {name:?} is in use: an XDP program of another program is attached to it, or has its queues (`ip link show {name}` \
         shows it, `ip link set {name} xdp off` may remove it)"
    )]
    Busy { name: String, source: io::Error },
    #[error(
        "interface {name:?}: no right to {what}; vmlane needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (Linux 5.9 or later) for it"
    )]
    Rights { name: String, what: &'static str, source: io::Error },
    #[error("interface {name:?}: no XDP program can be attached, neither in the driver nor in front of it")]
    NoXdp { name: String, source: io::Error },
    #[error(
        "interface {name:?}: no memory for its frames, {bytes} bytes that stay in RAM; give vmlane CAP_IPC_LOCK, raise its \
         limit of locked memory (`LimitMEMLOCK=` in systemd, `ulimit -l`), or use fewer queues"
    )]
    Memory { name: String, bytes: u64, source: io::Error },
    #[error(
        "interface {name:?}: the rings of a running daemon's new uplink cannot be mapped before Linux 6.4; start the daemon again"
    )]
    OldKernel { name: String, source: io::Error },
    #[error("interface {name:?}: {what}")]
    Host { name: String, what: &'static str, source: io::Error },
    #[error("interface {name:?}: {what}")]
    Facts { name: String, what: String },
}

/// Frames of a queue that the kernel receives into, and frames that are sent. Each fits into its rings.
pub const RX_FRAMES: u64 = ENTRIES as u64;
pub const TX_FRAMES: u64 = ENTRIES as u64;
/// What a frame's place may be long: chunks of memory for frames.
const CHUNKS: [usize; 2] = [2048, LARGEST];
const LARGEST: usize = 4096;
/// What the kernel leaves free in front of a frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// How many frames one system call sends in copy mode (`XDP_MAX_TX_SKB_BUDGET`).
const MAX_TX_BUDGET: libc::c_int = 9;
const TX_BUDGET: u32 = 256;

/// Bytes of a queue's memory.
pub fn queue_bytes(chunk: usize) -> u64 {
    (RX_FRAMES + TX_FRAMES) * chunk as u64
}

/// The longest packet that frames of this memory carry, with a tag.
fn longest(chunk: usize) -> usize {
    chunk - HEADROOM - HEADER - TAG
}

/// What is known of an open interface beside its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpFacts {
    /// Its number, which stays when its name changes.
    pub index: u32,
    /// Bytes of the longest packet, without its Ethernet header.
    pub mtu: usize,
    /// Bytes of a frame's place.
    pub chunk: usize,
    /// The program runs in the driver.
    pub native: bool,
    /// Every queue's frames are received into, and sent from, our memory.
    pub zero_copy: bool,
    /// What the operator should change.
    pub advice: Vec<String>,
}

impl XdpFacts {
    /// Do packets of this length fit?
    pub fn carries(&self, mtu: usize) -> bool {
        mtu <= longest(self.chunk)
    }
}

/// A socket of a queue, with its rings.
pub struct Queue {
    pub socket: OwnedFd,
    pub rings: Rings,
}

/// The files of an interface.
pub struct XdpFiles {
    pub facts: XdpFacts,
    /// The program is attached as long as this is open.
    pub link: OwnedFd,
    /// The frames of all queues, one queue after the other.
    pub memory: OwnedFd,
    pub queues: Vec<Queue>,
}

impl XdpFiles {
    /// Takes the interface's frames. Bringing it up is the operator's.
    pub fn open(options: &XdpOptions) -> Result<XdpFiles, XdpError> {
        let name = || options.name.clone();
        let host = |what| move |source| XdpError::Host { name: options.name.clone(), what, source };
        let link = query(&options.name)?;
        let count = queues(options, &link)?;
        let chunk = CHUNKS.into_iter().find(|chunk| link.mtu <= longest(*chunk));
        let most = longest(LARGEST);
        let chunk = chunk.ok_or_else(|| XdpError::Mtu { name: name(), mtu: link.mtu, most })?;
        let rights = |what| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => XdpError::Rights { name: name(), what, source },
                _ => XdpError::Host { name: name(), what, source },
            }
        };
        let sockets = Sockets::new(u32::from(count)).map_err(rights("make a map of sockets (bpf)"))?;
        let program = sockets.program().map_err(rights("load an XDP program (bpf)"))?;
        let (program, native) = attach_best(options, &program, link.index)?;
        let bytes = queue_bytes(chunk);
        let no_memory = |source| XdpError::Memory { name: name(), bytes: bytes * u64::from(count), source };
        let memory = memfd("xdp", bytes * u64::from(count)).map_err(no_memory)?;
        let mapping = Mapping::new(&memory, bytes * u64::from(count)).map_err(no_memory)?;
        let mut zero_copy = true;
        let mut opened = Vec::new();
        for number in 0..count {
            let socket = socket().map_err(rights("open an AF_XDP socket"))?;
            register(&socket, mapping.at(bytes * u64::from(number)), bytes, chunk).map_err(no_memory)?;
            let rings = set_up_rings(&socket).map_err(host("its rings cannot be made"))?;
            // In the generic mode frames are copied whatever the driver can do.
            let flags = if native { 0 } else { libc::XDP_COPY };
            bind(&socket, link.index, u32::from(number), flags).map_err(|source| {
                match source.raw_os_error() {
                    Some(libc::EBUSY) => XdpError::Busy { name: name(), source },
                    Some(libc::EINVAL) => XdpError::NoSuchQueue {
                        name: name(),
                        have: u32::from(number),
                        wanted: u32::from(count),
                    },
                    _ => XdpError::Host { name: name(), what: "a socket cannot be bound to a queue", source },
                }
            })?;
            zero_copy &= is_zero_copy(&socket);
            sockets.set(u32::from(number), socket.as_fd()).map_err(host("a socket gets no frames"))?;
            opened.push(Queue { socket, rings });
        }
        let advice = advice(&options.name, &link);
        let facts = XdpFacts { index: link.index, mtu: link.mtu, chunk, native, zero_copy, advice };
        Ok(XdpFiles { facts, link: program, memory, queues: opened })
    }

    /// Its files in the order of [`XdpFiles::unpack`]. Their rings are not mapped here any more.
    pub fn pack(self) -> (XdpFacts, Vec<OwnedFd>) {
        let XdpFiles { facts, link, memory, queues } = self;
        let sockets = queues.into_iter().map(|Queue { socket, .. }| socket);
        (facts, [link, memory].into_iter().chain(sockets).collect())
    }

    /// Puts it together again, in the process that got these files.
    pub fn unpack(options: &XdpOptions, facts: XdpFacts, files: Vec<OwnedFd>) -> Result<XdpFiles, XdpError> {
        let wrong = |what: String| XdpError::Facts { name: options.name.clone(), what };
        let mut files = files.into_iter();
        let (Some(link), Some(memory)) = (files.next(), files.next()) else {
            return Err(wrong("too few files came".into()));
        };
        let count = files.len();
        let expected = options
            .queues
            .map_or(1..=XdpOptions::MOST_QUEUES.into(), |queues| usize::from(queues)..=usize::from(queues));
        if !expected.contains(&count) {
            return Err(wrong(format!("{count} queues came")));
        }
        if !CHUNKS.contains(&facts.chunk) || !facts.carries(facts.mtu) {
            return Err(wrong(format!("places of {} bytes for packets of {}", facts.chunk, facts.mtu)));
        }
        let queues = files.map(|socket| {
            let rings = Rings::map(&socket).map_err(|source| {
                let name = options.name.clone();
                match source.raw_os_error() {
                    Some(libc::EBUSY) => XdpError::OldKernel { name, source },
                    _ => XdpError::Host { name, what: "its rings cannot be mapped", source },
                }
            })?;
            Ok(Queue { socket, rings })
        });
        let queues = queues.collect::<Result<_, XdpError>>()?;
        Ok(XdpFiles { facts, link, memory, queues })
    }
}

/// What the kernel reports of the interface, if it is one that can be used.
fn query(name: &str) -> Result<Link, XdpError> {
    let link = Link::query(name).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => XdpError::Missing { name: name.to_owned() },
        _ => XdpError::Host { name: name.to_owned(), what: "the kernel does not describe it", source },
    })?;
    match link.master {
        Some(_) => Err(XdpError::Member { name: name.to_owned() }),
        None => Ok(link),
    }
}

/// The number and MTU of the interface that has this name now.
pub fn index_and_mtu(name: &str) -> Result<(u32, usize), XdpError> {
    query(name).map(|link| (link.index, link.mtu))
}

/// How many queues to open.
fn queues(options: &XdpOptions, link: &Link) -> Result<u16, XdpError> {
    let name = || options.name.clone();
    let have = ethtool::channels(&options.name).unwrap_or(link.rx_queues).max(1);
    match options.queues {
        Some(wanted) if u32::from(wanted) > have => {
            Err(XdpError::NoSuchQueue { name: name(), have, wanted: wanted.into() })
        }
        Some(wanted) => Ok(wanted),
        None => u16::try_from(have)
            .ok()
            .filter(|have| *have <= XdpOptions::MOST_QUEUES)
            .ok_or_else(|| XdpError::TooManyQueues { name: name(), have }),
    }
}

/// Attaches the program in the driver, or in front of it where the driver cannot.
fn attach_best(options: &XdpOptions, program: &OwnedFd, index: u32) -> Result<(OwnedFd, bool), XdpError> {
    let failed = |source: io::Error| {
        let name = options.name.clone();
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Busy { name, source },
            Some(libc::EPERM | libc::EACCES) => {
                XdpError::Rights { name, what: "attach an XDP program", source }
            }
            Some(libc::ENODEV) => XdpError::Missing { name },
            _ => XdpError::NoXdp { name, source },
        }
    };
    match attach(program.as_fd(), index, Mode::Native).map_err(&failed) {
        Err(XdpError::NoXdp { source, .. }) => {
            tracing::debug!(interface = options.name, %source, "no XDP in the driver");
            Ok((attach(program.as_fd(), index, Mode::Generic).map_err(&failed)?, false))
        }
        attached => Ok((attached?, true)),
    }
}

/// What an operator should change at the interface, if it is to carry everything.
fn advice(name: &str, link: &Link) -> Vec<String> {
    let mut advice = Vec::new();
    if !link.is_up() {
        advice.push(format!("it is down; `ip link set {name} up`"));
    }
    // Of the kinds that are no cards, those that take frames have no address filter.
    if link.kind.is_empty() && !link.is_promiscuous() {
        advice.push(format!("the card may drop frames to addresses of VMs; `ip link set {name} promisc on`"));
    }
    if ethtool::strips_tags(name) {
        advice.push(format!(
            "VLAN tags of received frames are taken off before they get here, and are lost; `ethtool -K {name} rxvlan off`"
        ));
    }
    advice
}

/// Questions about a driver (linux/ethtool.h).
mod ethtool {
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    const GET_FLAGS: u32 = 0x25;
    const GET_CHANNELS: u32 = 0x3c;
    const RX_VLAN: u32 = 1 << 8;

    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        max: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }

    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }

    /// None: the driver does not report it.
    fn ask<T>(name: &str, question: &mut T) -> Option<()> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        // SAFETY: a structure of plain numbers and bytes, for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let fits = name.len() < request.ifr_name.len();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()).filter(|_| fits) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut *question).cast();
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: the kernel reads and writes one request, and the question, which has the form of its
        // command; both outlive the call.
        let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, &raw mut request) };
        (result >= 0).then_some(())
    }

    /// Receive queues in use.
    pub fn channels(name: &str) -> Option<u32> {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        ask(name, &mut channels)?;
        Some(channels.rx.checked_add(channels.combined)?).filter(|count| *count > 0)
    }

    /// The driver takes tags out of received frames.
    pub fn strips_tags(name: &str) -> bool {
        let mut value = Value { command: GET_FLAGS, data: 0 };
        ask(name, &mut value).is_some() && value.data & RX_VLAN != 0
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: arguments are numbers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (from, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `value`, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, from, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the kernel hold the memory of a queue: pages that stay where they are as long as the socket does.
fn register(socket: &OwnedFd, addr: u64, len: u64, chunk: usize) -> io::Result<()> {
    let chunk_size = u32::try_from(chunk).map_err(io::Error::other)?;
    let memory = libc::xdp_umem_reg { addr, len, chunk_size, headroom: 0, flags: 0, tx_metadata_len: 0 };
    set(socket, libc::XDP_UMEM_REG, &memory)
}

fn set_up_rings(socket: &OwnedFd) -> io::Result<Rings> {
    for ring in
        [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
    {
        set(socket, ring, &ENTRIES)?;
    }
    // Linux 6.18 and later; others send 32 frames a call.
    let _ = set(socket, MAX_TX_BUDGET, &TX_BUDGET);
    Rings::map(socket)
}

fn bind(socket: &OwnedFd, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the address, which outlives the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is_zero_copy(socket: &OwnedFd) -> bool {
    let mut options = libc::xdp_options { flags: 0 };
    let mut len = size_of::<libc::xdp_options>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `options`, which outlives the call.
    let result = unsafe {
        let to = (&raw mut options).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_OPTIONS, to, &raw mut len)
    };
    result == 0 && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
}

/// Frames that a socket did not get, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Too long, or for another reason.
    pub dropped: u64,
    /// The port did not keep up.
    pub ring_full: u64,
    /// There was no free place to receive into.
    pub no_place: u64,
}

/// What the kernel counted for a socket.
pub fn lost(socket: &OwnedFd) -> Lost {
    // SAFETY: a structure of plain numbers, for which zeros are valid.
    let mut counted: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::xdp_statistics>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `counted`, which outlives the call.
    let _ = unsafe {
        let to = (&raw mut counted).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, to, &raw mut len)
    };
    let libc::xdp_statistics { rx_dropped, rx_ring_full, rx_fill_ring_empty_descs, .. } = counted;
    Lost { dropped: rx_dropped, ring_full: rx_ring_full, no_place: rx_fill_ring_empty_descs }
}

/// The memory of all queues, mapped while it is registered.
struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(memory: &OwnedFd, len: u64) -> io::Result<Mapping> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0)? };
        Ok(Mapping { start, len })
    }

    /// The address of a byte.
    fn at(&self, offset: u64) -> u64 {
        self.start as u64 + offset
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more: the kernel has the
        // pages.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}
