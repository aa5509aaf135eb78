//! Requests that are refused: each with the field and value at fault and an errno for the answer.

use std::io;

use rustix::io::Errno;
use vmlane_device::pci::AccessError;
use vmlane_mem::MapError;

use crate::irq::IrqError;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("message type {kind} is neither command nor reply")]
    Kind { kind: u32 },
    #[error("command {code} does not exist")]
    Unknown { code: u16 },
    #[error("{what} is not supported")]
    Unsupported { what: &'static str },
    #[error("payload of {have} bytes, {need} are needed")]
    Payload { have: usize, need: usize },
    #[error("{name} is {value:#x}")]
    Field { name: &'static str, value: u64 },
    #[error("version data is not text ending in NUL")]
    VersionData,
    #[error("{have} file descriptors for a count of {count}")]
    Descriptors { have: usize, count: u32 },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Irq(#[from] IrqError),
}

impl RequestError {
    pub fn errno(&self) -> Errno {
        match self {
            RequestError::Unknown { .. } => Errno::NOSYS,
            RequestError::Unsupported { .. } => Errno::OPNOTSUPP,
            RequestError::Map(MapError::Overlap { .. }) => Errno::EXIST,
            RequestError::Map(MapError::TooMany) => Errno::NOSPC,
            RequestError::Map(MapError::TooLarge { .. }) => Errno::NOMEM,
            RequestError::Map(MapError::Host { source, .. }) => {
                let unnamed =
                    if source.kind() == io::ErrorKind::OutOfMemory { Errno::NOMEM } else { Errno::IO };
                Errno::from_io_error(source).unwrap_or(unnamed)
            }
            _ => Errno::INVAL,
        }
    }
}
