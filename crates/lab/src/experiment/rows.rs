//! The raw rows: a line of JSON for every run, each complete in itself.
//!
//! Whatever is drawn or computed later comes from these lines alone, so each also says where and how
//! it was measured. Readers must expect keys that they do not know.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vmlane_bench::report::RoundTrips;

/// Raised when a key changes its meaning or goes away; new keys do not raise it.
pub const VERSION: u32 = 1;
/// The file of a result directory.
pub const FILE: &str = "results.jsonl";

/// What the daemon counted during a run, by VM (and `workers`); counters that did not move are left out.
pub type Counters = BTreeMap<String, BTreeMap<String, u64>>;

/// One run.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_bps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions_per_second: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<RoundTrips>,
    /// What the daemon and the QEMUs used during the whole run: start of the client, warm-up and all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cpu_seconds: Option<f64>,
    /// What everything else on the host used meanwhile: a measure of disturbance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_other_cpu_seconds: Option<f64>,
    /// The length of the whole run, which the CPU seconds belong to.
    #[serde(default)]
    pub wall_seconds: f64,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    #[serde(default, skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// Everything that the measuring tool said.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub report: serde_json::Value,
    #[serde(default)]
    pub setup: Setup,
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
}

impl Row {
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
        crate::dirs::make(dir)?;
        let path = dir.join(FILE);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Writer { file, path })
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

/// Rows from the text of a file; an error names the line.
pub fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let row: Row = serde_json::from_str(line).with_context(|| format!("line {number}"))?;
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
