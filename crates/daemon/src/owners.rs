//! Users beside root and this process's own who may own the directories of a daemon.

use std::path::Path;

use vmlane_config::{Sources, added};

/// Of a daemon of this configuration that serves in `runtime` and keeps its state in `state`.
pub fn owners(sources: &Sources, runtime: &Path, state: &Path) -> Vec<u32> {
    vmlane_confine::users(sources.daemon_user().as_deref(), runtime, &[state, &added::directory(state)])
}
