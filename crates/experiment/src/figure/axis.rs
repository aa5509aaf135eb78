//! The y axis: from values to places, and its ticks.

/// Linear from zero, or by powers of ten.
pub struct Axis {
    low: f64,
    high: f64,
    step: f64,
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

/// As few decimals as the distance needs.
fn label(value: f64, step: f64) -> String {
    let decimals = (0..4).find(|digits| {
        let scaled = step * 10_f64.powi(*digits);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0)
    });
    let decimals = decimals.unwrap_or(4) as usize;
    format!("{value:.decimals$}")
}

impl Axis {
    /// An axis between two places of the picture that shows `least` to `most`; `one` shows 1 as well.
    pub fn new((least, most): (f64, f64), log: bool, top: f64, bottom: f64, one: bool) -> Axis {
        let (least, most) = if one { (least.min(1.0), most.max(1.0)) } else { (least, most) };
        // Without a positive value there are no powers.
        let log = log && least > 0.0 && most.is_finite();
        if log {
            let (low, mut high) = (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()));
            if high <= low {
                high = low * 10.0;
            }
            return Axis { low, high, step: 10.0, log, top, bottom };
        }
        let step = tick(most);
        Axis { low: 0.0, high: (most / step - 1e-9).ceil().max(1.0) * step, step, log, top, bottom }
    }

    pub fn y(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.bottom - (self.bottom - self.top) * part.clamp(0.0, 1.0)
    }

    /// Where bars stand.
    pub fn base(&self) -> f64 {
        self.bottom
    }

    /// Values and their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        if self.log {
            let count = (self.high / self.low).log10().round() as i32;
            return (0..=count)
                .map(|power| self.low * 10_f64.powi(power))
                .map(|value| (value, label(value, value)))
                .collect();
        }
        let count = (self.high / self.step).round() as u32;
        (0..=count)
            .map(|index| f64::from(index) * self.step)
            .map(|value| (value, label(value, self.step)))
            .collect()
    }
}
