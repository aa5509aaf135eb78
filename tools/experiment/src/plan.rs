//! A plan: what an experiment varies, how often it measures, and what is drawn of it.
//!
//! `[matrix]` is crossed; each `[[case]]` is crossed for itself, on top of `[fixed]`. The
//! text of the plan travels in the rows, so that drawing needs nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Deserialize;
use toml::{Spanned, Value};

use vmlane_bench::confidence::LEAST_RUNS;

use crate::factors::{Factors, NAMES};
use crate::steps::Boot;
use crate::words::MAKER;

/// Seconds that a run takes beyond its length, until some were made: its clients start and report.
pub(crate) const OVERHEAD: f64 = 1.5;

/// No plan makes more runs than this.
const MOST_RUNS: usize = 100_000;
const LONGEST: f64 = 3600.0;

/// Seconds that a lab takes to come and go beside its runs, and each of its guests.
const BOOT: f64 = 15.0;
const GUEST: f64 = 1.0;

/// A plan, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub title: String,
    /// The paper that the experiment repeats, as it is cited.
    pub paper: Option<String>,
    /// What the reader must know, a paragraph each.
    pub notes: Vec<String>,
    pub statistic: Statistic,
    /// How often each combination is measured, at least.
    pub runs: u32,
    /// When it is measured more often.
    pub repeats: Option<Repeats>,
    pub seconds: f64,
    pub warmup: f64,
    /// Milliseconds between the first and the last session's start that a run may have.
    pub max_skew_ms: f64,
    /// The combinations, each once, in the plan's order.
    pub combinations: Vec<Factors>,
    /// The factors that the plan names.
    pub named: Vec<&'static str>,
    pub figures: Vec<Figure>,
    pub claims: Vec<Claim>,
    pub answers: Vec<Answer>,
    pub absent: Vec<Absent>,
    /// The text, and whether its `[quick]` part counted.
    pub source: String,
    pub quick: bool,
}

/// When a combination is measured more often than the plan's `runs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeats {
    /// Percent of the mean, on either side of it, that the interval of 95 % confidence may reach.
    pub within: f64,
    /// No more runs than this.
    pub most: u32,
}

/// How repeats become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    #[default]
    Median,
    Mean,
}

/// Factors and the values that count.
pub type Filter = BTreeMap<String, OneOrMany>;

/// `5` and `[1, 5]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    Many(Vec<Value>),
    One(Value),
}

/// One figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub title: String,
    #[serde(default)]
    pub caption: String,
    #[serde(default)]
    pub kind: FigureKind,
    #[serde(default)]
    pub value: Measure,
    /// The factor along the x axis, or several that change together.
    #[serde(deserialize_with = "one_or_many_names")]
    pub x: Vec<String>,
    /// The factors that a legend entry stands for.
    #[serde(default)]
    pub series: Vec<String>,
    /// A factor with a panel for each of its values, all on one scale.
    pub panels: Option<String>,
    /// Which rows count.
    #[serde(default)]
    pub only: Filter,
    /// For ratios: what every value is divided by.
    #[serde(default)]
    pub over: Filter,
    /// A logarithmic y axis, with dots in place of bars; ratios always have one.
    #[serde(default)]
    pub log: bool,
    /// What the paper measured of it.
    #[serde(default)]
    pub paper: Vec<PublishedValue>,
}

/// A value of the paper, drawn in a figure beside what was measured here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedValue {
    /// Throughput in Gbit/s, in a ratio times, all else in the figure's own unit.
    pub value: f64,
    /// What stands before it.
    #[serde(default = "the_paper")]
    pub text: String,
    /// The panel, series or place along the x axis that it is of; the whole figure if empty.
    #[serde(default)]
    pub at: Filter,
}

fn the_paper() -> String {
    "the paper:".into()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    #[default]
    Bars,
    Lines,
    Ratio,
}

/// What a figure shows of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Throughput, or transactions a second.
    #[default]
    Result,
    /// Microseconds in which half of the round trips were back.
    RttP50,
    RttP99,
    /// Frames a second through the switch.
    Packets,
    /// CPU seconds of daemon and QEMUs for a gigabyte, or for a thousand transactions.
    Cpu,
}

/// What a paper claims, or what is expected, and which rows test it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Kept rows carry plans that call it `said`.
    #[serde(alias = "said")]
    pub text: String,
    #[serde(default)]
    pub value: Measure,
    /// What is measured, and what it is divided by; without `over` the value itself is shown.
    #[serde(default)]
    pub of: Filter,
    #[serde(default)]
    pub over: Filter,
    /// What to make of it.
    #[serde(default)]
    pub remark: String,
}

