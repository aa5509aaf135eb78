//! The system calls that attach to a TAP interface.
#![allow(unsafe_code)] // ioctl

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::TapOptions;
use vmlane_port::VnetHeader as Header;

const DEVICE: &str = "/dev/net/tun";

/// Why an uplink could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    #[error("TAP interface name {name:?} is empty, longer than 15 bytes, or has a \"/\", a \"%\" or a space")]
    Name { name: String },
    #[error("TAP interface {name:?}: {DEVICE} cannot be opened; load the module with `modprobe tun`")]
    Device { name: String, source: io::Error },
    #[error(
        "TAP interface {name:?} cannot be attached; make it with `ip tuntap add dev {name} mode tap user USER{}` \
         for the user that vmlane runs as, or give vmlane CAP_NET_ADMIN",
        if queues.is_some() { " multi_queue" } else { "" }
    )]
    Attach { name: String, queues: Option<u16>, source: io::Error },
    #[error(
        "TAP interface {name:?} is in use by another program, or was made with `multi_queue` where `queues` is \
         not configured, or the other way round"
    )]
    Busy { name: String, source: io::Error },
    #[error("TAP interface {name:?}: the kernel refused {what}")]
    Setting { name: String, what: &'static str, source: io::Error },
    #[error("TAP interface {name:?}: no memory for its frames")]
    Memory { name: String, source: io::Error },
}

/// Offloads that the kernel may leave to us: checksums, TCP segmentation over IPv4 and IPv6, with ECN.
const OFFLOADS: libc::c_uint = 1 | 2 | 4 | 8;

/// An interface request with its name and nothing else.
fn request(name: &str) -> Result<libc::ifreq, TapError> {
    let fits = (1..libc::IFNAMSIZ).contains(&name.len())
        && !name.bytes().any(|byte| byte == 0 || byte == b'/' || byte == b'%' || byte.is_ascii_whitespace());
    if !fits {
        return Err(TapError::Name { name: name.to_owned() });
    }
    // SAFETY: a structure of plain numbers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a queue of the interface, non-blocking, with our header in front of each frame.
pub fn attach(options: &TapOptions) -> Result<OwnedFd, TapError> {
    let TapOptions { name, queues } = options;
    let mut request = request(name)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|error| TapError::Device { name: name.clone(), source: error.into() })?;
    let several = if queues.is_some() { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    let attached = check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) });
    attached.map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY | libc::EINVAL) => TapError::Busy { name: name.clone(), source },
        _ => TapError::Attach { name: name.clone(), queues: *queues, source },
    })?;
    let set =
        |what, result| check(result).map_err(|source| TapError::Setting { name: name.clone(), what, source });
    let (size, little_endian) = (Header::SIZE as libc::c_int, 1 as libc::c_int);
    // SAFETY: the kernel reads one `int`, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const size) };
    set("the header's size", result)?;
    // SAFETY: as above.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETLE as _, &raw const little_endian) };
    set("little-endian headers", result)?;
    // SAFETY: the argument is a number.
    let result =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(OFFLOADS)) };
    set("offloads", result)?;
    Ok(file)
}

/// Bytes of the longest packet (without Ethernet header).
pub fn mtu(name: &str) -> Result<usize, TapError> {
    let failed = |source| TapError::Setting { name: name.to_owned(), what: "to report its MTU", source };
    let (_, request) = ask(name, libc::SIOCGIFMTU, failed)?;
    // SAFETY: the kernel filled in this member.
    Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// What the kernel answers to a call about an interface, and a socket for further ones.
fn ask(
    name: &str,
    call: libc::c_ulong,
    failed: impl Fn(io::Error) -> TapError,
) -> Result<(OwnedFd, libc::ifreq), TapError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed(error.into()))?;
    let mut request = request(name)?;
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), call as _, &raw mut request) }).map_err(failed)?;
    Ok((socket, request))
}

/// Has the operator, or someone for him, set the interface up?
pub fn is_up(name: &str) -> Result<bool, TapError> {
    let failed = |source| TapError::Setting { name: name.to_owned(), what: "to report its flags", source };
    let (_, request) = ask(name, libc::SIOCGIFFLAGS, failed)?;
    // SAFETY: the kernel filled in this member.
    Ok(unsafe { request.ifr_ifru.ifru_flags } & libc::IFF_UP as libc::c_short != 0)
}

/// Sets the interface up or down. An interface that is set up is made quiet first: the host itself has no
/// address there, answers nothing and sends nothing.
pub fn set_up(name: &str, up: bool) -> Result<(), TapError> {
    let failed = |source| TapError::Setting { name: name.to_owned(), what: "to be set up or down", source };
    let (socket, mut request) = ask(name, libc::SIOCGIFFLAGS, failed)?;
    if up {
        quieten(name)?;
    }
    // SAFETY: the kernel filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let bit = libc::IFF_UP as libc::c_short;
    request.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
    // SAFETY: the kernel reads one `ifreq`, which outlives the call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })
        .map_err(failed)
}

/// What the host's own network stack may not do at the interface: speak IPv6, answer ARP, forward, and take
/// packets that were sent to all. A switch that takes an interface's frames away from the stack needs none of
/// this; one that reads them by a packet socket leaves the stack a copy.
const QUIET: [(&str, &str, &str); 4] = [
    ("ipv6", "disable_ipv6", "1"),
    ("ipv4", "arp_ignore", "8"),
    ("ipv4", "forwarding", "0"),
    ("ipv4", "drop_unicast_in_l2_multicast", "1"),
];

fn quieten(name: &str) -> Result<(), TapError> {
    for (family, key, value) in QUIET {
        let path = format!("/proc/sys/net/{family}/conf/{name}/{key}");
        match std::fs::write(&path, value) {
            // A kernel without IPv6 has no setting there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(TapError::Setting { name: name.to_owned(), what: key, source }),
            Ok(()) => {}
        }
    }
    Ok(())
}
