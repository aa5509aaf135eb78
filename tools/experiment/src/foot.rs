//! What stands at the foot of every picture: the machine, the runs, what a mark and its whisker are, when,
//! and by which version. A picture that was cut out of its page still shows it.

use crate::figure::{Series, Value};
use crate::plan::Statistic;
use crate::rows::{Row, Setup};
use crate::words::{accelerator, one_of};

/// The accelerator of guests under User Mode Linux.
const NATIVE: &str = "native";

/// What a chart's marks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    Values,
    /// Ratios run by run.
    Pairs,
    /// Ratios of what did not take turns.
    Apart,
    /// Both.
    Both,
}

impl Marks {
    pub fn of_ratios(series: &[Series]) -> Marks {
        let points = || series.iter().flat_map(|s| &s.values).filter_map(Value::point);
        let apart = points().filter(|point| point.runs.is_empty()).count();
        match apart {
            0 => Marks::Pairs,
            _ if apart == points().count() => Marks::Apart,
            _ => Marks::Both,
        }
    }

    /// What a mark is, and what its whisker reaches over.
    fn words(self, statistic: Statistic) -> String {
        let middle = match statistic {
            Statistic::Mean => "mean",
            Statistic::Median => "median",
        };
        let apart = format!("ratio of the {middle}s");
        let pairs = format!("{middle} of the ratios run by run");
        let reach = "whisker: from the least to the most of them";
        let cross = "whisker: from the least / the most to the most / the least";
        match self {
            Marks::Values => format!("mark: {middle}; {reach}"),
            Marks::Pairs => format!("mark: {pairs}; {reach}"),
            Marks::Apart => format!("mark: {apart}; {cross}"),
            Marks::Both => {
                format!("mark: {pairs}; {reach}; of what did not take turns, mark: {apart}; {cross}")
            }
        }
    }
}

/// How what a picture compares is spread over labs, each of which is another boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labs {
    /// Devices by the labs that they shared; empty where they shared one.
    pub devices: Vec<Vec<String>>,
    /// Factors of which each value has a lab of its own.
    pub factors: Vec<&'static str>,
}

impl Labs {
    /// In sentences; empty where all is of one lab. `were`: how the first begins.
    pub fn words(&self, were: &str) -> Vec<String> {
        // In a picture a profile is called by its own name.
        let name = |device: &String| {
            device.split_once(":profile=").map_or(device.clone(), |(_, name)| name.to_owned())
        };
        let lab = |devices: &Vec<String>| devices.iter().map(name).collect::<Vec<_>>().join(", ");
        let mut words = Vec::new();
        if !self.devices.is_empty() {
            let labs: Vec<String> = self.devices.iter().map(lab).collect();
            words.push(format!("{were}: {}.", labs.join("; ")));
        }
        if !self.factors.is_empty() {
            let each: Vec<&str> = self.factors.iter().map(|factor| one_of(factor)).collect();
            words.push(format!("VMs were booted anew for each {}.", each.join(" and each ")));
        }
        words
    }
}

