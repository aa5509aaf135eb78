//! The program that an upgrade starts from: of the latest tag before this commit, built from its own sources.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use vmlane_tests::alone::output;
use vmlane_tests::tree::root;

/// Where an upgrade starts while no version is tagged: the first commit whose control socket has the protocol
/// of today, by which both versions ask each other, and which reads the state of today: the layout, and the
/// revisions of VMXNET3 that a guest may have chosen.
const FIRST: &str = "e6fd90ae7f919aed554637fcb73f61178dcee874";

pub struct Previous {
    /// The tag, or the commit.
    pub name: String,
    pub sources: PathBuf,
    pub program: PathBuf,
}

fn git(words: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(root()).args(words).stderr(Stdio::null());
    git
}

/// The commit that a name stands for.
fn commit(name: &str) -> Option<String> {
    let output =
        git(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).output().expect("git");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Previous {
    /// Builds it in out/upgrade, once.
    pub fn build() -> Previous {
        // A commit that is tagged itself is upgraded to, not from.
        let tag =
            git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]).output().expect("git");
        let name = if tag.status.success() {
            String::from_utf8_lossy(&tag.stdout).trim().to_owned()
        } else {
            FIRST[..12].to_owned()
        };
        let commit = commit(&name).unwrap_or_else(|| {
            panic!(
                "this repository lacks commit {name}, from which is upgraded: `git fetch --unshallow --tags`"
            )
        });
        let folder = root().join("out/upgrade").join(&commit[..12]);
        let (sources, program) = (folder.join("source"), folder.join("vmlane"));
        if !program.is_file() {
            let _ = fs::remove_dir_all(&sources);
            fs::create_dir_all(&sources).expect("a folder for the sources");
            let archive = folder.join("source.tar");
            output(git(&["archive", "--output"]).arg(&archive).arg(&commit));
            output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources));
            fs::remove_file(&archive).expect("the archive");
            let target = folder.join("target");
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut build = Command::new(cargo);
            build.args(["build", "--release", "--locked", "-p", "vmlane-cli", "--target-dir"]).arg(&target);
            output(build.current_dir(&sources));
            let built = target.join("x86_64-unknown-linux-gnu/release/vmlane");
            let fresh = folder.join("vmlane.new");
            fs::copy(&built, &fresh).expect("the program");
            fs::rename(&fresh, &program).expect("the program in its place");
        }
        Previous { name, sources, program }
    }
}
