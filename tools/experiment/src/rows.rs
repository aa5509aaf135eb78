//! The raw rows: a line of JSON for every run, each complete in itself.
//!
//! Whatever is drawn or computed later comes from these lines alone, so each also states where and how
//! it was measured. Readers must expect keys that they do not know.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vmlane_bench::report::RoundTrips;

use crate::factors::Factors;
use crate::units::size;
use crate::words::{MAKER, maker};

/// Raised when a key changes its meaning or goes away; new keys do not raise it.
pub const VERSION: u32 = 1;
/// The file of a result directory.
pub const FILE: &str = "results.jsonl";

/// What the daemon counted during a run, by VM (and `workers`); counters that did not move are left out.
pub type Counters = BTreeMap<String, BTreeMap<String, u64>>;

/// One run. As wide as its line of JSON, whose keys are a contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub version: u32,
    pub device: String,
    pub kernel: String,
    pub accelerator: String,
    pub guests: u32,
    pub tool: String,
    pub test: String,
    /// For round trips: the request, which is as long as its response.
    pub message_bytes: u64,
    /// What was asked for at both ends; null leaves the kernels' defaults.
    pub send_buffer: Option<u64>,
    pub sessions: u32,
    /// From 1.
    pub run: u32,
    /// What distinguishes the combination from all others of its plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_bps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions_per_second: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<RoundTrips>,
    /// Frames that the clients' cards sent (of a test that receives: received), by the switch's counters,
    /// over the whole run; a super-frame counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<f64>,
    /// What the daemon and the QEMUs used during the whole run: start of the client, warm-up and all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cpu_seconds: Option<f64>,
    /// The same by process: `daemon`, and the guests' QEMUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_cpu_by_process: BTreeMap<String, f64>,
    /// What everything else on the host used meanwhile: a measure of disturbance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_other_cpu_seconds: Option<f64>,
    /// The length of the whole run, which the CPU seconds belong to.
    #[serde(default)]
    pub wall_seconds: f64,
    /// Between the first and the last client's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_ms: Option<f64>,
    /// How far that may be off: the guests' clocks are known no better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_known_to_ms: Option<f64>,
    /// Attempts that were thrown away because their skew was beyond what the plan allows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The last lines of the logs of what died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    #[serde(default, skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// The whole report of the measuring tool.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub report: serde_json::Value,
    #[serde(default)]
    pub setup: Setup,
    /// The whole plan, in the first row that each start of the program writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_source: Option<PlanSource>,
    /// The plan's other factors, and keys of later versions.
    #[serde(flatten)]
    pub factors: BTreeMap<String, serde_json::Value>,
}

/// A plan as it was given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanSource {
    pub text: String,
    pub quick: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Where and how a row was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    /// When the sweep began, UTC.
    pub date: String,
    pub cpu_model: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    pub host_kernel: String,
    pub guest_kernel: String,
    pub guest_cpus: u32,
    pub guest_memory_mib: u32,
    pub qemu: String,
    pub vmlane: String,
    /// Of the source tree that the program was built in.
    pub commit: Option<String>,
    /// Which threads were bound to which CPUs.
    pub pinned: String,
    pub plan: String,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub runs: u32,
    /// More of them were made, up to so many, where results spread; 0 if not.
    #[serde(skip_serializing_if = "is_zero")]
    pub most_runs: u32,
}

impl Row {
    /// Records which combination the row is of; `named` are the factors that its plan names.
    pub fn describe(&mut self, factors: &Factors, named: &[&str]) {
        let typed =
            ["device", "kernel", "accelerator", "guests", "tool", "test", "message", "buffer", "sessions"];
        let others = named.iter().filter(|name| !typed.contains(*name));
        self.device = factors.device.to_string();
        self.kernel.clone_from(&factors.kernel);
        self.accelerator = factors.accelerator.clone().unwrap_or_default();
        self.guests = factors.guests;
        self.tool = factors.tool.name().into();
        self.test = factors.test.name().into();
        self.message_bytes = factors.message;
        self.send_buffer = factors.buffer;
        self.sessions = factors.sessions;
        self.id = factors.id();
        self.factors = others.map(|name| ((*name).to_owned(), factors.text(name).into())).collect();
    }