/// A sentence that a report begins with. In its text, `{value}` stands for what was measured `of` some rows,
/// `{best}` for the device that did best among those `over`, and `{ratio}` for how many times as much the
/// former is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub text: String,
    pub of: Filter,
    #[serde(default)]
    pub over: Filter,
}

/// What is left out on purpose, and the word that stands in figures in its place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Absent {
    pub of: Filter,
    pub why: String,
}

type Table = BTreeMap<String, Spanned<Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    title: String,
    paper: Option<String>,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    statistic: Statistic,
    runs: Spanned<i64>,
    most_runs: Option<Spanned<i64>>,
    within: Option<Spanned<f64>>,
    seconds: Spanned<f64>,
    warmup: Option<Spanned<f64>>,
    max_skew_ms: Option<Spanned<f64>>,
    #[serde(default)]
    fixed: Table,
    #[serde(default)]
    matrix: Table,
    #[serde(default)]
    case: Vec<Table>,
    quick: Option<Quick>,
    #[serde(default)]
    figure: Vec<Figure>,
    #[serde(default)]
    claim: Vec<Claim>,
    #[serde(default)]
    answer: Vec<Answer>,
    #[serde(default)]
    absent: Vec<Absent>,
}

/// What is otherwise in a thin slice: `keep` leaves of each factor only these values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    runs: Option<Spanned<i64>>,
    seconds: Option<Spanned<f64>>,
    warmup: Option<Spanned<f64>>,
    #[serde(default)]
    keep: Table,
}

