//! Landlock: which files, sockets and processes the daemon may touch at all from here on.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use vmlane_access::accounts;

use crate::Directories;

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

/// Confines this thread, and the threads it starts, to the runtime directory (everything but execution),
/// those of the configuration (reading: editors replace files, and more come), that of added VMs (files in
/// it), those of hybrid sockets (sockets in them), `program` (reading and starting it again) and the lists of
/// users and groups (reading). No TCP port can be bound or connected to, no abstract socket of another
/// program connected to, and no process signalled but those that the daemon starts.
pub fn confine(directories: &Directories<'_>, program: &Path) -> Result<Enforced, FilesError> {
    let all = AccessFs::from_all(KNOWN);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::Execute | AccessFs::IoctlDev;
    let mut ruleset = allow(ruleset, directories.runtime, all & !devices)?;
    for directory in directories.config.iter().filter(|directory| directory.exists()) {
        ruleset = allow(ruleset, directory, read)?;
    }
    if let Some(directory) = directories.added {
        let keep = read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile;
        ruleset = ruleset.add_rule(PathBeneath::new(directory, keep))?;
    }
    for directory in directories.hybrid.iter().filter(|directory| directory.exists()) {
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
