//! What ports of the switch may carry: the keys of traffic shaping, of a port group or a NIC.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_switch::{Rate, Shape, Traffic};

use super::check::{Checker, FLOODS};
use super::raw::{RawNic, RawPortGroup, RawRate, RawShape, Size};

/// Parts of the room of a full receiver.
const SHARES: RangeInclusive<i64> = 1..=10_000;
/// Bits in a second.
const RATES: RangeInclusive<u64> = 1000..=1_000_000_000_000;
/// Bytes.
const BURSTS: RangeInclusive<u64> = 1500..=1 << 32;
/// For how long a port may send at its peak if nothing is said about bursts, and their least bytes.
const BURST_MS: u64 = 20;
const LEAST_BURST: u64 = 64 << 10;

impl Checker<'_> {
    /// The traffic of each port of a group.
    pub(crate) fn group_traffic(&mut self, key: &str, raw: &RawPortGroup) -> Traffic {
        let limit = raw.flood_limit.as_ref();
        let floods = limit.map(|limit| self.number(&format!("{key}: flood_limit"), limit, FLOODS) as u32);
        let snoop = raw.multicast.as_ref().is_some_and(|multicast| self.snoops(key, multicast));
        let shares = self.shares_of(key, raw.shares.as_ref());
        self.traffic(key, Traffic { floods, snoop, shares, ..Traffic::default() }, raw.shape.as_ref())
    }

    /// The traffic of a NIC: `base` where it says nothing.
    pub(crate) fn nic_traffic(&mut self, key: &str, base: Traffic, raw: &RawNic) -> Traffic {
        let shares = self.shares_of(key, raw.shares.as_ref()).or(base.shares);
        self.traffic(key, Traffic { shares, ..base }, raw.shape.as_ref())
    }

    fn shares_of(&mut self, key: &str, raw: Option<&Spanned<i64>>) -> Option<u16> {
        raw.map(|raw| self.number(&format!("{key}: shares"), raw, SHARES) as u16)
    }

    /// The traffic of a port: `base` where `shape` says nothing.
    fn traffic(&mut self, key: &str, base: Traffic, shape: Option<&RawShape>) -> Traffic {
        let Some(RawShape { r#in: input, out: output }) = shape else { return base };
        let mut rate = |name: &str, raw: &Option<Spanned<RawRate>>, base: Option<Rate>| {
            raw.as_ref().map_or(base, |raw| self.rate(&format!("{key}: shape: {name}"), raw))
        };
        let shape = Shape {
            input: rate("in", input, base.shape.input),
            output: rate("out", output, base.shape.output),
        };
        Traffic { shape, ..base }
    }

    fn snoops(&mut self, key: &str, multicast: &Spanned<String>) -> bool {
        let known = ["flood", "snoop"].contains(&multicast.get_ref().as_str());
        if !known {
            let text = format!(
                "{key}: multicast = {:?} is unknown; use \"snoop\" (to ports that asked for it by IGMP or MLD) or \
                 \"flood\" (to all of the VLAN)",
                multicast.get_ref()
            );
            self.problem(multicast.span(), text);
        }
        multicast.get_ref() == "snoop"
    }

    fn rate(&mut self, key: &str, spanned: &Spanned<RawRate>) -> Option<Rate> {
        let RawRate { average, peak, burst } = spanned.get_ref();
        let Some(average) = average else {
            let text =
                format!("{key}: average is missing; add for example average = \"1G\" (bits in a second)");
            self.problem(spanned.span(), text);
            return None;
        };
        let average_rate = self.bits(&format!("{key}: average"), average)?;
        let peak_rate = match peak {
            Some(peak) => self.bits(&format!("{key}: peak"), peak)?,
            None => average_rate,
        };
        if let Some(peak) = peak.as_ref().filter(|_| peak_rate < average_rate) {
            let text = format!(
                "{key}: peak = {} is less than average = {}; raise it, or leave it out",
                peak.get_ref().written,
                average.get_ref().written
            );
            self.problem(peak.span(), text);
        }
        let burst = match burst {
            None => (average_rate / 8 * BURST_MS / 1000).max(LEAST_BURST),
            Some(burst) => match burst.get_ref().value.filter(|value| BURSTS.contains(value)) {
                Some(value) => value,
                None => {
                    let text = format!(
                        "{key}: burst = {}; use bytes from {} to {}, or \"1M\" (1048576 bytes)",
                        burst.get_ref().written,
                        BURSTS.start(),
                        BURSTS.end()
                    );
                    self.problem(burst.span(), text);
                    return None;
                }
            },
        };
        Some(Rate { average: average_rate, peak: peak_rate, burst })
    }

    fn bits(&mut self, key: &str, size: &Spanned<Size>) -> Option<u64> {
        let good = size.get_ref().decimal.filter(|value| RATES.contains(value));
        if good.is_none() {
            let text = format!(
                "{key} = {}; use bits in a second from {} to {}, or \"10M\" (10000000), \"1G\"",
                size.get_ref().written,
                RATES.start(),
                RATES.end()
            );
            self.problem(size.span(), text);
        }
        good
    }
}
