//! What happens to frames on a wire: `impair` and `impair_back` of `[[wire]]`, and `vmlane wire set`.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use vmlane_switch::Impairment;

use crate::error::ConfigError;
use crate::notes::{Notes, check};
use crate::raw::{Percent, RawImpair, RawWire};
use crate::sources::Sources;
use crate::traffic::bits;

/// Microseconds.
const DELAYS: RangeInclusive<i64> = 0..=10_000_000;
/// Frames.
const BURSTS: RangeInclusive<i64> = 0..=1000;
/// Of a percent, in millionths.
const MILLIONTHS: f64 = 10_000.0;

/// What happens to frames on their way to each of a wire's ends.
pub fn of_wire(key: &str, raw: &RawWire, notes: &mut Notes<'_>) -> [Impairment; 2] {
    let mut of = |name: &str, raw: &Option<Spanned<RawImpair>>| {
        raw.as_ref().map(|raw| judge(&format!("{key}: {name}"), raw, Impairment::default(), notes))
    };
    let there = of("impair", &raw.impair);
    let back = of("impair_back", &raw.impair_back).or(there);
    [back, there].map(Option::unwrap_or_default)
}

/// `base` where there is no key.
pub fn judge(key: &str, spanned: &Spanned<RawImpair>, base: Impairment, notes: &mut Notes<'_>) -> Impairment {
    let raw = spanned.get_ref();
    let before = notes.count();
    let mut time = |name: &str, value: &Option<Spanned<i64>>, base: Duration| {
        notes.number(key, name, value, DELAYS).map_or(base, Duration::from_micros)
    };
    let delay = time("delay_us", &raw.delay_us, base.delay);
    let jitter = time("jitter_us", &raw.jitter_us, base.jitter);
    let loss_burst = notes.number(key, "loss_burst", &raw.loss_burst, BURSTS).unwrap_or(base.loss_burst);
    let mut part = |name: &str, value: &Option<Spanned<Percent>>, base: u32| {
        value.as_ref().map_or(base, |value| percent(&format!("{key}: {name}"), value, notes))
    };
    let loss = part("loss", &raw.loss, base.loss);
    let reorder = part("reorder", &raw.reorder, base.reorder);
    let duplicate = part("duplicate", &raw.duplicate, base.duplicate);
    let corrupt = part("corrupt", &raw.corrupt, base.corrupt);
    let rate = match &raw.rate {
        Some(rate) if rate.get_ref().decimal == Some(0) => 0,
        Some(rate) => bits(&format!("{key}: rate"), rate, notes).unwrap_or(base.rate),
        None => base.rate,
    };
    let made = Impairment { delay, jitter, loss, loss_burst, reorder, duplicate, corrupt, rate };
    if let Some(why) = conflict(&made).filter(|_| notes.count() == before) {
        notes.problem(spanned.span(), format!("{key}: {why}"));
    }
    made
}

fn percent(key: &str, value: &Spanned<Percent>, notes: &mut Notes<'_>) -> u32 {
    let Percent(percent) = *value.get_ref();
    if !(0.0..=100.0).contains(&percent) {
        notes
            .problem(value.span(), format!("{key} = {percent}; use a percentage from 0 to 100, such as 0.5"));
        return 0;
    }
    (percent * MILLIONTHS).round() as u32
}

/// What does not go together.
fn conflict(of: &Impairment) -> Option<String> {
    let Impairment { delay, jitter, loss, loss_burst, reorder, .. } = *of;
    let most = f64::from(loss_burst) / f64::from(loss_burst + 1) * 100.0;
    let (delay_us, jitter_us) = (delay.as_micros(), jitter.as_micros());
    if jitter > delay {
        Some(format!(
            "jitter_us = {jitter_us} is more than delay_us = {delay_us}, around which delays lie; raise delay_us, or lower jitter_us"
        ))
    } else if reorder > 0 && delay.is_zero() {
        let shown = f64::from(reorder) / MILLIONTHS;
        Some(format!(
            "reorder = {shown}: such frames overtake those that are delayed, and none is; add for example delay_us = 1000"
        ))
    } else if loss_burst > 1 && f64::from(loss) > most * MILLIONTHS {
        let shown = f64::from(loss) / MILLIONTHS;
        Some(format!(
            "loss = {shown}: of bursts of {loss_burst} frames, each followed by one that arrives, at most {most:.1} can be lost; lower loss, or raise loss_burst"
        ))
    } else {
        None
    }
}