impl Plan {
    /// Reads a plan; `quick` takes its thin slice.
    ///
    /// # Errors
    /// Name the line and the key.
    pub fn parse(source: &str, quick: bool) -> Result<Plan> {
        let raw: Raw = toml::from_str(source).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(source, span.start));
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        let reader = Reader { source };
        let slice = raw.quick.as_ref().filter(|_| quick);
        let mut plan = Plan {
            runs: reader.runs(slice.and_then(|q| q.runs.as_ref()).unwrap_or(&raw.runs))?,
            seconds: reader.time(
                "seconds",
                slice.and_then(|q| q.seconds.as_ref()).or(Some(&raw.seconds)),
                0.0,
            )?,
            warmup: reader.time(
                "warmup",
                slice.and_then(|q| q.warmup.as_ref()).or(raw.warmup.as_ref()),
                0.3,
            )?,
            // A thin slice shows that a plan works, not what it measures.
            repeats: reader.repeats(&raw)?.filter(|_| slice.is_none()),
            max_skew_ms: reader.time("max_skew_ms", raw.max_skew_ms.as_ref(), 50.0)?,
            combinations: Vec::new(),
            named: reader.named(&raw)?,
            name: raw.name,
            title: raw.title,
            paper: raw.paper,
            notes: raw.notes,
            statistic: raw.statistic,
            figures: raw.figure,
            claims: raw.claim,
            answers: raw.answer,
            absent: raw.absent,
            source: source.to_owned(),
            quick,
        };
        if plan.seconds <= 0.0 {
            bail!("line {}: seconds = 0: a run needs some time", line_of(source, raw.seconds.span().start));
        }
        let cases: Vec<&Table> =
            if raw.case.is_empty() { vec![&raw.matrix] } else { raw.case.iter().collect() };
        for case in cases {
            let tables = [&raw.fixed, &raw.matrix, case];
            reader.cross(&tables, &mut plan.combinations)?;
        }
        if let Some(slice) = slice {
            let keep: BTreeMap<&str, Vec<String>> =
                slice.keep.iter().map(|(name, values)| (name.as_str(), texts(values.get_ref()))).collect();
            let kept =
                |factors: &Factors| keep.iter().all(|(name, values)| values.contains(&factors.text(name)));
            plan.combinations.retain(kept);
        }
        if plan.combinations.is_empty() {
            bail!("the plan has no runs: give [matrix] or [[case]] factors, and let [quick] keep some");
        }
        let most = plan.most_runs();
        if most > MOST_RUNS {
            bail!("the plan makes {most} runs, and {MOST_RUNS} are the most");
        }
        plan.check_drawing()?;
        Ok(plan)
    }

    /// Of each combination so many runs, and no more of them, whatever their spread.
    pub fn set_runs(&mut self, runs: u32) {
        (self.runs, self.repeats) = (runs, None);
    }

    /// So many runs, if all combinations need as many as there may be.
    pub fn most_runs(&self) -> usize {
        let most = self.repeats.map_or(self.runs, |repeats| repeats.most);
        self.combinations.len().saturating_mul(most as usize)
    }

    /// About how long the least runs take, with the boots of their labs.
    pub fn time(&self) -> Duration {
        let of_boot = |boot: &Boot| {
            let runs = boot.steps.len() as f64 * (self.seconds + self.warmup + OVERHEAD);
            BOOT + GUEST * f64::from(boot.like.guests) + runs
        };
        Duration::from_secs_f64(self.boots().iter().map(of_boot).sum())
    }

    /// Figures and claims may only speak of factors that there are.
    fn check_drawing(&self) -> Result<()> {
        let figures = self.figures.iter().flat_map(|f| {
            let filters = f.only.keys().chain(f.over.keys());
            f.x.iter().chain(&f.series).chain(&f.panels).chain(filters)
        });
        let claims = self.claims.iter().flat_map(|c| c.of.keys().chain(c.over.keys()));
        let answers = self.answers.iter().flat_map(|a| a.of.keys().chain(a.over.keys()));
        let absent = self.absent.iter().flat_map(|absent| absent.of.keys());
        for name in figures.chain(claims).chain(answers).chain(absent) {
            if !NAMES.contains(&name.as_str()) && name != MAKER {
                let line =
                    self.source.lines().position(|line| line.contains(name.as_str())).map_or(1, |at| at + 1);
                bail!("line {line}: {name:?} is no factor; there are {}", NAMES.join(", "));
            }
        }
        self.figures.iter().try_for_each(check_published)?;
        if let Some(absent) = self.absent.iter().find(|absent| absent.of.is_empty() || absent.why.is_empty())
        {
            bail!("[[absent]] needs `of`, with a factor, and `why`, in a word or two: {absent:?}");
        }
        self.figures.iter().try_for_each(|figure| self.check_unit(figure))
    }

    /// A chart has one unit: bit/s and transactions do not stand side by side.
    fn check_unit(&self, figure: &Figure) -> Result<()> {
        if figure.kind == FigureKind::Ratio || matches!(figure.value, Measure::RttP50 | Measure::RttP99) {
            return Ok(());
        }
        let is_shown = |factors: &&Factors| {
            figure.only.iter().all(|(name, values)| values.texts().contains(&factors.text(name)))
        };
        let mut shown = self.combinations.iter().filter(is_shown).map(|factors| factors.test);
        let Some(first) = shown.next() else { return Ok(()) };
        match shown.find(|test| test.is_transactional() != first.is_transactional()) {
            None => Ok(()),
            Some(other) => bail!(
                "figure {:?} has bit/s ({}) and transactions ({}) on one axis; name the test it shows: only = {{ test = ... }}",
                figure.title,
                if first.is_transactional() { other.name() } else { first.name() },
                if first.is_transactional() { first.name() } else { other.name() }
            ),
        }
    }
}

/// A published value stands at what the figure shows.
fn check_published(figure: &Figure) -> Result<()> {
    let is_shown =
        |name: &String| figure.x.iter().chain(&figure.series).chain(&figure.panels).any(|f| f == name);
    for of in &figure.paper {
        if let Some(name) = of.at.keys().find(|name| !is_shown(name)) {
            bail!(
                "figure {:?} has a value of the paper at {name:?}, which is not in its x, series or panels",
                figure.title
            );
        }
        if !(of.value.is_finite() && of.value > 0.0) {
            bail!("figure {:?} has {} as a value of the paper: more than 0", figure.title, of.value);
        }
    }
    Ok(())
}

/// `"message"` and `["message", "buffer"]`.
fn one_or_many_names<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Many(Vec<String>),
    }
    let names = match Names::deserialize(from)? {
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    };
    if names.is_empty() { Err(serde::de::Error::custom("x needs a factor")) } else { Ok(names) }
}

/// The line of a byte, from 1.
fn line_of(source: &str, at: usize) -> usize {
    source.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// A value or a list of them, as texts.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text.clone()],
        other => vec![other.to_string()],
    }
}

impl OneOrMany {
    pub fn texts(&self) -> Vec<String> {
        match self {
            OneOrMany::Many(list) => list.iter().flat_map(texts).collect(),
            OneOrMany::One(value) => texts(value),
        }
    }
}

struct Reader<'t> {
    source: &'t str,
}

