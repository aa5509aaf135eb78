//! Interrupts as event file descriptors that the VMM handed over.
//!
//! Raising costs one system call and a read lock that only a `SET_IRQS` message ever contends: with KVM the
//! descriptor leads straight into the guest. Descriptors come from another process, and workers that serve
//! other VMs raise them: see `event_fd.rs`.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use vmlane_device::irq::{Interrupts, IrqMode};

use crate::event_fd::{EventFd, NotEventFd, Owner};
use crate::stats::SessionStats;
use crate::waker::Waker;

/// A kind of interrupt that a VMM connects on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqKind {
    Intx,
    Msi,
    Msix,
}

impl IrqKind {
    /// As in the names of descriptors that are held for the next daemon.
    pub fn name(self) -> &'static str {
        match self {
            IrqKind::Intx => "intx",
            IrqKind::Msi => "msi",
            IrqKind::Msix => "msix",
        }
    }
}

/// A descriptor that cannot serve as an interrupt.
#[derive(Debug, thiserror::Error)]
pub enum IrqError {
    #[error("interrupt descriptor is not an eventfd")]
    NotEventFd(#[from] NotEventFd),
    #[error("interrupt descriptor is a socket, but not a stream socket of this host (AF_UNIX)")]
    NotLocal,
    #[error("interrupt descriptor cannot be used")]
    Host(#[from] rustix::io::Errno),
}

/// The vectors of one kind. Switched on without any descriptor is a state of its own: that is how
/// QEMU enables MSI-X before the guest has asked for a vector.
#[derive(Debug, Default)]
struct Group {
    on: bool,
    fds: Vec<Option<EventFd>>,
}

impl Group {
    fn connected(&self) -> u16 {
        self.fds.iter().flatten().count().try_into().unwrap_or(u16::MAX)
    }
}

#[derive(Debug, Default)]
struct Lines {
    intx: Group,
    intx_masked: bool,
    msi: Group,
    msix: Group,
}

impl Lines {
    fn group(&mut self, kind: IrqKind) -> &mut Group {
        match kind {
            IrqKind::Intx => &mut self.intx,
            IrqKind::Msi => &mut self.msi,
            IrqKind::Msix => &mut self.msix,
        }
    }

    fn mode(&self) -> IrqMode {
        if self.msix.on {
            IrqMode::Msix { vectors: self.msix.connected() }
        } else if self.msi.on {
            IrqMode::Msi { vectors: self.msi.connected() }
        } else if self.intx.on {
            IrqMode::Intx
        } else {
            IrqMode::Off
        }
    }
}

/// The interrupts of one device; outlives sessions, empty between them.
#[derive(Debug)]
pub struct IrqSet {
    lines: RwLock<Lines>,
    /// The mode in force, packed, so that asking for it takes no lock.
    mode: AtomicU32,
    stats: Arc<SessionStats>,
    owner: Arc<Owner>,
    /// Wakes a session at vector 0 that expects an access then.
    waker: OnceLock<Option<Waker>>,
}

impl IrqSet {
    pub fn new(stats: Arc<SessionStats>) -> IrqSet {
        let mode = AtomicU32::new(pack(IrqMode::Off));
        IrqSet { lines: RwLock::default(), mode, stats, owner: Owner::new(), waker: OnceLock::new() }
    }

    /// Wakes its thread at vector 0 from now on. None: there are no more descriptors.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.waker.get_or_init(|| Waker::new().ok()).as_ref()
    }

    /// Counters of the device.
    pub(crate) fn stats(&self) -> &SessionStats {
        &self.stats
    }

    /// Connects `fds` to the vectors from `start` on and switches the kind on. The caller has checked
    /// the range against what the device offers. All or nothing.
    pub fn connect(&self, kind: IrqKind, start: usize, fds: Vec<OwnedFd>) -> Result<(), IrqError> {
        let fds = fds.into_iter().map(|fd| EventFd::new(fd, &self.owner)).collect::<Result<Vec<_>, _>>()?;
        self.change(|lines| {
            let group = lines.group(kind);
            group.on = true;
            if group.fds.len() < start + fds.len() {
                group.fds.resize_with(start + fds.len(), || None);
            }
            for (slot, fd) in group.fds.iter_mut().skip(start).zip(fds) {
                *slot = Some(fd);
            }
        });
        Ok(())
    }

    /// Takes the descriptors of `count` vectors away; the kind is (or stays) switched on.
    pub fn disconnect(&self, kind: IrqKind, start: usize, count: usize) {
        self.change(|lines| {
            let group = lines.group(kind);
            group.on = true;
            group.fds.iter_mut().skip(start).take(count).for_each(|slot| *slot = None);
        });
    }

    /// Switches a kind off.
    pub fn disable(&self, kind: IrqKind) {
        self.change(|lines| {
            *lines.group(kind) = Group::default();
            if kind == IrqKind::Intx {
                lines.intx_masked = false;
            }
        });
    }

    /// Holds the line interrupt back, or lets it through again; the device raises again what is
    /// still pending then.
    pub fn mask_intx(&self, masked: bool) {
        self.change(|lines| lines.intx_masked = masked);
    }

    /// Disconnects everything: the VMM is gone.
    pub fn clear(&self) {
        self.change(|lines| *lines = Lines::default());
    }

    /// Kinds that are switched on, as bits in the order of [`IrqKind`], and bit 3: INTx is masked.
    pub fn switches(&self) -> u8 {
        let lines = self.lines.read();
        let bits = [lines.intx.on, lines.msi.on, lines.msix.on, lines.intx_masked];
        bits.iter().enumerate().map(|(bit, &on)| u8::from(on) << bit).sum()
    }

    /// Sets what [`IrqSet::switches`] returned in a previous daemon.
    pub fn set_switches(&self, bits: u8) {
        self.change(|lines| {
            for (bit, kind) in [IrqKind::Intx, IrqKind::Msi, IrqKind::Msix].into_iter().enumerate() {
                lines.group(kind).on |= bits >> bit & 1 != 0;
            }
            lines.intx_masked = bits & 8 != 0;
        });
    }

    /// Signals one vector of a kind, whatever the mode: the VMM asked for a test interrupt.
    pub fn trigger(&self, kind: IrqKind, vector: usize) {
        let lines = self.lines.read();
        let group = match kind {
            IrqKind::Intx => &lines.intx,
            IrqKind::Msi => &lines.msi,
            IrqKind::Msix => &lines.msix,
        };
        self.signal(group, vector);
    }

    fn change(&self, change: impl FnOnce(&mut Lines)) {
        let mut lines = self.lines.write();
        change(&mut lines);
        self.mode.store(pack(lines.mode()), Ordering::Release);
    }

    fn raise_line(&self, vector: u16) -> bool {
        let lines = self.lines.read();
        if lines.msix.on {
            self.signal(&lines.msix, usize::from(vector))
        } else if lines.msi.on {
            self.signal(&lines.msi, usize::from(vector))
        } else {
            lines.intx.on && (lines.intx_masked || self.signal(&lines.intx, 0))
        }
    }

    fn signal(&self, group: &Group, vector: usize) -> bool {
        let Some(Some(fd)) = group.fds.get(vector) else { return false };
        fd.raise();
        self.stats.counts.irqs_raised.inc();
        true
    }
}

impl Interrupts for IrqSet {
    fn mode(&self) -> IrqMode {
        unpack(self.mode.load(Ordering::Acquire))
    }

    fn raise(&self, vector: u16) -> bool {
        let raised = self.raise_line(vector);
        if vector == 0
            && let Some(Some(waker)) = self.waker.get()
        {
            waker.wake();
        }
        raised
    }
}

/// A mode as one word.
pub fn pack(mode: IrqMode) -> u32 {
    match mode {
        IrqMode::Off => 0,
        IrqMode::Intx => 1 << 16,
        IrqMode::Msi { vectors } => 2 << 16 | u32::from(vectors),
        IrqMode::Msix { vectors } => 3 << 16 | u32::from(vectors),
    }
}

/// The mode of a word.
pub fn unpack(word: u32) -> IrqMode {
    let vectors = (word & 0xffff) as u16;
    match word >> 16 {
        1 => IrqMode::Intx,
        2 => IrqMode::Msi { vectors },
        3 => IrqMode::Msix { vectors },
        _ => IrqMode::Off,
    }
}
