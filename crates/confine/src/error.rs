//! Why the daemon could not be confined.

use std::io;

use crate::calls::CallsError;
use crate::files::FilesError;

/// Why the daemon could not be confined. It does not serve then.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error(
        "daemon: user = {user:?}: only root can become another user; leave the key away, or start as root or as that user \
         (under systemd: User= of vmlane.service and of vmlane-keeper.service)"
    )]
    NotRoot { user: String },
    #[error("daemon: user = {user:?} is not in /etc/passwd; make it (`useradd --system {user}`)")]
    UnknownUser { user: String },
    #[error(
        "daemon: user = {user:?} may not search {directory}; `chmod a+x {directory}`, or choose another \
         --runtime-dir"
    )]
    Unreachable { user: String, directory: String },
    #[error(
        "the daemon becomes another user than root, and there is no user \"vmlane\" and no unused number to take \
         instead: {0}; make the user (`useradd --system vmlane`), or name one with [daemon] user"
    )]
    NoUser(io::Error),
    #[error("giving up privileges: {what}: {cause}")]
    Host { what: &'static str, cause: io::Error },
    #[error("confining files (Landlock): {0}")]
    Files(#[from] FilesError),
    #[error("confining system calls (seccomp): {0}")]
    Calls(#[from] CallsError),
}