impl Reader<'_> {
    fn line<T>(&self, value: &Spanned<T>) -> usize {
        line_of(self.source, value.span().start)
    }

    fn runs(&self, value: &Spanned<i64>) -> Result<u32> {
        match u32::try_from(*value.get_ref()) {
            Ok(runs) if (1..=1000).contains(&runs) => Ok(runs),
            _ => bail!("line {}: runs = {}: from 1 to 1000", self.line(value), value.get_ref()),
        }
    }

    /// `within` and `most_runs`, which go together.
    fn repeats(&self, raw: &Raw) -> Result<Option<Repeats>> {
        let (within, most) = match (&raw.within, &raw.most_runs) {
            (None, None) => return Ok(None),
            (Some(within), Some(most)) => (within, most),
            (Some(value), None) => {
                bail!(
                    "line {}: within needs most_runs, the number of runs after which it stops",
                    self.line(value)
                )
            }
            (None, Some(value)) => {
                bail!(
                    "line {}: most_runs needs within, the precision at which runs are enough",
                    self.line(value)
                )
            }
        };
        let (percent, most_runs) = (*within.get_ref(), self.runs(most)?);
        if !(0.1..=50.0).contains(&percent) {
            bail!("line {}: within = {percent}: from 0.1 to 50 percent of the mean", self.line(within));
        }
        let least = self.runs(&raw.runs)?.max(LEAST_RUNS);
        if most_runs < least {
            bail!("line {}: most_runs = {most_runs}: {least} or more", self.line(most));
        }
        Ok(Some(Repeats { within: percent, most: most_runs }))
    }

    fn time(&self, key: &str, value: Option<&Spanned<f64>>, default: f64) -> Result<f64> {
        let Some(value) = value else { return Ok(default) };
        let time = *value.get_ref();
        // `contains` is false for NaN.
        if !(0.0..=LONGEST * 1000.0).contains(&time) || (key != "max_skew_ms" && time > LONGEST) {
            bail!("line {}: {key} = {time}: from 0 to {LONGEST} s", self.line(value));
        }
        Ok(time)
    }

    /// The factors of the plan, in their own order.
    fn named(&self, raw: &Raw) -> Result<Vec<&'static str>> {
        let tables = [&raw.fixed, &raw.matrix].into_iter().chain(&raw.case);
        let quick = raw.quick.as_ref().map(|quick| &quick.keep);
        for (name, value) in tables.clone().chain(quick).flatten() {
            if !NAMES.contains(&name.as_str()) {
                let line = self.line(value);
                bail!("line {line}: {name} is no factor; there are {}", NAMES.join(", "));
            }
        }
        let named = |name: &&&str| tables.clone().any(|table| table.contains_key(**name));
        Ok(NAMES.iter().filter(named).copied().collect())
    }

    /// Every combination of the tables' values; a later table's values replace an earlier one's.
    fn cross(&self, tables: &[&Table], into: &mut Vec<Factors>) -> Result<()> {
        let lists: Vec<(&'static str, usize, Vec<String>)> = NAMES
            .iter()
            .copied()
            .filter_map(|name| {
                let value = tables.iter().rev().find_map(|table| table.get(name))?;
                Some((name, self.line(value), texts(value.get_ref())))
            })
            .collect();
        if let Some((name, line, _)) = lists.iter().find(|(.., values)| values.is_empty()) {
            bail!("line {line}: {name} has no value");
        }
        let count = lists.iter().try_fold(1_usize, |count, (.., values)| count.checked_mul(values.len()));
        if count.is_none_or(|count| count > MOST_RUNS) {
            bail!(
                "line {}: the factors make more than {MOST_RUNS} combinations",
                lists.first().map_or(1, |l| l.1)
            );
        }
        for number in 0..count.unwrap_or(0) {
            let (mut factors, mut rest) = (Factors::default(), number);
            // The last factor changes fastest.
            let mut picks: Vec<&str> = Vec::with_capacity(lists.len());
            for (.., values) in lists.iter().rev() {
                picks.push(&values[rest % values.len()]);
                rest /= values.len();
            }
            for ((name, line, _), text) in lists.iter().zip(picks.iter().rev()) {
                factors.set(name, text).map_err(|error| anyhow::anyhow!("line {line}: {name}: {error:#}"))?;
            }
            if let Some((name, why)) = factors.impossible() {
                let line =
                    lists.iter().find(|(n, ..)| *n == name).or(lists.first()).map_or(1, |(_, line, _)| *line);
                bail!(
                    "line {line}: {name} = {:?} is impossible in {}: {why}",
                    factors.text(name),
                    factors.id()
                );
            }
            if !into.contains(&factors) {
                into.push(factors);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
