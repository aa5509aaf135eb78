//! The daemon gives up what it does not need: root, capabilities, files, system calls.
//!
//! | file | what |
//! | --- | --- |
//! | `user.rs` | an unprivileged user, no capabilities |
//! | `own_user.rs` | a user without an account, where the host has none for the daemon |
//! | `files.rs` | Landlock: the directories that it is given, itself |
//! | `calls.rs` | seccomp: an allow-list for the process, a shorter one for each kind of thread |
//! | `violation.rs` | what happens when a thread tries more |
//!
//! [`confine`] is called once, by the only thread there is: what is given up then, is given up for all later
//! threads. Which directories a daemon has, its caller knows ([`Directories`]).
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "below directories of the tests' own"))]

mod calls;
mod error;
mod files;
mod own_user;
mod user;
mod violation;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::thread::{CapabilitySet, set_no_new_privs};
use vmlane_access::Accounts;
use vmlane_port::role::{self, Role};

pub use self::error::ConfineError;
use self::files::Enforced;
use self::user::Become;
pub use self::violation::EXIT_CODE;

/// How far the process is confined, for `vmlane status`.
static STATE: OnceLock<String> = OnceLock::new();

/// `no` or what is in force.
pub fn state() -> String {
    STATE.get().cloned().unwrap_or_else(|| "no".into())
}

/// True once [`confine`] has been obeyed: nothing that needs a capability works any more.
pub fn is_confined() -> bool {
    STATE.get().is_some()
}

/// What keeps the daemon's own number of a user from being given to others, to be held as long as a process
/// has it.
static USER_LOCK: OnceLock<File> = OnceLock::new();

/// That lock, if this process has taken it.
pub fn user_lock() -> Option<&'static File> {
    USER_LOCK.get()
}

/// The same, found where a previous daemon left it.
pub fn keep_user_lock(lock: File) {
    let _ = USER_LOCK.set(lock);
}

/// Users beside root and this process's own who may own directories of the daemon that serves in `runtime`:
/// whom such daemons become. `configured`: the user that the configuration names; `state`: its other
/// directories.
pub fn users(configured: Option<&str>, runtime: &Path, state: &[&Path]) -> Vec<u32> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let state: Vec<PathBuf> = state.iter().map(|path| absolute(path)).collect();
    user::of_daemons(configured, &absolute(runtime), &state)
}

/// The directories of a daemon. What it may do in each is in `files.rs`.
#[derive(Debug)]
pub struct Directories<'d> {
    /// The runtime directory.
    pub runtime: &'d Path,
    /// The same, open.
    pub opened: &'d File,
    /// Those of the configuration.
    pub config: &'d [PathBuf],
    /// The open one of VMs that were added at run time, if there is one.
    pub added: Option<BorrowedFd<'d>>,
    /// Those elsewhere in which VMMs make hybrid sockets.
    pub hybrid: &'d [PathBuf],
}

/// Confines the calling thread and all threads started from it. `user`: whom to become, if configured.
pub fn confine(user: Option<&str>, directories: &Directories<'_>) -> Result<(), ConfineError> {
    let host = |what| move |cause: io::Error| ConfineError::Host { what, cause };
    let chosen = user::choose(user, directories.runtime, directories.opened)?;
    // Read now, so that owners of VMs are known by name later.
    Accounts::host();
    violation::watch().map_err(host("the handler of SIGSYS"))?;
    // Installs its signal handler, which a filter would not let it do later.
    vmlane_mem::prepare();
    user::bound_capabilities(CapabilitySet::empty());
    if let Some(user) = chosen.user() {
        user::hand_over(directories.opened, user).map_err(host("handing the runtime directory over"))?;
        user::give(directories.added, user).map_err(host("handing the directory of added VMs over"))?;
        user::become_user(user).map_err(host("becoming another user"))?;
    } else {
        take_back(directories).map_err(host("taking directories of another user back"))?;
    }
    user::drop_capabilities(CapabilitySet::empty()).map_err(host("dropping capabilities"))?;
    no_core_dumps().map_err(host("giving up core dumps"))?;
    set_no_new_privs(true).map_err(|error| host("no_new_privs")(error.into()))?;
    let files = files::confine(directories, Path::new("/proc/self/exe"))?;
    calls::confine_process()?;
    role::on_enter(enter);
    let who = match chosen {
        Become::Same => "own user".to_owned(),
        Become::Listed(user) => format!("user {}", user.name),
        Become::Own(own) => {
            own.lock.into_iter().for_each(keep_user_lock);
            format!("user {} of its own", own.user.uid)
        }
    };
    let files = match files {
        Enforced::Fully => "landlock",
        Enforced::Partly => "landlock in part (an older kernel)",
        Enforced::Not => "no landlock (the kernel has none)",
    };
    let state = format!("{who}, no capabilities, seccomp, {files}");
    tracing::info!("confined: {state}");
    let _ = STATE.set(state);
    Ok(())
}

/// For a daemon that stays who it is. As root it takes back what was another user's.
pub fn take_back(directories: &Directories<'_>) -> io::Result<()> {
    if let Some(root) = user::root_of(directories.opened.as_fd())? {
        user::hand_over(directories.opened, &root)?;
    }
    match directories.added.map(user::root_of).transpose()?.flatten() {
        Some(root) => user::give(directories.added, &root),
        None => Ok(()),
    }
}

/// Guests' bytes go through this process: none of them belongs into a core dump, and no other process of its
/// user may read its memory. (Mappings of guests' memory are left out of dumps in any case: `mem/region.rs`.)
pub fn no_core_dumps() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// For the uplink helper: of all capabilities, only what interfaces need is left. TAP needs the first one;
/// AF_XDP needs the others, too, for sockets, their program, and frames that stay in RAM.
pub fn keep_network_rights() -> io::Result<()> {
    let needed =
        [CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW, CapabilitySet::BPF, CapabilitySet::IPC_LOCK];
    let needed = needed.into_iter().collect();
    no_core_dumps()?;
    user::bound_capabilities(needed);
    user::drop_capabilities(needed)?;
    Ok(set_no_new_privs(true)?)
}

/// A thread that serves guests begins. Without its filter it must not.
fn enter(role: Role) {
    if let Err(error) = calls::confine_thread(role) {
        tracing::error!(role = role.name(), %error, "a thread cannot be confined; the daemon ends");
        std::process::abort();
    }
}
