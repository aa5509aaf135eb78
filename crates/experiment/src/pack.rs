//! One file with everything that a set of experiments measured, to be sent: rows, reports, what the machine is.
//!
//! Its sender should not have to look for what is private in it: names of hosts and users, paths and MAC
//! addresses are taken out of what tools and failed runs said, and logs are left out. Its reader cannot trust
//! it: a pack is read into memory, within bounds, and nothing is ever written under a name that it gives.

mod privacy;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::machine::{Finding, Machine};
use crate::paper::Settings;
use crate::report;
use crate::rows::{self, Row};

pub use read::read;

/// Raised when a key changes its meaning or goes away.
const VERSION: u32 = 1;
/// The directory that everything is in.
const TOP: &str = "vmlane-paper";
const ABOUT: &str = "about.json";
const README: &str = "README.txt";

const EXPLAINED: &str = "\
This archive was written by `vmlane lab paper`. It holds

  about.json               the machine (processor, microcode, kernel, memory, governor and the like), what was found to
                           be in the way of good figures, the settings, and the version of vmlane
  NAME/results.jsonl       a line of JSON for every run of the experiment NAME
  NAME/report.html         the same as a page with figures

It holds no name of a host or a user, no path of the machine's files, no MAC address and no log: what failed runs and
measuring tools said had these replaced. Host kernel, processor and the time of measuring are in it.

`vmlane lab draw THIS.tar.gz OTHER.tar.gz` shows several side by side.
";

/// What a pack says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub version: u32,
    pub vmlane: String,
    pub commit: Option<String>,
    /// When it was packed, UTC.
    pub date: String,
    pub settings: Settings,
    pub machine: Machine,
    pub findings: Vec<Finding>,
}

/// A pack that was read.
#[derive(Clone, Debug)]
pub struct Pack {
    pub path: PathBuf,
    pub about: About,
    /// By the plan's name.
    pub results: BTreeMap<String, Vec<Row>>,
}

impl About {
    pub fn new(settings: Settings, machine: Machine, commit: Option<String>) -> About {
        let findings = machine.judge();
        let date = crate::host::date();
        let vmlane = env!("CARGO_PKG_VERSION").to_owned();
        About { version: VERSION, vmlane, commit, date, settings, machine, findings }
    }
}

/// Packs the results in the directories `NAME`, as far as they have rows, into the file `path`.
///
/// # Errors
/// A file cannot be read or written.
pub fn write(path: &Path, about: &About, results: &[(String, PathBuf)]) -> Result<()> {
    let partial = path.with_extension("partial");
    let file = File::create(&partial).with_context(|| format!("cannot write {}", partial.display()))?;
    // The gzip header has no name and no time, and no entry has an owner.
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let mut add = |name: &str, bytes: &[u8]| -> Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, format!("{TOP}/{name}"), bytes)?;
        Ok(())
    };
    add(README, EXPLAINED.as_bytes())?;
    add(ABOUT, &serde_json::to_vec_pretty(about)?)?;
    let private = privacy::Private::of_this_machine();
    for (name, dir) in results {
        if !dir.join(rows::FILE).exists() {
            continue;
        }
        let mut rows = rows::read(dir)?;
        rows.iter_mut().for_each(|row| private.hide(row));
        let mut lines = Vec::new();
        for row in &rows {
            serde_json::to_writer(&mut lines, row)?;
            lines.push(b'\n');
        }
        add(&format!("{name}/{}", rows::FILE), &lines)?;
        add(&format!("{name}/{}", report::FILE), report::html(&rows).as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
}
