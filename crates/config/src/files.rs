//! The files of the configuration: where they are, and as they are in force.

use std::path::{Path, PathBuf};

use crate::added::AddedVms;
use crate::{Config, ConfigError, Sources};

/// All files of a configuration.
pub struct Files {
    /// The main one. Others are beside it, in `conf.d`.
    pub main: PathBuf,
    /// VMs that were added at run time.
    pub added: AddedVms,
    /// As they were read last without a mistake in them, and with what was added since.
    pub in_force: Sources,
}

impl Files {
    /// Reads and checks the files. They are in force from here on.
    pub fn load(main: &Path, added: AddedVms) -> Result<(Files, Config), ConfigError> {
        let mut files = Files { main: main.to_owned(), added, in_force: Sources::default() };
        files.in_force = files.read()?;
        let config = Config::check(&files.in_force)?;
        Ok((files, config))
    }

    /// The files as they are now.
    pub fn read(&self) -> Result<Sources, ConfigError> {
        Ok(Sources::read(&self.main)?.with(self.added.read()?))
    }
}
