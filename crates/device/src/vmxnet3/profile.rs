//! Which VMXNET3 a guest is given: the modern one, one with the features of Enhanced VMXNET2, one with
//! everything.

use std::fmt;
use std::str::FromStr;

use vmlane_wire::vmxnet3::regs::{BAR0_SIZE, LARGE_BAR0_SIZE, capability, feature, interrupt_type};

use super::setup::{Features, Moderation};

/// A set of features under one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Revisions 1 to 6: nothing that a driver needs revision 7 for.
    Vmxnet3,
    /// What Enhanced VMXNET2 could do, for comparison: revision 1, one interrupt, no RSS, no
    /// aggregates, 1 Gbit/s, short rings.
    Vmxnet2Class,
    /// Revision 7 on top: capability words, tunnel offloads, doorbells that announce what an idle NIC sends.
    #[default]
    Full,
}

/// A text that names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a VMXNET3 profile; there are vmxnet3, vmxnet2-class and full")]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Profile, UnknownProfile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name() == text)
            .ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Profile {
    pub const ALL: [Profile; 3] = [Profile::Vmxnet3, Profile::Vmxnet2Class, Profile::Full];

    /// The highest revision of any profile.
    pub const NEWEST: u8 = 7;

    /// As configuration files spell it.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Vmxnet3 => "vmxnet3",
            Profile::Vmxnet2Class => "vmxnet2-class",
            Profile::Full => "full",
        }
    }

    /// The highest revision offered; all below are offered too.
    pub fn revision(self) -> u8 {
        match self {
            Profile::Vmxnet3 => 6,
            Profile::Vmxnet2Class => 1,
            Profile::Full => 7,
        }
    }

    /// MSI-X is offered, with as many vectors as queues may need.
    pub fn has_msix(self) -> bool {
        self != Profile::Vmxnet2Class
    }

    /// The interrupt type a driver is asked to use.
    pub fn interrupt_type(self) -> u32 {
        if self.has_msix() { interrupt_type::AUTO } else { interrupt_type::MSI }
    }

    /// Mbit/s. A label; nothing is limited to it.
    pub fn link_speed(self) -> u16 {
        if self == Profile::Vmxnet2Class { 1000 } else { 10_000 }
    }

    /// Buffers of a receive ring in use at once. Enhanced VMXNET2 had 150 by default.
    pub fn rx_depth(self) -> Option<u16> {
        (self == Profile::Vmxnet2Class).then_some(150)
    }

    /// The first capability word (revision 7).
    pub fn capabilities(self) -> u32 {
        if self != Profile::Full {
            return 0;
        }
        capability::UDP_RSS
            | capability::GENEVE_CHECKSUM
            | capability::GENEVE_TSO
            | capability::VXLAN_CHECKSUM
            | capability::VXLAN_TSO
            | capability::GENEVE_OUTER_CHECKSUM
            | capability::VXLAN_OUTER_CHECKSUM
            | capability::LARGE_BAR
    }

    /// Bytes of BAR 0 in a session that begins.
    pub fn bar0_size(self) -> u64 {
        let large = self.capabilities() & capability::LARGE_BAR != 0;
        if large { LARGE_BAR0_SIZE } else { BAR0_SIZE }
    }

    /// `uptFeatures` within the profile.
    pub fn features(self, bits: u64) -> Features {
        let lro = self != Profile::Vmxnet2Class && bits & feature::LRO != 0;
        Features {
            rx_checksum: bits & feature::RX_CHECKSUM != 0,
            rx_vlan: bits & feature::RX_VLAN != 0,
            lro4: lro,
            lro6: lro,
        }
    }

    /// May frames be spread over receive queues?
    pub fn has_rss(self) -> bool {
        self != Profile::Vmxnet2Class
    }

    /// When interrupts are held back, as long as the driver asks for nothing.
    pub fn moderation(self) -> Moderation {
        // The older NIC moderated at a fixed rate, by default this one.
        if self == Profile::Vmxnet2Class { Moderation::Rate(4000) } else { Moderation::Adaptive }
    }
}
