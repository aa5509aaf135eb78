//! A NIC as its operator wants it.

use std::io;
use std::sync::Arc;

use vmlane_wire::ethernet::Mac;

use super::handle::NicHandle;
use super::profile::Profile;
use crate::pci::config::ConfigError;

/// The most queues of either kind.
pub const MAX_QUEUES: u8 = 32;

/// A NIC as configured.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The permanent address.
    pub mac: Mac,
    pub profile: Profile,
    /// Queues of either kind, 1 to 32. Drivers below revision 6 cannot be informed and use up to 8.
    pub max_queues: u8,
    /// The port carries no larger packet, whatever MTU its driver chose. Bytes, without Ethernet header.
    pub mtu: u16,
    /// BAR 0 is trapped instead of mapped by the VMM. The VMM must then be configured not to post writes.
    pub trapped: bool,
    /// What the operator holds of this NIC.
    pub handle: Arc<NicHandle>,
}

impl NicConfig {
    /// The default profile with up to 8 queues, BAR 0 mapped.
    pub fn new(mac: Mac) -> NicConfig {
        let handle = Arc::new(NicHandle::default());
        NicConfig { mac, profile: Profile::default(), max_queues: 8, mtu: MOST_MTU, trapped: false, handle }
    }
}

/// The largest MTU of any revision.
pub const MOST_MTU: u16 = 9190;

/// Why a device could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("{0} cannot be a NIC's address: it is a group address or zero")]
    Mac(Mac),
    #[error("{0} queues: between 1 and {MAX_QUEUES} are possible")]
    Queues(u8),
    #[error("a page of registers cannot be allocated")]
    Page(#[source] io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}