/// Distinct values of the rows, in their order: a result file may be put together from several.
pub fn distinct<'r>(rows: impl IntoIterator<Item = &'r Row>, of: impl Fn(&Row) -> String) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for row in rows {
        let value = of(row);
        if !value.is_empty() && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// More than two kinds are not all named.
fn few(mut values: Vec<String>, joint: &str) -> String {
    let rest = values.len().saturating_sub(2);
    values.truncate(2);
    let text = values.join(joint);
    if rest > 0 { format!("{text} and {rest} more") } else { text }
}

/// The least and the most of a count or a time.
fn range(mut values: Vec<f64>) -> Option<String> {
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    Some(if least == most { format!("{least}") } else { format!("{least} to {most}") })
}

fn machine(rows: &[&Row]) -> String {
    let each = |of: fn(&Setup) -> String| few(distinct(rows.iter().copied(), |row| of(&row.setup)), " or ");
    let gib = f64::from(1 << 30);
    let host = few(
        distinct(rows.iter().copied(), |row| {
            let setup = &row.setup;
            let memory = setup.memory_bytes as f64 / gib;
            format!("{}, {} CPUs, {memory:.1} GiB", setup.cpu_model, setup.cpus)
        }),
        " or ",
    );
    let mut text = format!("Machine: {host}");
    for (name, value) in [
        (", Linux ", each(|s| s.host_kernel.clone())),
        ("; guests: ", kernels(rows)),
        (", QEMU ", each(|s| s.qemu.clone())),
        (", ", few(distinct(rows.iter().copied(), emulation), " or ")),
    ] {
        if !value.is_empty() {
            text += &format!("{name}{value}");
        }
    }
    text + "."
}

/// By what guests' instructions are run. User Mode Linux, which needs nothing for it, is named with its
/// kernel.
fn emulation(row: &Row) -> String {
    if row.accelerator == NATIVE { "no emulation".into() } else { accelerator(&row.accelerator).to_owned() }
}

/// The guests' kernels; where there are several, with the devices that were measured under each.
fn kernels(rows: &[&Row]) -> String {
    let name = |row: &Row| match (row.setup.guest_kernel.as_str(), row.accelerator.as_str()) {
        ("", _) => String::new(),
        // Panels and plans have the lab's name of it.
        (kernel, NATIVE) => format!("User Mode Linux {kernel} as kernel {}", row.kernel),
        (kernel, _) => format!("Linux {kernel}"),
    };
    let names = distinct(rows.iter().copied(), name);
    if names.len() < 2 {
        return names.concat();
    }
    let with_devices = names.iter().map(|kernel| {
        let under = rows.iter().copied().filter(|row| name(row) == *kernel);
        format!("{kernel} ({})", few(distinct(under, |row| row.device.clone()), ", "))
    });
    with_devices.collect::<Vec<_>>().join(", ")
}

fn runs(rows: &[&Row], statistic: Statistic, marks: Marks) -> String {
    let good = || rows.iter().filter(|row| row.failed.is_none());
    let ids = distinct(good().copied(), |row| row.id.clone());
    let counts: Vec<f64> = ids.iter().map(|id| good().filter(|row| row.id == *id).count() as f64).collect();
    let seconds = range(rows.iter().map(|row| row.setup.seconds).filter(|s| *s > 0.0).collect());
    let Some(count) = range(counts.clone()) else { return "No run succeeded.".into() };
    let most = counts.into_iter().fold(0.0, f64::max);
    let each = seconds.map_or(String::new(), |seconds| format!(" of {seconds} s"));
    if most < 2.0 {
        return format!("One run{each} each: no whisker.");
    }
    format!("{count} runs{each} each; {}.", marks.words(statistic))
}

/// The sentences for a chart of some rows.
pub fn foot(rows: &[&Row], statistic: Statistic, marks: Marks, labs: &Labs) -> Vec<String> {
    if rows.is_empty() {
        return vec!["Nothing was measured.".into()];
    }
    let date = |row: &Row| row.setup.date.split(' ').next().unwrap_or_default().to_owned();
    let dates = few(distinct(rows.iter().copied(), date), " and ");
    let version = distinct(rows.iter().copied(), |row| {
        let commit = row.setup.commit.as_ref().map_or(String::new(), |commit| format!(" ({commit})"));
        if row.setup.vmlane.is_empty() { String::new() } else { format!("{}{commit}", row.setup.vmlane) }
    });
    let version =
        if version.is_empty() { String::new() } else { format!(", vmlane {}", few(version, " and ")) };
    let when = if dates.is_empty() { String::new() } else { format!(" Measured {dates}{version}.") };
    let labs: String = labs.words("Booted apart").iter().map(|words| format!(" {words}")).collect();
    vec![machine(rows), runs(rows, statistic, marks) + &labs + &when]
}
