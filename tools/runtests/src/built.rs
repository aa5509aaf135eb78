//! Building the tests, once for all of them, and what was built.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;

/// The one crate whose documentation has examples that run.
pub const WITH_EXAMPLES: &str = "vmlane-sock";

/// A test binary.
#[derive(Clone, Debug)]
pub struct Binary {
    /// `switch` for a crate's unit tests, `switch it` for its integration tests.
    pub name: String,
    pub path: PathBuf,
    /// The name of its package.
    pub package: String,
    /// The directory in which cargo would run it: that of the package.
    pub directory: PathBuf,
}

/// What a build of the workspace's tests has made.
pub struct Built {
    binaries: Vec<Binary>,
    vmlane: Option<String>,
}

impl Built {
    /// One call of cargo builds everything, so that each crate is compiled once, with the same features for
    /// all. What has not changed is not built again.
    pub fn workspace() -> Result<Built> {
        println!("==> building the tests");
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--release", "--locked", "--workspace", "--no-run"]);
        cargo.arg("--message-format=json-render-diagnostics");
        let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            return Err("the tests do not compile".to_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let artifacts = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let mut built = Built { binaries: Vec::new(), vmlane: None };
        artifacts.for_each(|artifact: Value| built.add(&artifact));
        Ok(built)
    }

    fn add(&mut self, artifact: &Value) {
        let Some(path) = artifact["executable"].as_str() else { return };
        let target = &artifact["target"];
        let (name, kind) = (target["name"].as_str().unwrap_or_default(), target["kind"][0].as_str());
        if artifact["profile"]["test"] != true {
            if name == "vmlane" {
                self.vmlane = Some(path.to_owned());
            }
            return;
        }
        let manifest = PathBuf::from(artifact["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.parent().unwrap_or(&manifest).to_owned();
        let short = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = if kind == Some("test") { format!("{short} {name}") } else { short.clone() };
        // Of all but the tests' own package, the name is that of the directory.
        let package = format!("vmlane-{short}");
        self.binaries.push(Binary { name, path: path.into(), package, directory });
    }

    /// Those that need no guests.
    pub fn binaries(&self) -> impl Iterator<Item = &Binary> {
        self.binaries.iter().filter(|binary| binary.name != PROMISES)
    }

    /// The one with the tests in real guests.
    pub fn promises(&self) -> Option<&Binary> {
        self.binaries.iter().find(|binary| binary.name == PROMISES)
    }

    /// Leaves those of these packages.
    pub fn retain(&mut self, packages: &[String]) {
        self.binaries.retain(|binary| packages.contains(&binary.package));
    }

    /// Whether a crate is there whose documentation has examples that run.
    pub fn has_examples(&self) -> bool {
        self.binaries.iter().any(|binary| binary.package == WITH_EXAMPLES)
    }

    /// The program under test.
    pub fn vmlane(&self) -> Result<&str> {
        self.vmlane.as_deref().ok_or_else(|| "no vmlane was built".to_owned())
    }
}

/// The directory and the name of the binary with the tests in real guests.
const PROMISES: &str = "tests promises";
