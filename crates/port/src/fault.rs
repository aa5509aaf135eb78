//! What the other side of a ring may do wrong.

/// The far end broke the rules of its ring (an index outside it, or one that went backwards), or its
/// memory is gone. Its stream ends; no other one notices. Boxed, because every check of an index may
/// return one and none does: so results travel in registers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct PortFault(Box<Fault>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("{index} {value:#x} is not below the ring size {size:#x}")]
    OutOfRing { index: &'static str, value: u64, size: u64 },
    #[error("{index} moved from {before:#x} to {after:#x}, which is not ahead of it")]
    Backwards { index: &'static str, before: u64, after: u64 },
    #[error("the memory under the ring is gone")]
    MemoryGone,
    #[error("the buffers to receive in are not what they were")]
    Buffers,
}

impl PortFault {
    /// An index outside its ring.
    #[cold]
    pub fn out_of_ring(index: &'static str, value: u64, size: u64) -> PortFault {
        PortFault(Box::new(Fault::OutOfRing { index, value, size }))
    }

    /// An index that is not ahead of where it was.
    #[cold]
    pub fn backwards(index: &'static str, before: u64, after: u64) -> PortFault {
        PortFault(Box::new(Fault::Backwards { index, before, after }))
    }

    /// The memory under the ring is gone.
    #[cold]
    pub fn memory_gone() -> PortFault {
        PortFault(Box::new(Fault::MemoryGone))
    }

    /// Buffers that a guest had offered are of no use.
    #[cold]
    pub fn buffers() -> PortFault {
        PortFault(Box::new(Fault::Buffers))
    }
}
