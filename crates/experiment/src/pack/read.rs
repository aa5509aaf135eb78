//! Reads a pack that someone sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;

use super::{ABOUT, About, Pack, README, TOP, VERSION};
use crate::paper::PLANS;
use crate::plan::Plan;
use crate::report;
use crate::rows::{self, Row};

/// Bytes of all files of a pack, of one of them, and how many there may be.
const MOST_BYTES: u64 = 128 << 20;
const MOST_FILE: u64 = 32 << 20;
const MOST_FILES: usize = 256;
/// Rows of one plan; the largest that is shipped has some hundred.
const MOST_ROWS: usize = 5000;
/// Characters of a text that is shown.
const MOST_TEXT: usize = 120;
/// No rate and no time that was ever measured is above this.
const MOST_NUMBER: f64 = 1e15;

/// Ends with an error where [`Read::take`] would end as if the file did.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(into)?;
        let left = self.left.checked_sub(count as u64);
        self.left = left.ok_or_else(|| {
            std::io::Error::other(format!("it unpacks to more than {} MiB", MOST_BYTES >> 20))
        })?;
        Ok(count)
    }
}

/// Reads the pack in the file `path`.
///
/// # Errors
/// Name the pack, what in it is wrong, and why.
pub fn read(path: &Path) -> Result<Pack> {
    read_open(path).with_context(|| path.display().to_string())
}

fn read_open(path: &Path) -> Result<Pack> {
    let file = File::open(path).context("cannot open it")?;
    ensure!(file.metadata()?.is_file(), "it is no file");
    let inner = GzDecoder::new(BufReader::new(file));
    let mut archive = tar::Archive::new(Bounded { inner, left: MOST_BYTES });
    let (mut about, mut results) = (None, BTreeMap::new());
    let entries = archive.entries().context("it is no .tar.gz of `vmlane lab paper`")?;
    for (number, entry) in entries.enumerate() {
        ensure!(number < MOST_FILES, "it has more than {MOST_FILES} files");
        let entry = entry.context("it is no .tar.gz of `vmlane lab paper`, or is cut short")?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let shown: String = name.chars().take(MOST_TEXT).collect();
        let kind = entry.header().entry_type();
        let known = name.strip_prefix(TOP).and_then(|rest| rest.strip_prefix('/'));
        let parts: Vec<&str> = known.unwrap_or_default().split('/').collect();
        ensure!(kind.is_file(), "{shown:?} is no plain file, and a pack has nothing else");
        match parts[..] {
            [README] => {}
            [_, report::FILE] => {}
            [ABOUT] => {
                ensure!(about.is_none(), "{shown:?} is there twice");
                about = Some(about_of(&text_of(entry).context(shown)?)?);
            }
            [plan, rows::FILE] => {
                let Some((_, source)) = PLANS.iter().find(|(known, _)| *known == plan) else {
                    let known = PLANS.map(|(name, _)| name).join(", ");
                    bail!("{shown:?} is of an experiment that this vmlane does not have; it has {known}");
                };
                let plan = Plan::parse(source, false)?;
                let rows = text_of(entry).and_then(|text| rows_of(&text, &plan)).context(shown.clone())?;
                ensure!(results.insert(plan.name, rows).is_none(), "{shown:?} is there twice");
            }
            _ => bail!("{shown:?} is no file that a pack has"),
        }
    }
    let about =
        about.with_context(|| format!("it has no {TOP}/{ABOUT}: `vmlane lab paper` did not write it"))?;
    Ok(Pack { path: path.to_owned(), about, results })
}

fn text_of(entry: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    entry.take(MOST_FILE + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST_FILE, "it is longer than {} MiB", MOST_FILE >> 20);
    String::from_utf8(bytes).context("it is no text")
}

fn about_of(text: &str) -> Result<About> {
    let value: serde_json::Value = serde_json::from_str(text).context(ABOUT)?;
    let version = value["version"].as_u64();
    ensure!(
        version == Some(VERSION.into()),
        "{ABOUT}: version {}, and this program reads {VERSION}; use the vmlane that wrote it",
        version.map_or("none".into(), |version| version.to_string())
    );
    let mut about: About = serde_json::from_value(value).context(ABOUT)?;
    let machine = &mut about.machine;
    for text in [
        &mut about.vmlane,
        &mut about.date,
        &mut machine.cpu_model,
        &mut machine.microcode,
        &mut machine.kernel,
        &mut machine.system,
        &mut machine.governor,
        &mut machine.scaling_driver,
        &mut machine.huge_pages,
    ] {
        *text = plain(text);
    }
    about.commit = about.commit.as_deref().map(plain);
    about.findings.truncate(32);
    for finding in &mut about.findings {
        finding.name = plain(&finding.name);
        finding.seen = plain(&finding.seen);
        finding.remedy = plain(&finding.remedy);
    }
    Ok(about)
}

/// The rows of combinations that the plan has: what they say of themselves is the plan's word, not the pack's.
fn rows_of(text: &str, plan: &Plan) -> Result<Vec<Row>> {
    ensure!(text.lines().count() <= MOST_ROWS, "it has more than {MOST_ROWS} rows");
    let by_id: BTreeMap<String, _> =
        plan.combinations.iter().map(|factors| (factors.id(), factors)).collect();
    let mut rows = Vec::new();
    for (line, mut row) in (1..).zip(rows::parse(text)?) {
        let Some(factors) = by_id.get(&row.id) else { continue };
        check_numbers(&row).with_context(|| format!("line {line}"))?;
        let (accelerator, kernel) = (plain(&row.accelerator), row.kernel);
        row = Row { kernel, factors: BTreeMap::new(), log: None, plan_source: None, ..row };
        row.describe(factors, &plan.named);
        row.accelerator = accelerator;
        row.failed = row.failed.as_deref().map(plain);
        let setup = &mut row.setup;
        for text in [
            &mut setup.date,
            &mut setup.cpu_model,
            &mut setup.host_kernel,
            &mut setup.guest_kernel,
            &mut setup.qemu,
            &mut setup.vmlane,
            &mut setup.pinned,
        ] {
            *text = plain(text);
        }
        setup.commit = setup.commit.as_deref().map(plain);
        rows.push(row);
    }
    Ok(rows)
}

fn check_numbers(row: &Row) -> Result<()> {
    let rtt = row.rtt_us.map(|t| [t.min, t.p50, t.p90, t.p99, t.p999, t.max]);
    let numbers =
        [row.throughput_bps, row.transactions_per_second, row.host_cpu_seconds, row.host_other_cpu_seconds]
            .into_iter()
            .flatten()
            .chain(rtt.into_iter().flatten())
            .chain([row.wall_seconds, row.setup.seconds, row.setup.warmup_seconds]);
    for number in numbers {
        ensure!((0.0..=MOST_NUMBER).contains(&number), "{number} is nothing that was measured");
    }
    ensure!((1..=1000).contains(&row.run), "run {}: from 1 to 1000", row.run);
    Ok(())
}

/// A text that was sent, as far as it is shown: one line, no control characters.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_TEXT).collect()
}
