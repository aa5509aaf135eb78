//! Why a shared file of a previous daemon is not used.

use std::io;

use crate::LAYOUT;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it has {have} bytes, {need} are needed")]
    Short { have: u64, need: u64 },
    #[error("it does not begin as a state file does")]
    Magic,
    #[error("its layout is version {have}, this daemon knows {LAYOUT}")]
    Layout { have: u32 },
    #[error("it is of kind {have}, not {want}")]
    Kind { have: u32, want: u32 },
    #[error("its entry at {at:#x} is damaged")]
    Damaged { at: usize },
    #[error("a record of kind {kind} is not valid")]
    Record { kind: u32 },
    #[error("{0} is missing")]
    Missing(String),
    #[error("{0}")]
    Host(#[from] io::Error),
}
