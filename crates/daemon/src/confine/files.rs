//! Landlock: which files, sockets and processes the daemon may touch at all from here on.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use vmlane_access::accounts;
use vmlane_config::added::AddedVms;
use vmlane_config::sources;

/// The newest version whose rights are spoken of here; older kernels get what they know.
const KNOWN: ABI = ABI::V6;

/// Why the ruleset could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error(transparent)]
    Rules(#[from] RulesetError),
    #[error(transparent)]
    Path(#[from] PathFdError),
}

/// What the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    Fully,
    Partly,
    /// The kernel has no Landlock.
    Not,
}

/// Confines this thread, and the threads it starts, to `runtime` (everything but execution), the
/// directories of `config` (reading: editors replace files, and more come to `conf.d`), that of `added` (files in it), those of `hybrid` (sockets in them), `program` (reading and starting it
/// again) and the lists of users and groups (reading). No TCP port can be bound or connected to, no abstract socket of another program connected to, and no
/// process signalled but those that the daemon starts.
pub fn confine(
    runtime: &Path,
    config: &Path,
    added: &AddedVms,
    program: &Path,
    hybrid: &[PathBuf],
) -> Result<Enforced, FilesError> {
    let all = AccessFs::from_all(KNOWN);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::Execute | AccessFs::IoctlDev;
    let ruleset = allow(ruleset, runtime, all & !devices)?;
    let mut ruleset = allow(ruleset, config.parent().unwrap_or(config), read)?;
    let further = sources::directory(config);
    if further.exists() {
        // It may be a link to somewhere else.
        ruleset = allow(ruleset, &further, read)?;
    }
    if let Some(directory) = added.directory() {
        let keep = read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile;
        ruleset = ruleset.add_rule(PathBeneath::new(directory, keep))?;
    }
    for directory in hybrid.iter().filter(|directory| directory.exists()) {
        ruleset = allow(ruleset, directory, AccessFs::MakeSock | AccessFs::RemoveFile)?;
    }
    let ruleset = allow(ruleset, program, AccessFs::ReadFile | AccessFs::Execute)?;
    let mut ruleset = allow(ruleset, Path::new("/dev/null"), AccessFs::ReadFile | AccessFs::WriteFile)?;
    for list in accounts::FILES.map(Path::new).into_iter().filter(|list| list.exists()) {
        ruleset = allow(ruleset, list, AccessFs::ReadFile)?;
    }
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::Partly,
        RulesetStatus::NotEnforced => Enforced::Not,
    })
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: impl Into<landlock::BitFlags<AccessFs>>,
) -> Result<RulesetCreated, FilesError> {
    Ok(ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, access))?)
}
