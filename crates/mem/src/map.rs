/// placeholder
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {}
