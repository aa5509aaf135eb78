//! What a port may send and what it gets: its configuration, and what follows from that and its guest's
//! filter.

use vmlane_port::{DropReason, Filter};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::spec::{Policy, PortSpec, Traffic, VlanMode};

/// A port as the operator configured it.
#[derive(Clone, Debug)]
pub struct Config {
    pub mac: Mac,
    pub vlan: VlanMode,
    pub policy: Policy,
    /// See [`crate::Traffic::floods`].
    pub floods: Option<u32>,
    /// See [`crate::Traffic::snoop`].
    pub snoop: bool,
    /// See [`crate::Traffic::shares`].
    pub shares: u16,
    /// See [`crate::Traffic::endpoint`].
    pub endpoint: bool,
    pub uplink: bool,
    /// See [`PortSpec::direct`].
    pub direct: bool,
    /// See [`PortSpec::notify`].
    pub notify: bool,
}

impl From<&PortSpec> for Config {
    fn from(spec: &PortSpec) -> Config {
        let PortSpec { mac, policy, uplink, direct, notify, .. } = *spec;
        let Traffic { floods, snoop, shares, endpoint, .. } = spec.traffic;
        let shares = shares.unwrap_or(Traffic::NORMAL_SHARES);
        let snoop = snoop && !uplink && !direct;
        Config {
            mac,
            vlan: spec.vlan.clone(),
            policy,
            floods,
            snoop,
            shares,
            endpoint,
            uplink,
            direct,
            notify,
        }
    }
}

/// What follows from a port's configuration and its guest's filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The address in force.
    pub effective: Mac,
    /// Its guest changed the address and may not.
    pub blocked: bool,
    /// Frames to its own address are wanted.
    pub own: bool,
    /// Wants all frames of its VLANs and may have them.
    pub mirror: bool,
    /// Wants frames to addresses that are not known, and may have them.
    pub unknown: bool,
    /// The VLAN of the frames it sends without a tag; None if it may not.
    pub untagged: Option<u16>,
}

impl Access {
    /// Of a port to which nothing is attached.
    pub fn detached(config: &Config) -> Access {
        Access { effective: config.mac, untagged: config.vlan.ingress(None), ..Access::default() }
    }

    pub fn new(config: &Config, filter: &Filter) -> Access {
        let Filter { mac, unicast, promiscuous, .. } = *filter;
        let Policy { promiscuous: may_watch, mac_changes, forged_transmits } = config.policy;
        let changed = mac.is_unicast() && mac != config.mac && !config.uplink;
        let blocked = changed && !mac_changes;
        Access {
            effective: if changed && !blocked { mac } else { config.mac },
            blocked,
            own: unicast || promiscuous,
            // On a cable there are no others' frames to watch.
            mirror: promiscuous && may_watch && !config.uplink && !config.direct,
            unknown: promiscuous && (config.uplink || may_watch || forged_transmits),
            untagged: config.vlan.ingress(None),
        }
    }

    /// Is a frame to this address the port's own, or does it only watch it?
    #[inline]
    pub fn is_own(&self, to: Mac) -> bool {
        to == self.effective || to.is_multicast()
    }

    /// Frames of this VLAN, without a tag from their sender, arrive without one whatever the filter is.
    #[inline]
    pub fn accepts_plain(&self, config: &Config, vlan: u16) -> bool {
        self.own && !self.blocked && (vlan == 0 || matches!(config.vlan, VlanMode::Access(_)))
    }

    /// The tag that the receiver sees on a frame to `to` in `vlan` that came with `tag`, or why it gets none.
    #[inline]
    pub fn receive(
        &self,
        config: &Config,
        filter: &Filter,
        to: Mac,
        vlan: u16,
        tag: Option<Tci>,
    ) -> Result<Option<Tci>, DropReason> {
        let wanted = if to == self.effective {
            self.own
        } else {
            // Who gets a frame to a group was decided before, but on a cable.
            self.unknown || to.is_multicast() && (!config.direct || filter.accepts(to))
        };
        if self.blocked {
            return Err(DropReason::MacChanged);
        }
        if !wanted || vlan != 0 && !config.vlan.shows(vlan, filter) {
            return Err(DropReason::Filtered);
        }
        Ok(match vlan {
            0 if tag.is_none() => None,
            vlan => config.vlan.egress_tag(vlan, tag),
        })
    }
}
