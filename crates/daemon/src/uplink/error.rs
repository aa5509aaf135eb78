//! Why there is no uplink.

use std::io;

use vmlane_switch::SwitchFull;

use super::kind::OpenError;

/// Why the helper has not opened an interface.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("the helper that attaches interfaces does not answer ({0}); start the daemon again")]
    Gone(io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Missing(String),
    #[error("the configuration has changed meanwhile, and names {found} there; reload it again")]
    Changed { found: String },
}

/// Why an uplink cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    #[error("uplink {name:?}: {cause}")]
    Open { name: String, cause: OpenError },
    #[error("uplink {name:?}: {cause}")]
    Helper { name: String, cause: HelperError },
    #[error("uplink {name:?}: {cause}")]
    Port { name: String, cause: SwitchFull },
    #[error("uplink {name:?}: there is no helper any more that attaches interfaces; start the daemon again")]
    NoHelper { name: String },
}

impl UplinkError {
    /// It leads to an interface that is not there, and may come.
    pub(super) fn is_missing(&self) -> bool {
        match self {
            UplinkError::Open { cause, .. } => cause.is_missing(),
            UplinkError::Helper { cause, .. } => matches!(cause, HelperError::Missing(_)),
            UplinkError::Port { .. } | UplinkError::NoHelper { .. } => false,
        }
    }
}
