//! What the helpers that run beside the daemon have in common on their command lines.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct HelperArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = vmlane_config::DEFAULT_PATH)]
    pub config: PathBuf,
    /// Runtime directory of the daemon
    #[arg(long, value_name = "DIR", env = vmlane_sock::RUNTIME_DIR_VARIABLE, default_value_os_t = vmlane_sock::runtime_dir())]
    pub runtime_dir: PathBuf,
    /// Log filter: error, warn, info, debug or trace
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}
