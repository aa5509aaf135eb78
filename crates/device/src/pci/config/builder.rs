//! Putting a configuration space together, with the mistakes a device model can make in doing so.

use vmlane_wire::pci::{
    CONFIG_SIZE, EXTENDED_CONFIG_SIZE, HEADER_END, MsiCapability, MsixCapability, bar, command, offset,
    status,
};
use zerocopy::IntoBytes;

use super::{Bar, ConfigError, ConfigSpace, Msix};

/// Builds a [`ConfigSpace`]; the first mistake is reported by [`Self::build`].
#[derive(Debug)]
pub struct ConfigBuilder {
    space: ConfigSpace,
    /// Bytes of the capability area in use.
    taken: [bool; CONFIG_SIZE],
    /// Where the number of the next capability goes.
    link: usize,
    error: Option<ConfigError>,
}

impl ConfigBuilder {
    pub(super) fn new(vendor: u16, device: u16) -> ConfigBuilder {
        let mut space =
            ConfigSpace { bytes: vec![0; CONFIG_SIZE], writable: vec![0; CONFIG_SIZE], initial: Vec::new() };
        space.put(offset::VENDOR_ID, &vendor.to_le_bytes());
        space.put(offset::DEVICE_ID, &device.to_le_bytes());
        let command = command::IO
            | command::MEMORY
            | command::BUS_MASTER
            | command::PARITY
            | command::SERR
            | command::INTX_DISABLE;
        space.allow(offset::COMMAND, &command.to_le_bytes());
        for byte in [offset::CACHE_LINE, offset::LATENCY, offset::INTERRUPT_LINE] {
            space.allow(byte, &[0xff]);
        }
        ConfigBuilder { space, taken: [false; CONFIG_SIZE], link: offset::CAPABILITIES, error: None }
    }

    /// Base class, sub-class and programming interface, as `0xBBSSPP`.
    pub fn class(mut self, class: u32) -> ConfigBuilder {
        let [interface, sub, base, _] = class.to_le_bytes();
        self.space.put(offset::CLASS, &[interface, sub, base]);
        self
    }

    pub fn revision(mut self, revision: u8) -> ConfigBuilder {
        self.space.put(offset::REVISION, &[revision]);
        self
    }

    pub fn subsystem(mut self, vendor: u16, id: u16) -> ConfigBuilder {
        self.space.put(offset::SUBSYSTEM_VENDOR, &vendor.to_le_bytes());
        self.space.put(offset::SUBSYSTEM_ID, &id.to_le_bytes());
        self
    }

    /// Interrupt pin: 0 none, 1 INTA.
    pub fn interrupt_pin(mut self, pin: u8) -> ConfigBuilder {
        self.space.put(offset::INTERRUPT_PIN, &[pin]);
        self
    }

    /// Min_Gnt and Max_Lat, in quarters of a microsecond.
    pub fn timing(mut self, min_grant: u8, max_latency: u8) -> ConfigBuilder {
        self.space.put(offset::MIN_GRANT, &[min_grant, max_latency]);
        self
    }

    /// Makes room for PCI Express extended capabilities: 4096 bytes instead of 256.
    pub fn extended(mut self) -> ConfigBuilder {
        self.space.bytes.resize(EXTENDED_CONFIG_SIZE, 0);
        self.space.writable.resize(EXTENDED_CONFIG_SIZE, 0);
        self
    }

    /// Base address register `index`.
    pub fn bar(mut self, index: usize, bar: Bar) -> ConfigBuilder {
        let (size, flags, registers) = match bar {
            Bar::Io { size } => (u64::from(size), bar::IO, 1),
            Bar::Mem32 { size } => (u64::from(size), 0, 1),
            Bar::Mem64 { size } => (size, bar::MEM64, 2),
        };
        // The low bits say what kind it is, so nothing smaller than this can be distinguished.
        let least = if flags == bar::IO { 4 } else { 16 };
        // A number beyond the last register is refused below, so it may be clipped here.
        let at = offset::BAR0 + 4 * index.min(6);
        let end = at + 4 * registers;
        let fits = end <= offset::BAR0 + 24 && size.is_power_of_two() && size >= least;
        if !fits || !self.take(at, end) {
            return self.fail(ConfigError::Bar { index, bar });
        }
        self.space.put(at, &flags.to_le_bytes());
        let mask = (!(size - 1)).to_le_bytes();
        self.space.allow(at, mask.get(..4 * registers).unwrap_or(&mask));
        self
    }

    /// One 64-bit MSI message, its capability at `at`.
    pub fn msi(self, at: usize) -> ConfigBuilder {
        self.capability(at, MsiCapability::one().as_bytes(), MsiCapability::writable().as_bytes())
    }

    /// MSI-X, its capability at `at`.
    pub fn msix(self, at: usize, msix: Msix) -> ConfigBuilder {
        let Msix { vectors, table, pba } = msix;
        if !(1..=MsixCapability::MAX_VECTORS).contains(&vectors) {
            return self.fail(ConfigError::Vectors { vectors });
        }
        let capability = MsixCapability::new(vectors, table, pba);
        self.capability(at, capability.as_bytes(), MsixCapability::writable().as_bytes())
    }

    /// Any capability: its bytes (number first, link second) and the bits a guest may write.
    pub fn capability(mut self, at: usize, bytes: &[u8], writable: &[u8]) -> ConfigBuilder {
        let (id, len) = (bytes.first().copied().unwrap_or(0), bytes.len());
        let end = at.saturating_add(len);
        let fits = at >= HEADER_END
            && at.is_multiple_of(4)
            && end <= CONFIG_SIZE
            && len >= 2
            && writable.len() <= len;
        if !fits || !self.take(at, end) {
            return self.fail(ConfigError::Capability { id, at, len });
        }
        self.space.put(at, bytes);
        self.space.allow(at, writable);
        // Identity of the list is never the guest's to write.
        self.space.allow(at, &[0; 2]);
        self.space.put(at + 1, &[0]);
        self.space.put(self.link, &[at as u8]);
        self.link = at + 1;
        self.space.put(offset::STATUS, &status::CAPABILITIES.to_le_bytes());
        self
    }

    /// The space as it is after power-on.
    pub fn build(mut self) -> Result<ConfigSpace, ConfigError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.space.initial = self.space.bytes.clone();
        Ok(self.space)
    }

    /// Takes bytes of the header or of the capability area. False: some are taken already, or do not exist.
    fn take(&mut self, at: usize, end: usize) -> bool {
        let Some(place) = self.taken.get_mut(at..end).filter(|place| !place.contains(&true)) else {
            return false;
        };
        place.fill(true);
        true
    }

    fn fail(mut self, error: ConfigError) -> ConfigBuilder {
        self.error.get_or_insert(error);
        self
    }
}
