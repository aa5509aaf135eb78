//! Which frames a NIC takes, as its guest asked.

use vmlane_wire::ethernet::Mac;

/// One bit for each VLAN id.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(pub Box<[u64; 64]>);

impl VlanSet {
    /// No VLAN.
    pub fn none() -> VlanSet {
        VlanSet(Box::new([0; 64]))
    }

    /// All 4096 of them.
    pub fn all() -> VlanSet {
        VlanSet(Box::new([!0; 64]))
    }

    /// Adds a VLAN; bits above the lower 12 do not count.
    pub fn insert(&mut self, vlan: u16) {
        if let Some(word) = self.0.get_mut(word_of(vlan)) {
            *word |= 1 << (vlan % 64);
        }
    }

    /// Takes a VLAN out.
    pub fn remove(&mut self, vlan: u16) {
        if let Some(word) = self.0.get_mut(word_of(vlan)) {
            *word &= !(1 << (vlan % 64));
        }
    }

    /// Is the VLAN in the set?
    #[inline]
    pub fn contains(&self, vlan: u16) -> bool {
        self.0.get(word_of(vlan)).is_some_and(|word| word & 1 << (vlan % 64) != 0)
    }
}

fn word_of(vlan: u16) -> usize {
    usize::from(vlan & 0xfff) / 64
}

impl std::fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((0..4096).filter(|&vlan| self.contains(vlan))).finish()
    }
}

/// A NIC's receive filter. The switch applies it; a guest's promiscuous wish counts only where the
/// port's policy allows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The address in force.
    pub mac: Mac,
    /// Frames to `mac`.
    pub unicast: bool,
    /// Frames to all stations.
    pub broadcast: bool,
    /// Frames to every multicast address, not only those of `multicast`.
    pub all_multicast: bool,
    /// Every frame, whatever its address.
    pub promiscuous: bool,
    /// Multicast addresses asked for, sorted.
    pub multicast: Vec<Mac>,
    /// VLANs asked for; None takes all. Untagged and priority-tagged frames always pass.
    pub vlans: Option<VlanSet>,
}

impl Filter {
    /// Takes everything: an uplink.
    pub fn open() -> Filter {
        Filter { promiscuous: true, ..Filter::default() }
    }

    /// Is `to` one of the addresses asked for (promiscuous mode apart)?
    #[inline]
    pub fn accepts(&self, to: Mac) -> bool {
        if !to.is_multicast() {
            self.unicast && to == self.mac
        } else if to.is_broadcast() {
            self.broadcast
        } else {
            self.all_multicast || self.multicast.binary_search(&to).is_ok()
        }
    }

    /// May a frame of this VLAN (0: untagged) reach the guest?
    #[inline]
    pub fn accepts_vlan(&self, vlan: u16) -> bool {
        vlan == 0 || self.vlans.as_ref().is_none_or(|vlans| vlans.contains(vlan))
    }
}
