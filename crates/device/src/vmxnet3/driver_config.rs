//! What the driver last set for filters, features, scaling and moderation, and what follows.

use vmlane_mem::MemoryMap;
use vmlane_port::{Filter, VlanSet};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::vmxnet3::regs::{feature, rx_mode};
use vmlane_wire::vmxnet3::shared::{Coalesce, DriverShared, RssBlock};

use super::profile::Profile;
use super::rss;
use super::setup::{Live, Moderation};

/// Moderation level: as the device sees fit.
const ADAPTIVE_LEVEL: u8 = 8;
/// The most completions that may wait for one interrupt.
const MAX_DEPTH: u32 = 128;
/// Interrupts a second.
const RATES: std::ops::RangeInclusive<u32> = 100..=100_000;

/// Copies of what was in memory when the driver declared it valid.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    features: u64,
    rx_mode: u32,
    multicast: Vec<Mac>,
    vlans: Option<VlanSet>,
    rss: Option<RssBlock>,
    /// Moderation of the first receive queue's vector; it stands for all.
    pub level: u8,
}

/// What else decides: the NIC's own settings.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub profile: Profile,
    pub revision: u8,
    pub mac: Mac,
    /// Receive queues.
    pub queues: usize,
    pub rss_fields: u32,
    pub coalesce: Option<Coalesce>,
}

impl DriverConfig {
    /// All of them, at activation.
    pub fn new(memory: &MemoryMap, driver: &DriverShared, level: u8) -> DriverConfig {
        let mut config = DriverConfig {
            features: driver.features.get(),
            rx_mode: driver.rx_mode.get(),
            multicast: Vec::new(),
            vlans: None,
            rss: None,
            level,
        };
        config.update_vlans(driver);
        config.update_rss(memory, driver);
        if config.rx_mode & rx_mode::MULTICAST != 0 {
            config.update_multicast(memory, driver);
        }
        config
    }

    pub fn update_features(&mut self, driver: &DriverShared) {
        self.features = driver.features.get();
    }

    pub fn update_rx_mode(&mut self, driver: &DriverShared) {
        self.rx_mode = driver.rx_mode.get();
    }

    pub fn update_rss(&mut self, memory: &MemoryMap, driver: &DriverShared) {
        self.rss = rss::read(memory, &driver.rss);
    }

    /// Most drivers leave the table zero: no VLAN filter at all.
    pub fn update_vlans(&mut self, driver: &DriverShared) {
        let words = driver.vlan_table.map(|word| word.get());
        self.vlans = words.iter().any(|word| *word != 0).then(|| VlanSet(Box::new(words)));
    }

    /// Copies the table of addresses now: the driver frees it when the command is done. A table that
    /// is not in memory counts as empty; false then.
    pub fn update_multicast(&mut self, memory: &MemoryMap, driver: &DriverShared) -> bool {
        self.multicast.clear();
        let count = usize::from(driver.multicast_len.get()) / 6;
        let mut bytes = vec![0; 6 * count];
        if count > 0 && memory.read(driver.multicast_table.get(), &mut bytes).is_err() {
            return false;
        }
        let (addresses, _) = bytes.as_chunks::<6>();
        self.multicast.extend(addresses.iter().copied().map(Mac));
        self.multicast.sort_unstable();
        self.multicast.dedup();
        true
    }

    fn filter(&self, mac: Mac) -> Filter {
        let wants = |bit: u32| self.rx_mode & bit != 0;
        let promiscuous = wants(rx_mode::PROMISCUOUS);
        Filter {
            mac,
            unicast: wants(rx_mode::UNICAST),
            broadcast: wants(rx_mode::BROADCAST),
            all_multicast: wants(rx_mode::ALL_MULTICAST),
            promiscuous,
            multicast: if wants(rx_mode::MULTICAST) { self.multicast.clone() } else { Vec::new() },
            vlans: if promiscuous { None } else { self.vlans.clone() },
        }
    }

    /// All of it as the data path wants it.
    pub fn live(&self, context: &Context) -> Live {
        let scales = context.profile.has_rss() && self.features & feature::RSS != 0 && context.queues > 1;
        let fields = (context.revision >= 4).then_some(context.rss_fields);
        let block = self.rss.as_ref().filter(|_| scales);
        Live {
            filter: self.filter(context.mac),
            features: context.profile.features(self.features),
            rss: block.map(|block| rss::rules(block, context.queues, fields)),
            moderation: match &context.coalesce {
                Some(scheme) => scheme_moderation(scheme),
                None => level_moderation(self.level, context.profile),
            },
        }
    }
}

/// Values that make no sense are bent until they do: drivers do not examine the result.
fn scheme_moderation(scheme: &Coalesce) -> Moderation {
    let [first, second, third] = scheme.parameters.map(|parameter| parameter.get());
    match scheme.mode.get() {
        Coalesce::DISABLED => Moderation::Off,
        Coalesce::STATIC => {
            Moderation::Static { rx: third.clamp(1, MAX_DEPTH), tx: second.clamp(1, MAX_DEPTH) }
        }
        Coalesce::RATE => Moderation::Rate(first.clamp(*RATES.start(), *RATES.end())),
        _ => Moderation::Adaptive,
    }
}

/// Levels 1 to 7 halve the rate each; in the middle lies VMware's default of 4000 a second.
fn level_moderation(level: u8, profile: Profile) -> Moderation {
    match level {
        0 => Moderation::Off,
        1..ADAPTIVE_LEVEL => Moderation::Rate(32_000 >> (level - 1)),
        _ => profile.moderation(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_bent_into_range() {
        let scheme = |mode, parameters| scheme_moderation(&Coalesce::new(mode, parameters));
        assert_eq!(scheme(Coalesce::DISABLED, [9; 3]), Moderation::Off);
        assert_eq!(scheme(Coalesce::RATE, [1, 0, 0]), Moderation::Rate(100));
        assert_eq!(scheme(Coalesce::RATE, [u32::MAX, 0, 0]), Moderation::Rate(100_000));
        assert_eq!(scheme(Coalesce::STATIC, [64, 0, 4000]), Moderation::Static { rx: 128, tx: 1 });
        assert_eq!(scheme(77, [0; 3]), Moderation::Adaptive);
        assert_eq!(level_moderation(0, Profile::Vmxnet3), Moderation::Off);
        assert_eq!(level_moderation(4, Profile::Vmxnet3), Moderation::Rate(4000));
        assert_eq!(level_moderation(255, Profile::Vmxnet3), Moderation::Adaptive);
    }
}
