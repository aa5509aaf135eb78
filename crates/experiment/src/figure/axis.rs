//! The y axis: from values to places, and its ticks.

/// Linear from zero, or logarithmic; a logarithmic one is as long as its values and has ticks where they are.
pub struct Axis {
    ticks: Vec<f64>,
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
const MANTISSAS: [&[f64]; 6] = [
    &[1.0],
    &[1.0, 3.0],
    &[1.0, 2.0, 5.0],
    &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    &[
        1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.25, 3.5, 3.75, 4.0,
        4.25, 4.5, 4.75, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5,
    ],
];

/// The fewest ticks of a logarithmic axis.
const FEWEST: usize = 5;

/// From the last tick below the values to the first above them, with as coarse a scale as has ticks enough.
fn log_ticks(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32 - 1..=most.log10().ceil() as i32 + 1;
    let mut chosen = Vec::new();
    for mantissas in MANTISSAS {
        let all: Vec<f64> =
            powers.clone().flat_map(|power| mantissas.iter().map(move |m| m * 10_f64.powi(power))).collect();
        let from = all.iter().rposition(|tick| *tick <= least * 0.9999).unwrap_or(0);
        let to = all.iter().position(|tick| *tick >= most * 1.0001).unwrap_or(all.len() - 1);
        chosen = all[from..=to].to_vec();
        if chosen.len() >= FEWEST {
            break;
        }
    }
    chosen
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
        let ticks = if log {
            log_ticks(least, most)
        } else {
            let step = tick(most);
            let count = (most / step - 1e-9).ceil().max(1.0) as u32;
            (0..=count).map(|index| f64::from(index) * step).collect()
        };
        Axis { ticks, log, top, bottom }
    }

    /// Whether bars may stand on it.
    pub fn is_linear(&self) -> bool {
        !self.log
    }

    pub fn y(&self, value: f64) -> f64 {
        let (low, high) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let part = if self.log {
            (value.max(low) / low).log10() / (high / low).log10()
        } else {
            (value - low) / (high - low)
        };
        self.bottom - (self.bottom - self.top) * part.clamp(0.0, 1.0)
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
