//! The families of metrics: their names, units and labels, and where their values are in the daemon's
//! answers.
//!
//! Labels are names of the configuration (VMs, uplinks, teams, mirrors) and of the daemon's own counters;
//! nothing that a guest chose is among them, and the number of VMs is limited. A family is written with its
//! name and type even if it has no sample, so that each name is there from the first scrape on.

mod daemon;
mod peers;
mod switch;
mod vms;

use std::fmt;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use vmlane_api::{CounterList, Stats, Status, VmStats, VmStatus};

use super::seen::Seen;

/// Bytes of a name that are shown; those of a configuration are shorter.
const LONGEST_LABEL: usize = 128;
/// Reasons that are shown of one port; the daemon has fewer.
const MOST_REASONS: usize = 64;

/// What one scrape found.
#[derive(Debug)]
pub struct Scrape {
    /// None: no daemon answered.
    answers: Option<(Status, Stats)>,
    /// VMs that are not shown.
    left_out: usize,
    seen: Seen,
    began: Instant,
}

impl Scrape {
    /// Leaves out VMs beyond `max_vms`. `began` is when the daemon was asked.
    pub fn new(mut answers: Option<(Status, Stats)>, max_vms: usize, seen: Seen, began: Instant) -> Scrape {
        let mut left_out = 0;
        if let Some((status, stats)) = &mut answers {
            left_out = status.vms.len().saturating_sub(max_vms);
            status.vms.truncate(max_vms);
            let shown = |vm: &VmStats| status.vms.iter().any(|shown| shown.name == vm.name);
            stats.vms.retain(shown);
        }
        Scrape { answers, left_out, seen, began }
    }

    fn status(&self) -> Option<&Status> {
        self.answers.as_ref().map(|(status, _)| status)
    }

    fn stats(&self) -> Option<&Stats> {
        self.answers.as_ref().map(|(_, stats)| stats)
    }

    fn vms(&self) -> &[VmStatus] {
        self.status().map_or(&[], |status| &status.vms)
    }

    fn vm_stats(&self) -> &[VmStats] {
        self.stats().map_or(&[], |stats| &stats.vms)
    }

    fn duration(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        vms::write(self, &mut families)?;
        switch::write(self, &mut families)?;
        peers::write(self, &mut families)?;
        // Last, with the time that the rest took.
        daemon::write(self, &mut families)
    }
}

/// A family that shows one counter of a list.
struct Shown {
    /// The counter's name in the daemon's answer.
    key: &'static str,
    family: Family,
}

/// A family of metrics. Its name goes without `vmlane_`, unit and `_total`.
#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    unit: Measure,
    help: &'static str,
}

/// What a family is measured in.
#[derive(Clone, Copy)]
enum Measure {
    /// Things that its name describes.
    Number,
    Bytes,
    Seconds,
}

impl Measure {
    fn unit(self) -> Option<Unit> {
        match self {
            Measure::Number => None,
            Measure::Bytes => Some(Unit::Bytes),
            Measure::Seconds => Some(Unit::Seconds),
        }
    }
}

const fn family(name: &'static str, help: &'static str) -> Family {
    Family { name, unit: Measure::Number, help }
}

/// A counter of `key` as a family.
const fn shown(key: &'static str, name: &'static str, help: &'static str) -> Shown {
    Shown { key, family: family(name, help) }
}

/// A counter of bytes.
const fn shown_bytes(key: &'static str, name: &'static str, help: &'static str) -> Shown {
    Shown { key, family: family(name, help).in_bytes() }
}

impl Family {
    const fn in_bytes(self) -> Family {
        Family { name: self.name, unit: Measure::Bytes, help: self.help }
    }

    const fn in_seconds(self) -> Family {
        Family { name: self.name, unit: Measure::Seconds, help: self.help }
    }
}

/// A sample's value.
#[derive(Clone, Copy)]
enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Real(value)
    }
}