/// What the keys of `text` (lines such as `delay_us = 10`) make of the impairment `before` of the wire
/// `name`. Fails with what is wrong with them and the way out.
pub fn impair_changed(name: &str, text: &str, before: Impairment) -> Result<Impairment, String> {
    let text = format!("[[wire]]\nname = {name:?}\n[wire.impair]\n{text}\n");
    let made = check(&Sources::of(Path::new(""), &text), |raw, notes| {
        let raw = raw.wire.first().and_then(|wire| wire.get_ref().impair.as_ref());
        raw.map_or(before, |raw| judge(&format!("wire {name:?}: impair"), raw, before, notes))
    });
    made.map_err(|error| match error {
        ConfigError::Invalid { problems } => {
            problems.into_iter().map(|problem| problem.text).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::impair_changed as changed;
    use super::*;
    use crate::Config;

    fn check(wire: &str) -> Result<[Impairment; 2], String> {
        let text = format!(
            "[[wire]]\nname = \"l\"\nends = [\"a/nic0\", \"a/nic1\"]\n{wire}\n[[vm]]\nname = \"a\"\ncid = 3\n\
             nic = [{{ model = \"vmxnet3\" }}, {{ model = \"virtio-net\" }}]\n"
        );
        let config = Config::parse(Path::new("t.toml"), &text).map_err(|error| error.to_string())?;
        Ok(config.wires[0].impair)
    }

    #[test]
    fn both_ways_are_alike_unless_the_way_back_has_a_table_of_its_own() {
        let all = Impairment {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(1),
            loss: 10_000,
            loss_burst: 3,
            reorder: 5000,
            duplicate: 1000,
            corrupt: 1,
            rate: 100_000_000,
        };
        let keys = "impair = { delay_us = 10_000, jitter_us = 1000, loss = 1, loss_burst = 3, reorder = 0.5, \
                    duplicate = 0.1, corrupt = 0.0001, rate = \"100M\" }\n";
        let lost = Impairment { loss: 1_000_000, ..Impairment::default() };
        for (text, to_first, to_second) in [
            (String::new(), Impairment::default(), Impairment::default()),
            (keys.to_owned(), all, all),
            (keys.to_owned() + "impair_back = {}", Impairment::default(), all),
            ("impair_back = { loss = 100.0 }".to_owned(), lost, Impairment::default()),
            (keys.to_owned() + "[wire.impair_back]\nloss = 100", lost, all),
        ] {
            assert_eq!(check(&text), Ok([to_first, to_second]), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        for (keys, words) in [
            ("delay_us = -1", "wire \"l\": impair: delay_us = -1; use a number from 0 to 10000000"),
            ("delay_us = \"10ms\"", "impair: delay_us = \"10ms\": write a whole number"),
            ("delay = 3", "there is no such key; there are corrupt, delay_us,"),
            ("loss = 101", "impair: loss = 101; use a percentage from 0 to 100, such as 0.5"),
            ("loss = nan", "impair: loss = NaN; use a percentage"),
            ("corrupt = \"1\"", "corrupt = \"1\": write the number without quotes: corrupt = 1"),
            (
                "corrupt = \"1%\"",
                "corrupt = \"1%\": write a percentage, without quotes, such as corrupt = 0.5",
            ),
            ("rate = \"10m\"", "impair: rate = \"10m\"; use bits in a second from 1000"),
            ("delay_us = 3, jitter_us = 4", "jitter_us = 4 is more than delay_us = 3"),
            ("reorder = 1", "reorder = 1: such frames overtake those that are delayed, and none is; add"),
            (
                "loss = 80, loss_burst = 3",
                "loss = 80: of bursts of 3 frames, each followed by one that arrives, at most 75.0",
            ),
            ("loss_burst = 1001", "loss_burst = 1001; use a number from 0 to 1000"),
        ] {
            let error = check(&format!("impair = {{ {keys} }}")).expect_err(words);
            assert!(error.starts_with("t.toml:4: ") && error.contains(words), "{keys}\n{error}");
        }
        let error = check("impair_back = { loss = -3 }").unwrap_err();
        assert!(error.contains("wire \"l\": impair_back: loss = -3"), "{error}");
    }

    #[test]
    fn at_run_time_keys_that_are_not_named_stay_and_messages_name_no_file() {
        let before = Impairment { delay: Duration::from_micros(7), loss: 10_000, ..Impairment::default() };
        let after = Impairment { loss: 0, rate: 1_000_000, ..before };
        assert_eq!(changed("l", "loss = 0\nrate = \"1M\"", before), Ok(after));
        assert_eq!(changed("l", "rate = 0", after), Ok(Impairment { rate: 0, ..after }));
        for (keys, words) in [
            ("jitter_us = 8", "wire \"l\": impair: jitter_us = 8 is more than delay_us = 7"),
            ("lose = 8", "wire \"l\": impair: lose = 8: there is no such key; did you mean loss?"),
        ] {
            let error = changed("l", keys, before).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
        assert!(changed("l", "loss", before).is_err());
    }
}
