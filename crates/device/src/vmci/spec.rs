//! What a VM may use at most.

/// What one VM may use of its VMCI device at most; how many connections it may have is in the
/// table of VMs ([`vmlane_vsock::Vm`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs open at once.
    pub queue_pairs: usize,
    /// Bytes of all its queue pairs together (guest memory that the engine watches). `None`: by the VM's
    /// memory ([`Limits::queue_pair_bytes`]).
    pub queue_pair_bytes: Option<u64>,
    /// Doorbells, and datagram maps.
    pub doorbells: usize,
    /// Bytes of datagrams that wait for it; beyond, senders are refused.
    pub inbox_bytes: usize,
    /// Bytes it may leave behind in streams that it left.
    pub overflow_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            queue_pairs: 4096,
            queue_pair_bytes: None,
            doorbells: 4096,
            inbox_bytes: 2 * 69_632,
            overflow_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// The least and the most that [`Self::queue_pair_bytes`] is if nothing is configured. Above the most,
    /// the default of `queue_pairs` is met first: 4096 pairs of 512 KiB, Linux's default buffers.
    const QUEUE_PAIR_BYTES: [u64; 2] = [256 << 20, 2 << 30];

    /// Bytes of all queue pairs of a VM with `memory` bytes of RAM: as configured, else half of its RAM. A
    /// server with default buffers runs out of its own memory for sockets about then; what the daemon keeps
    /// for them, a list of pages, stays in proportion to the VM.
    pub fn queue_pair_bytes(&self, memory: u64) -> u64 {
        let [least, most] = Limits::QUEUE_PAIR_BYTES;
        self.queue_pair_bytes.unwrap_or((memory / 2).clamp(least, most))
    }
}