    /// A factor's value as plans write it.
    pub fn factor(&self, name: &str) -> String {
        match name {
            "id" => self.id.clone(),
            "device" => self.device.clone(),
            "kernel" => self.kernel.clone(),
            "accelerator" => self.accelerator.clone(),
            "guests" => self.guests.to_string(),
            MAKER => maker(&self.device).to_owned(),
            "tool" => self.tool.clone(),
            "test" => self.test.clone(),
            "message" => size(self.message_bytes),
            "buffer" => self.send_buffer.map_or_else(|| "default".into(), size),
            "sessions" => self.sessions.to_string(),
            // What this profile holds its card to, and its driver cannot change.
            "moderation" if self.device.contains("profile=vmxnet2-class") => "4000".into(),
            _ => match self.factors.get(name) {
                None => "default".into(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        }
    }

    /// The number that the test is about: bit/s or transactions/s; none when the run failed.
    pub fn value(&self) -> Option<f64> {
        if self.failed.is_some() {
            return None;
        }
        self.throughput_bps.or(self.transactions_per_second)
    }
}

/// Appends rows to a new file, each at once: an interrupted sweep keeps what it has.
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Writer {
    /// Makes the directory and an empty file in it.
    pub fn create(dir: &Path) -> Result<Writer> {
        vmlane_lab::dirs::make(dir)?;
        let path = dir.join(FILE);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Writer { file, path })
    }

    /// Continues a file that has rows, or makes an empty one. Whatever a line that was cut short left at its
    /// end is taken away; returns the rows that are there.
    pub fn append(dir: &Path) -> Result<(Writer, Vec<Row>)> {
        vmlane_lab::dirs::make(dir)?;
        let path = dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let rows = parse(&text[..whole]).with_context(|| path.display().to_string())?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| file.set_len(whole as u64).map(|()| file))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok((Writer { file, path }, rows))
    }

    pub fn add(&mut self, row: &Row) -> Result<()> {
        let line = serde_json::to_string(row)? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The rows of a result directory.
pub fn read(dir: &Path) -> Result<Vec<Row>> {
    let path = dir.join(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Rows from the text of a file; an error names the line. A last line without an end was cut short: it is
/// left out.
pub fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let cut_at = if text.ends_with('\n') { usize::MAX } else { text.lines().count() };
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let row: Row = match serde_json::from_str(line) {
            Ok(row) => row,
            Err(_) if number == cut_at => break,
            Err(error) => return Err(error).with_context(|| format!("line {number}")),
        };
        if row.version != VERSION {
            bail!(
                "line {number}: version {}, and this program reads {VERSION}; use the vmlane that wrote it",
                row.version
            );
        }
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"version":1,"device":"vmci","kernel":"6.12","accelerator":"tcg","guests":2,"tool":"vmlane-bench","test":"stream","message_bytes":512,"send_buffer":65536,"sessions":1,"run":1,"throughput_bps":1e9,"new_key":7}"#;

    #[test]
    fn a_line_of_the_contract_is_a_row() {
        let rows = parse(&format!("{LINE}\n\n{LINE}\n")).unwrap();
        assert_eq!((rows.len(), rows[0].value()), (2, Some(1e9)));
        assert_eq!(
            [rows[0].factor("buffer"), rows[0].factor("new_key"), rows[0].factor("mtu")],
            ["64k", "7", "default"]
        );
        assert_eq!((rows[0].device.as_str(), rows[0].send_buffer), ("vmci", Some(65536)));
    }

    #[test]
    fn rows_survive_the_file() {
        let mut row = parse(LINE).unwrap().remove(0);
        row.counters.entry("a".into()).or_default().insert("wrote_sent".into(), 3);
        row.setup.commit = Some("abc".into());
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(dir.path()).unwrap();
        writer.add(&row).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [row]);
    }

    #[test]
    fn a_file_that_was_cut_short_goes_on_where_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), format!("{LINE}\n{}", &LINE[..90])).unwrap();
        assert_eq!(read(dir.path()).unwrap().len(), 1);
        let (mut writer, rows) = Writer::append(dir.path()).unwrap();
        assert_eq!(rows.len(), 1);
        writer.add(&rows[0]).unwrap();
        assert_eq!(read(dir.path()).unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        let error = format!("{:#}", parse(&format!("{LINE}\n{{\"version\":1}}\n")).unwrap_err());
        assert!(error.contains("line 2") && error.contains("device"), "{error}");
        let error = parse(&LINE.replace("\"version\":1", "\"version\":9")).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
    }

    #[test]
    fn a_failed_run_has_no_value() {
        let mut row = parse(LINE).unwrap().remove(0);
        row.failed = Some("no answer".into());
        assert_eq!(row.value(), None);
    }
}
