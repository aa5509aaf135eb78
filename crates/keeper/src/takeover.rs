//! Whether this program can take over from the daemon of a runtime directory: asked before that one is
//! restarted, since a program that does not know the layout of its state would have to reset its VMs'
//! devices.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlane_access::{Trust, TrustError};
use vmlane_api::{Client, ClientError, call};
use vmlane_state::{Journal, LAYOUT, Unusable};

use crate::Sessions;

/// The name under which a daemon's keeper holds a half of the hypervisor's journal. It is older than the
/// type's: a next daemon of another version searches for it.
pub const HYPERVISOR_LOG: &str = "fabric.log";

/// How long a daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a daemon that starts now would take over.
#[derive(Debug)]
pub enum Predecessor {
    None {
        runtime_dir: PathBuf,
    },
    Daemon {
        pid: u32,
        version: String,
    },
    /// No daemon runs, and a keeper holds what one has left.
    Keeper,
}

impl fmt::Display for Predecessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Predecessor::None { runtime_dir } => {
                write!(f, "no daemon runs in {}, and none has left anything there", runtime_dir.display())
            }
            Predecessor::Daemon { pid, version } => {
                write!(
                    f,
                    "the daemon that runs (process {pid}, version {version}) keeps its state in layout {LAYOUT}, as this \
                     program does"
                )
            }
            Predecessor::Keeper => {
                write!(
                    f,
                    "no daemon runs; the state that one has left has layout {LAYOUT}, as this program's has"
                )
            }
        }
    }
}

/// Why this program cannot take over, or does not know whether it can.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    #[error(
        "{whose} state has layout {have}, and this program, version {}, knows {LAYOUT}: it would reset the devices of the VMs \
         that are attached. Install a version that knows layout {have}, or move these VMs away or stop them, and then stop the \
         daemon and its keeper and start them again (`systemctl stop vmlane vmlane-keeper`, `systemctl start vmlane-keeper vmlane`)",
        env!("CARGO_PKG_VERSION")
    )]
    OtherLayout { whose: String, have: u32 },
    #[error("the daemon's directory: {0}")]
    Trust(#[from] TrustError),
    #[error("which layout the daemon's state has is not known: {0}")]
    Client(#[from] ClientError),
    #[error("no daemon runs, and what its keeper at {path} holds is not known: {cause}")]
    Keeper { path: PathBuf, cause: io::Error },
    #[error("no daemon runs, and the layout of the state that one has left is not known: {0}")]
    State(Unusable),
}

/// Sessions that a keeper holds in a runtime directory while no daemon runs.
pub fn sessions(runtime_dir: &Path) -> Result<Sessions, TakeoverError> {
    check(None, runtime_dir)?;
    let path = crate::socket(runtime_dir);
    crate::sessions(&path).map_err(|cause| TakeoverError::Keeper { path, cause })
}

/// Without a directory that is trusted, no process is asked.
fn check(user: Option<&str>, runtime_dir: &Path) -> Result<(), TrustError> {
    let owners = vmlane_confine::users(user, runtime_dir, &[]);
    match (Trust { owners: &owners, ..Trust::default() }).open(runtime_dir) {
        // Sockets in a directory that may be passed and not listed.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        opened => opened.map(drop),
    }
}

/// What a daemon of this program would take over in a runtime directory. An error: it could not. `user`: whom
/// its configuration names.
pub fn can_replace(user: Option<&str>, runtime_dir: &Path) -> Result<Predecessor, TakeoverError> {
    let runtime_dir = std::path::absolute(runtime_dir).unwrap_or_else(|_| runtime_dir.to_owned());
    match check(user, &runtime_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Predecessor::None { runtime_dir });
        }
        checked => checked?,
    }
    let (predecessor, whose, have) = match Client::connect(&runtime_dir) {
        Ok(client) => {
            let pong = client.with_timeout(TIMEOUT).call(&call::Ping {})?;
            let whose = format!("the daemon that runs (process {}, version {}): its", pong.pid, pong.daemon);
            (Predecessor::Daemon { pid: pong.pid, version: pong.daemon }, whose, pong.layout)
        }
        Err(ClientError::NoDaemon { cause, .. })
            if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            let path = crate::socket(&runtime_dir);
            match crate::find(&path, HYPERVISOR_LOG) {
                Ok(None) => return Ok(Predecessor::None { runtime_dir }),
                Ok(Some(file)) => {
                    let have = Journal::layout_of(&file).map_err(TakeoverError::State)?;
                    (
                        Predecessor::Keeper,
                        "no daemon runs, but one has left state for the next one: this".into(),
                        have,
                    )
                }
                Err(cause) => return Err(TakeoverError::Keeper { path, cause }),
            }
        }
        Err(error) => return Err(error.into()),
    };
    if have == LAYOUT { Ok(predecessor) } else { Err(TakeoverError::OtherLayout { whose, have }) }
}
