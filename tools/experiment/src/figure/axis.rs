//! The y axis: from values to places, and its ticks.

/// Linear from zero, or logarithmic; a logarithmic one is as long as its values and has ticks where they are.
pub struct Axis {
    ticks: Vec<f64>,
    /// The values at both ends.
    low: f64,
    high: f64,
    log: bool,
    top: f64,
    bottom: f64,
}

/// A distance between ticks that people count in, for at most seven of them.
pub fn tick(reach: f64) -> f64 {
    if reach <= 0.0 || !reach.is_finite() {
        return 1.0;
    }
    let rough = reach / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= rough * 0.999_999).unwrap_or(10.0 * power)
}

/// Ticks of a decade, from few to many.
const MANTISSAS: [&[f64]; 7] = [
    &[1.0],
    &[1.0, 3.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    &[1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
    &[1.0, 1.2, 1.4, 1.6, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0],
    &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
];

/// The fewest ticks of a logarithmic axis, where they fit.
const FEWEST: usize = 6;
/// The part of the axis that two ticks are apart, at least: their labels must not touch.
const CLOSEST: f64 = 0.07;
/// A logarithmic axis spans this at least, as a factor.
const SHORTEST: f64 = 1.2;
/// The part of it that is free beyond both ends of the values, at most, where a scale has such ticks.
const FREE: f64 = 0.16;
/// Below this factor from end to end, ticks are at even distances.
const EVEN: f64 = 2.0;

/// The ticks of a logarithmic axis. It begins and ends on one, so that every value is between two: as coarse
/// a scale as has ticks enough, leaves little free at the ends, and has none whose labels would touch.
fn log_ticks(least: f64, most: f64) -> Vec<f64> {
    let (middle, half) = ((least * most).sqrt(), (most / least).max(SHORTEST).sqrt());
    // Those that are far enough apart stay as they are to the last bit: one that is a tick must lie on it.
    let (least, most) = if most / least < SHORTEST { (middle / half, middle * half) } else { (least, most) };
    if most / least < EVEN {
        let step = tick(most - least);
        let (from, to) = ((least / step + 1e-9).floor() as u64, (most / step - 1e-9).ceil() as u64);
        return (from..=to).map(|count| count as f64 * step).collect();
    }
    let powers = (least.log10().floor() as i32 - 1)..=(most.log10().ceil() as i32 + 1);
    let mut chosen: Option<(f64, Vec<f64>)> = None;
    for mantissas in MANTISSAS {
        let all: Vec<f64> =
            powers.clone().flat_map(|power| mantissas.iter().map(move |m| m * 10_f64.powi(power))).collect();
        let first = all.iter().rposition(|tick| *tick <= least * (1.0 + 1e-9)).unwrap_or(0);
        let last = all.iter().position(|tick| *tick >= most * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
        let ticks = &all[first..=last];
        let reach = (all[last] / all[first]).ln();
        let free = 1.0 - (most / least).ln() / reach;
        let near = |two: &[f64]| (two[1] / two[0]).ln() < CLOSEST * reach;
        if chosen.as_ref().is_some_and(|(_, ticks)| ticks.len() > 2) && ticks.windows(2).any(near) {
            break;
        }
        let enough = ticks.len() >= FEWEST && free <= FREE;
        let few = |(other, ticks): &(f64, Vec<f64>)| ticks.len() < FEWEST || free < *other;
        if enough || chosen.as_ref().is_none_or(few) {
            chosen = Some((free, ticks.to_vec()));
        }
        if enough {
            break;
        }
    }
    chosen.map_or_else(Vec::new, |(_, ticks)| ticks)
}

/// As few decimals as it takes.
fn label(value: f64) -> String {
    let exact = |digits: &i32| {
        let scaled = value * 10_f64.powi(*digits);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0)
    };
    let decimals = (0..5).find(exact).unwrap_or(5) as usize;
    format!("{value:.decimals$}")
}

impl Axis {
    /// An axis between two places of the picture that shows `least` to `most`; `one` shows 1 as well.
    pub fn new((least, most): (f64, f64), log: bool, top: f64, bottom: f64, one: bool) -> Axis {
        let (least, most) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
        // Without a positive value there are no powers.
        let log = log && least > 0.0 && most.is_finite();
        if log {
            let ticks = log_ticks(least, most);
            let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
            return Axis { ticks, low, high, log, top, bottom };
        }
        let step = tick(most);
        let count = (most / step - 1e-9).ceil().max(1.0) as u32;
        let ticks = (0..=count).map(|index| f64::from(index) * step).collect();
        Axis { ticks, low: 0.0, high: f64::from(count) * step, log, top, bottom }
    }

    /// Whether bars may stand on it.
    pub fn is_linear(&self) -> bool {
        !self.log
    }

    pub fn y(&self, value: f64) -> f64 {
        let (low, high) = (self.low, self.high);
        let part = if self.log {
            (value.max(low) / low).log10() / (high / low).log10()
        } else {
            (value - low) / (high - low)
        };
        self.bottom - (self.bottom - self.top) * part.clamp(0.0, 1.0)
    }

    /// Whether a value lies between both ends.
    pub fn shows(&self, value: f64) -> bool {
        (self.low * (1.0 - 1e-9)..=self.high * (1.0 + 1e-9)).contains(&value)
    }

    pub fn top(&self) -> f64 {
        self.top
    }

    /// Where bars stand.
    pub fn base(&self) -> f64 {
        self.bottom
    }

    /// Values and their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let step = if self.log { None } else { self.ticks.get(1) };
        let decimals = step.map(|step| label(*step).split('.').nth(1).map_or(0, str::len));
        self.ticks
            .iter()
            .map(|value| {
                (
                    *value,
                    match decimals {
                        Some(decimals) => format!("{value:.decimals$}"),
                        None => label(*value),
                    },
                )
            })
            .collect()
    }
}