impl From<Duration> for Value {
    fn from(value: Duration) -> Value {
        Value::Real(value.as_secs_f64())
    }
}

/// Writes families, one after the other.
struct Families<'e>(DescriptorEncoder<'e>);

impl Families<'_> {
    fn counter(
        &mut self,
        family: &Family,
        fill: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.write(family, MetricType::Counter, fill)
    }

    fn gauge(&mut self, family: &Family, fill: impl FnOnce(&mut Samples<'_>) -> fmt::Result) -> fmt::Result {
        self.write(family, MetricType::Gauge, fill)
    }

    fn write(
        &mut self,
        family: &Family,
        kind: MetricType,
        fill: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let unit = family.unit.unit();
        let encoder = self.0.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
        fill(&mut Samples { encoder, kind })
    }

    /// A gauge without labels.
    fn one(&mut self, family: &Family, value: Option<impl Into<Value>>) -> fmt::Result {
        self.gauge(family, |samples| value.map_or(Ok(()), |value| samples.add(&[], value)))
    }

    /// A gauge with a sample for each item.
    fn each<'i, T: 'i, V: Into<Value>, const N: usize>(
        &mut self,
        family: &Family,
        items: impl IntoIterator<Item = T>,
        sample: impl Fn(T) -> ([(&'static str, &'i str); N], V),
    ) -> fmt::Result {
        self.gauge(family, |samples| {
            items.into_iter().try_for_each(|item| {
                let (labels, value) = sample(item);
                samples.add(&labels, value)
            })
        })
    }

    /// A family for each counter of a table, with a sample for each list that has it.
    fn counters<'i, const N: usize>(
        &mut self,
        table: &[Shown],
        lists: impl Iterator<Item = ([(&'static str, &'i str); N], &'i CounterList)> + Clone,
    ) -> fmt::Result {
        for Shown { key, family } in table {
            self.counter(family, |samples| {
                lists.clone().try_for_each(|(labels, list)| match find(list, key) {
                    Some(value) => samples.add(&labels, value),
                    None => Ok(()),
                })
            })?;
        }
        Ok(())
    }

    /// A family whose samples are the counters of each list that begin with `prefix`, with the rest of their
    /// names as the label `reason`.
    fn reasons<'i, const N: usize>(
        &mut self,
        family: &Family,
        prefix: &str,
        lists: impl Iterator<Item = ([(&'static str, &'i str); N], &'i CounterList)>,
    ) -> fmt::Result {
        self.counter(family, |samples| {
            for (labels, list) in lists {
                let reasons =
                    list.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
                for (reason, value) in reasons.take(MOST_REASONS) {
                    let labels: Vec<_> = labels.into_iter().chain([("reason", reason)]).collect();
                    samples.add(&labels, value)?;
                }
            }
            Ok(())
        })
    }
}

/// Writes the samples of one family.
struct Samples<'e> {
    encoder: MetricEncoder<'e>,
    kind: MetricType,
}

impl Samples<'_> {
    fn add(&mut self, labels: &[(&'static str, &str)], value: impl Into<Value>) -> fmt::Result {
        let labels: Vec<(&str, &str)> = labels.iter().map(|(key, name)| (*key, cut(name))).collect();
        if labels.is_empty() {
            return put(&mut self.encoder, self.kind, value.into());
        }
        if let MetricType::Info = self.kind {
            return self.encoder.encode_info(&labels);
        }
        put(&mut self.encoder.encode_family(&labels)?, self.kind, value.into())
    }
}

fn put(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(value)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (MetricType::Counter, Value::Real(value)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (_, Value::Whole(value)) => encoder.encode_gauge(&value),
        (_, Value::Real(value)) => encoder.encode_gauge(&value),
    }
}

/// The beginning of a name that is too long.
fn cut(name: &str) -> &str {
    let end = (0..=LONGEST_LABEL.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// A counter of a list; none if the list lacks it.
fn find(list: &CounterList, key: &str) -> Option<u64> {
    list.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
