//! What ports of the switch may carry: the keys of traffic shaping, of a port group or a NIC.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_switch::{Rate, Shape, Traffic};

use crate::notes::Notes;
use crate::raw::{RawNic, RawPortGroup, RawRate, RawShape, Size};

/// Frames to several that a NIC may send in a second; 0: any number.
pub const FLOODS: RangeInclusive<i64> = 0..=100_000_000;
/// Parts of the room of a full receiver.
const SHARES: RangeInclusive<i64> = 1..=10_000;
/// Bits in a second.
const RATES: RangeInclusive<u64> = 1000..=1_000_000_000_000;
/// Bytes.
const BURSTS: RangeInclusive<u64> = 1500..=1 << 32;
/// For how long a port may send at its peak if no burst is configured, and their least bytes.
const BURST_MS: u64 = 20;
const LEAST_BURST: u64 = 64 << 10;

/// The traffic of each port of a group.
pub fn of_group(key: &str, raw: &RawPortGroup, notes: &mut Notes<'_>) -> Traffic {
    let floods = notes.number(key, "flood_limit", &raw.flood_limit, FLOODS);
    let known = |word: &str| match word {
        "flood" => Some(false),
        "snoop" => Some(true),
        _ => None,
    };
    let way_out = "\"snoop\" (to ports that asked for it by IGMP or MLD) or \"flood\" (to all of the VLAN)";
    let snoop = notes.word(key, "multicast", &raw.multicast, known, way_out).unwrap_or_default();
    let shares = notes.number(key, "shares", &raw.shares, SHARES);
    traffic(key, Traffic { floods, snoop, shares, ..Traffic::default() }, raw.shape.as_ref(), notes)
}

/// The traffic of a NIC: `base` where it has no key.
pub fn of_nic(key: &str, base: Traffic, raw: &RawNic, notes: &mut Notes<'_>) -> Traffic {
    let shares = notes.number(key, "shares", &raw.shares, SHARES).or(base.shares);
    traffic(key, Traffic { shares, endpoint: raw.endpoint, ..base }, raw.shape.as_ref(), notes)
}

/// The traffic of a port: `base` where `shape` has no key.
fn traffic(key: &str, base: Traffic, shape: Option<&RawShape>, notes: &mut Notes<'_>) -> Traffic {
    let Some(RawShape { r#in: input, out: output }) = shape else { return base };
    let mut rate = |name: &str, raw: &Option<Spanned<RawRate>>, base: Option<Rate>| {
        raw.as_ref().map_or(base, |raw| rate(&format!("{key}: shape: {name}"), raw, notes))
    };
    let shape =
        Shape { input: rate("in", input, base.shape.input), output: rate("out", output, base.shape.output) };
    Traffic { shape, ..base }
}

fn rate(key: &str, spanned: &Spanned<RawRate>, notes: &mut Notes<'_>) -> Option<Rate> {
    let RawRate { average, peak, burst } = spanned.get_ref();
    let Some(average) = average else {
        let text = format!("{key}: average is missing; add for example average = \"1G\" (bits in a second)");
        notes.problem(spanned.span(), text);
        return None;
    };
    let average_rate = bits(&format!("{key}: average"), average, notes)?;
    let peak_rate = match peak {
        Some(peak) => bits(&format!("{key}: peak"), peak, notes)?,
        None => average_rate,
    };
    if let Some(peak) = peak.as_ref().filter(|_| peak_rate < average_rate) {
        let text = format!(
            "{key}: peak = {} is less than average = {}; raise it, or leave it out",
            peak.get_ref().written,
            average.get_ref().written
        );
        notes.problem(peak.span(), text);
    }
    let Some(burst) = burst else {
        let burst = (average_rate / 8 * BURST_MS / 1000).max(LEAST_BURST);
        return Some(Rate { average: average_rate, peak: peak_rate, burst });
    };
    let bytes = burst.get_ref().value.filter(|bytes| BURSTS.contains(bytes));
    if bytes.is_none() {
        let text = format!(
            "{key}: burst = {}; use bytes from {} to {}, or \"1M\" (1048576 bytes)",
            burst.get_ref().written,
            BURSTS.start(),
            BURSTS.end()
        );
        notes.problem(burst.span(), text);
    }
    Some(Rate { average: average_rate, peak: peak_rate, burst: bytes? })
}

pub fn bits(key: &str, size: &Spanned<Size>, notes: &mut Notes<'_>) -> Option<u64> {
    let good = size.get_ref().decimal.filter(|value| RATES.contains(value));
    if good.is_none() {
        let text = format!(
            "{key} = {}; use bits in a second from {} to {}, or \"10M\" (10000000), \"1G\"",
            size.get_ref().written,
            RATES.start(),
            RATES.end()
        );
        notes.problem(size.span(), text);
    }
    good
}
