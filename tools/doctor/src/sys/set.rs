//! The calls that change a setting of an interface, and what must be known to take a change back.

use std::ffi::{c_int, c_ulong, c_void};
use std::io;
use std::os::fd::AsRawFd;

use super::{Ethtool, FIXED, Feature, Get, NAME, Names, name_of, set, word};

const SIOCGIFMTU: c_ulong = 0x8921;
const SIOCSIFMTU: c_ulong = 0x8922;

/// `ETHTOOL_S*` of linux/ethtool.h.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Set {
    Coalescing = 0x0f,
    Rings = 0x11,
    Indirection = 0x39,
    Features = 0x3b,
    Channels = 0x3d,
}

/// Names of the rings, and where their sizes are in `struct ethtool_ringparam`.
const RINGS: [(&str, usize); 4] = [("rx", 5), ("rx-mini", 6), ("rx-jumbo", 7), ("tx", 8)];
/// The same of `struct ethtool_channels`.
const CHANNELS: [(&str, usize); 4] = [("rx", 5), ("tx", 6), ("other", 7), ("combined", 8)];
/// The same of `struct ethtool_coalesce`, without what depends on the rate.
const COALESCING: [(&str, usize); 6] = [
    ("rx-usecs", 1),
    ("rx-frames", 2),
    ("tx-usecs", 5),
    ("tx-frames", 6),
    ("adaptive-rx", 10),
    ("adaptive-tx", 11),
];

/// Settings that are numbers in a structure of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    Rings,
    Channels,
    Coalescing,
}

impl Numbers {
    fn layout(self) -> (Get, Set, &'static [(&'static str, usize)]) {
        match self {
            Numbers::Rings => (Get::Rings, Set::Rings, &RINGS),
            Numbers::Channels => (Get::Channels, Set::Channels, &CHANNELS),
            Numbers::Coalescing => (Get::Coalescing, Set::Coalescing, &COALESCING),
        }
    }
}

#[repr(C)]
struct MtuRequest {
    name: [u8; NAME],
    mtu: c_int,
    _rest: [u8; 20],
}
const _: () = assert!(size_of::<MtuRequest>() == size_of::<libc::ifreq>());

impl Ethtool {
    /// The kernel's structure, from its first word.
    pub fn words(&self, interface: &str, which: Numbers) -> io::Result<[u32; FIXED]> {
        let mut buffer = [0; FIXED];
        self.get(interface, which.layout().0, &mut buffer)?;
        Ok(buffer)
    }

    pub fn numbers(&self, interface: &str, which: Numbers) -> io::Result<Vec<(&'static str, u32)>> {
        let buffer = self.words(interface, which)?;
        Ok(which.layout().2.iter().map(|(name, at)| (*name, word(&buffer, *at))).collect())
    }

    /// Sets those that are named and leaves the others as they are.
    pub fn set_numbers(&self, interface: &str, which: Numbers, values: &[(&str, u32)]) -> io::Result<()> {
        let (_, command, fields) = which.layout();
        let mut buffer = self.words(interface, which)?;
        for (name, value) in values {
            let Some((_, at)) = fields.iter().find(|(known, _)| known == name) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            set(&mut buffer, *at, *value)?;
        }
        self.call(interface, command as u32, &mut buffer)
    }

    /// Asks for these features as they are given, and for no others.
    pub fn set_wanted(&self, interface: &str, features: &[Feature]) -> io::Result<()> {
        // The kernel takes nothing but as many blocks as it has.
        let blocks = self.names(interface, Names::Features)?.len().div_ceil(32).min(16);
        let mut buffer = [0; 128];
        set(&mut buffer, 1, blocks as u32)?;
        for feature in features.iter().filter(|feature| feature.at / 32 < blocks) {
            // Two words a block: which are meant, and how they shall be.
            let (at, mask) = (2 + feature.at / 32 * 2, 1 << (feature.at % 32));
            let (meant, on) = (word(&buffer, at) | mask, word(&buffer, at + 1));
            set(&mut buffer, at, meant)?;
            set(&mut buffer, at + 1, if feature.wanted { on | mask } else { on & !mask })?;
        }
        self.call(interface, Set::Features as u32, &mut buffer)
    }

    /// Sets the queue of each entry of the table by which frames are spread; it has as many as there are.
    pub fn set_indirection(&self, interface: &str, table: &[u32]) -> io::Result<()> {
        if table.is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // struct ethtool_rxfh_indir: command, size, then the entries. The kernel refuses another size than
        // the card's.
        let mut buffer = vec![0; FIXED.max(2 + table.len())];
        set(&mut buffer, 1, table.len() as u32)?;
        for (at, queue) in table.iter().enumerate() {
            set(&mut buffer, 2 + at, *queue)?;
        }
        self.call(interface, Set::Indirection as u32, &mut buffer)
    }

    pub fn mtu(&self, interface: &str) -> io::Result<u32> {
        let returned = self.mtu_call(interface, SIOCGIFMTU, 0)?;
        u32::try_from(returned).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    pub fn set_mtu(&self, interface: &str, mtu: u32) -> io::Result<()> {
        let mtu = c_int::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.mtu_call(interface, SIOCSIFMTU, mtu).map(drop)
    }

    fn mtu_call(&self, interface: &str, command: c_ulong, mtu: c_int) -> io::Result<c_int> {
        let mut request = MtuRequest { name: name_of(interface)?, mtu, _rest: [0; 20] };
        // SAFETY: `request` has the size of struct ifreq, which is all that the kernel reads or writes for
        // these commands, and outlives the call.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), command as _, (&raw mut request).cast::<c_void>())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request.mtu) }
    }

    /// The interface's number: one that was taken away and came again has another.
    pub fn index(&self, interface: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, interface)?)
    }

    /// Distinguishes the network namespace of this process from all others since the machine started; none
    /// from a kernel before 5.14.
    pub fn namespace(&self) -> Option<u64> {
        let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
        // SAFETY: the descriptor is open during the call; the kernel writes at most `length` bytes into
        // `cookie`.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast::<c_void>(),
                &raw mut length,
            )
        };
        (result == 0).then_some(cookie)
    }
}
