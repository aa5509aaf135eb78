//! Why a request of the front end is refused.

use vmlane_mem::MapError;

use crate::irq::IrqError;

/// Why a request was refused; it changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("request {0} does not exist or is not served")]
    Unknown(u32),
    #[error("a payload of {have} bytes, {need} are needed")]
    Payload { have: usize, need: usize },
    #[error("{have} file descriptors, {need} are needed")]
    Descriptors { have: usize, need: usize },
    #[error("{name} is {value:#x}")]
    Field { name: &'static str, value: u64 },
    #[error("ring {0} runs")]
    Running(usize),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Line(#[from] IrqError),
    #[error("shared memory of the front end: {0}")]
    Memory(std::io::Error),
}
