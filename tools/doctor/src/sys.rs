//! The calls that no safe crate offers: ethtool's questions about an interface, and what the kernel believes
//! of a path.
//!
//! The ioctl and not netlink, because only it has the drivers' own statistics, and because it is the same on
//! all kernels. Nothing in this file changes a setting; [`set`] does. `unsafe` is opened because the kernel
//! writes through pointers: each buffer has room for the most that the kernel may write for its command,
//! which the functions below see to.
#![allow(unsafe_code)]

use std::ffi::{c_ulong, c_void};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

mod set;

pub use set::Numbers;

/// What a card may do for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: String,
    pub on: bool,
    /// Whether it was asked for. What it needs may be off, and then so is the feature.
    pub wanted: bool,
    pub changeable: bool,
    /// Among all of the kernel's.
    at: usize,
}

const SIOCETHTOOL: c_ulong = 0x8946;
/// `IFNAMSIZ`.
const NAME: usize = 16;
/// `ETH_GSTRING_LEN`.
const STRING: usize = 32;
/// More strings or statistics than this are not asked for.
const MOST: usize = 2048;
/// Room for them, in words: the kernel takes its own count at the time of the call, which may be larger than
/// the one that it reported before, after a change of the number of queues.
const ROOM: usize = MOST * STRING;
/// Words of the largest structure of fixed size, struct ethtool_drvinfo with 196 bytes, and some more.
const FIXED: usize = 64;

/// `ETHTOOL_G*` of linux/ethtool.h.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Get {
    DriverInfo = 0x03,
    Coalescing = 0x0e,
    Rings = 0x10,
    Strings = 0x1b,
    Statistics = 0x1d,
    StringSetInfo = 0x37,
    Indirection = 0x38,
    Features = 0x3a,
    Channels = 0x3c,
}

/// `ETH_SS_STATS` and `ETH_SS_FEATURES`.
#[derive(Clone, Copy)]
pub enum Names {
    Statistics = 1,
    Features = 4,
}

#[repr(C)]
struct Request {
    name: [u8; NAME],
    data: *mut c_void,
    _rest: [u8; 16],
}
const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

pub struct Ethtool {
    socket: Socket,
}

impl Ethtool {
    pub fn open() -> io::Result<Ethtool> {
        Ok(Ethtool { socket: Socket::new(Domain::IPV4, Type::DGRAM, None)? })
    }

    fn get(&self, interface: &str, command: Get, buffer: &mut [u32]) -> io::Result<()> {
        self.call(interface, command as u32, buffer)
    }

    /// Makes the call for `command`, whose structure is in `buffer` from the second word on.
    fn call(&self, interface: &str, command: u32, buffer: &mut [u32]) -> io::Result<()> {
        if buffer.len() < FIXED {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set(buffer, 0, command)?;
        let mut request =
            Request { name: name_of(interface)?, data: buffer.as_mut_ptr().cast(), _rest: [0; 16] };
        // SAFETY: `request` has the layout of struct ifreq and names a buffer that outlives the call. The
        // kernel writes the structure of the command, and behind it at most what the caller announced
        // (features) or what the interface has (strings, statistics, the table of queues), for which `ROOM`
        // was allocated.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, (&raw mut request).cast::<c_void>())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The driver's name, version, firmware and bus address.
    pub fn driver(&self, interface: &str) -> io::Result<[String; 4]> {
        let mut buffer = [0; FIXED];
        self.get(interface, Get::DriverInfo, &mut buffer)?;
        Ok(std::array::from_fn(|at| text(&buffer, 1 + at * STRING / 4)))
    }

    /// The queue of each entry of the table by which frames are spread (`struct ethtool_rxfh_indir`); empty
    /// without one.
    pub fn indirection(&self, interface: &str) -> io::Result<Vec<u32>> {
        let mut buffer = vec![0; ROOM];
        // Asked with no room, the kernel returns only how large the table is.
        self.get(interface, Get::Indirection, &mut buffer)?;
        let size = word(&buffer, 1) as usize;
        if size == 0 {
            return Ok(Vec::new());
        }
        if size > MOST {
            return Err(io::Error::other("more entries than are read"));
        }
        self.get(interface, Get::Indirection, &mut buffer)?;
        Ok((0..size).map(|at| word(&buffer, 2 + at)).collect())
    }

    fn count(&self, interface: &str, names: Names) -> io::Result<usize> {
        let mut buffer = [0; FIXED];
        // struct ethtool_sset_info: command, reserved, a mask of 64 bits, then a count for each set of the
        // mask.
        let mask = if cfg!(target_endian = "little") { 2 } else { 3 };
        set(&mut buffer, mask, 1 << names as u32)?;
        self.get(interface, Get::StringSetInfo, &mut buffer)?;
        let count = if word(&buffer, mask) == 0 { 0 } else { word(&buffer, 4) as usize };
        if count > MOST { Err(io::Error::other("more names than are read")) } else { Ok(count) }
    }

    pub fn names(&self, interface: &str, names: Names) -> io::Result<Vec<String>> {
        let count = self.count(interface, names)?;
        let mut buffer = vec![0; ROOM];
        set(&mut buffer, 1, names as u32)?;
        set(&mut buffer, 2, count as u32)?;
        self.get(interface, Get::Strings, &mut buffer)?;
        let returned = (word(&buffer, 2) as usize).min(count);
        Ok((0..returned).map(|at| text(&buffer, 3 + at * STRING / 4)).collect())
    }

    pub fn statistics(&self, interface: &str) -> io::Result<Vec<(String, u64)>> {
        let names = self.names(interface, Names::Statistics)?;
        let mut buffer = vec![0; ROOM];
        set(&mut buffer, 1, names.len() as u32)?;
        self.get(interface, Get::Statistics, &mut buffer)?;
        let returned = word(&buffer, 1) as usize;
        let bytes: Vec<u8> = buffer.iter().skip(2).flat_map(|word| word.to_ne_bytes()).collect();
        let values = bytes.as_chunks::<8>().0.iter().map(|value| u64::from_ne_bytes(*value));
        Ok(names.into_iter().zip(values).take(returned).collect())
    }

    /// All features of an interface.
    pub fn features(&self, interface: &str) -> io::Result<Vec<Feature>> {
        let names = self.names(interface, Names::Features)?;
        let mut buffer = [0; 128];
        let blocks = names.len().div_ceil(32).min(16);
        set(&mut buffer, 1, blocks as u32)?;
        self.get(interface, Get::Features, &mut buffer)?;
        // Of each block: those that there are, those asked for, those in effect, those that never change.
        let bit = |at: usize, field: usize| word(&buffer, 2 + at / 32 * 4 + field) & (1 << (at % 32)) != 0;
        let feature = |(at, name)| Feature {
            name,
            on: bit(at, 2),
            wanted: bit(at, 1),
            changeable: bit(at, 0) && !bit(at, 3),
            at,
        };
        Ok(names.into_iter().take(blocks * 32).enumerate().map(feature).collect())
    }
}

/// An interface's name as the kernel takes it.
fn name_of(interface: &str) -> io::Result<[u8; NAME]> {
    let (mut name, bytes) = ([0; NAME], interface.as_bytes());
    if bytes.is_empty() || bytes.len() >= NAME || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    name.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    Ok(name)
}

/// Word `at` of a buffer, as the kernel wrote it.
fn word(buffer: &[u32], at: usize) -> u32 {
    buffer.get(at).copied().unwrap_or(0)
}

fn set(buffer: &mut [u32], at: usize, value: u32) -> io::Result<()> {
    *buffer.get_mut(at).ok_or(io::ErrorKind::InvalidInput)? = value;
    Ok(())
}

/// The string of at most [`STRING`] bytes at this word of a buffer.
fn text(buffer: &[u32], at: usize) -> String {
    let bytes = buffer.iter().skip(at).flat_map(|word| word.to_ne_bytes()).take(STRING);
    String::from_utf8_lossy(&bytes.take_while(|byte| *byte != 0).collect::<Vec<u8>>()).into_owned()
}

/// The MTU that the kernel takes for the path to an address.
pub fn path_mtu(to: IpAddr) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind(match to {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    })?;
    socket.connect((to, 9))?;
    Ok(match to {
        IpAddr::V4(_) => sockopt::ip_mtu(&socket)?,
        IpAddr::V6(_) => sockopt::ipv6_mtu(&socket)?,
    })
}

/// The CID that /dev/vsock reports, and whether the kernel has the address family.
pub fn vsock() -> (Option<u32>, bool) {
    const GET_LOCAL_CID: c_ulong = 0x7b9;
    let family = Socket::new(Domain::VSOCK, Type::STREAM, None).is_ok();
    let Ok(device) = std::fs::File::open("/dev/vsock") else { return (None, family) };
    let mut cid = 0_u32;
    // SAFETY: the descriptor is open during the call; the kernel writes 32 bits, which are there.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_LOCAL_CID as _, &raw mut cid) };
    ((result == 0).then_some(cid), family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_strings_are_where_the_kernel_puts_them() {
        let mut buffer = [0_u32; 16];
        set(&mut buffer, 3, 0xdead_beef).unwrap();
        assert!(set(&mut buffer, 16, 7).is_err());
        assert_eq!((word(&buffer, 2), word(&buffer, 3), word(&buffer, 16)), (0, 0xdead_beef, 0));
        buffer[2] = u32::from_ne_bytes(*b"ab\0\0");
        buffer[3] = u32::from_ne_bytes(*b"cdef");
        assert_eq!(text(&buffer, 2), "ab");
        assert_eq!(text(&buffer, 3), "cdef");
    }

    #[test]
    fn the_loopback_answers() {
        let ethtool = Ethtool::open().unwrap();
        let features = ethtool.features("lo").unwrap();
        let tso = features.iter().find(|feature| feature.name == "tx-tcp-segmentation");
        assert!(tso.expect("all kernels name it").on, "the loopback has segmentation offload: {tso:?}");
        // It has one queue, and so no table to spread frames by.
        assert!(ethtool.indirection("lo").is_err_and(|error| error.kind() == io::ErrorKind::Unsupported));
        assert!(ethtool.features("no-such-if").is_err());
        assert!(ethtool.features("a-name-that-is-too-long").is_err());
        assert!(path_mtu("127.0.0.1".parse().unwrap()).unwrap() >= 1500);
    }
}
