//! Interrupts of a function as messages to its guest: the MSI-X table, and the virtqueue where messages go.
//!
//! Workers raise while the session changes what is raised, so all of it is behind one short lock. A message
//! for which the guest has posted no buffer stays pending, as a masked one does, and leaves when there is a
//! buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_device::virtio::vhost::Lines as _;
use vmlane_transport::RingLines;
use vmlane_transport::SessionStats;
use vmlane_transport::irq::{pack, unpack};
use zerocopy::IntoBytes;

use super::message::{INTERRUPTS, Message, Op};
use super::ring::Ring;
use super::table::{MSIX_ENTRY, MsixEntry};
use super::waker::Waker;

/// After this time a guest that may sleep through calls is called again, unless it has polled meanwhile.
pub const AGAIN: Duration = Duration::from_micros(60);
/// So often; its own clock wakes it later.
const TIMES: u32 = 20;

/// What the guest has switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptKind {
    #[default]
    Off,
    Line {
        pin: u8,
    },
    Msi {
        data: u16,
    },
    Msix {
        masked: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Vector {
    entry: MsixEntry,
    /// It was unmasked since MSI-X was switched on.
    used: bool,
    pending: bool,
}

const RESET: Vector = Vector { entry: MsixEntry::RESET, used: false, pending: false };

#[derive(Debug, Default)]
struct State {
    ring: Option<Ring>,
    kind: InterruptKind,
    /// As long as the function has MSI-X vectors; the first one stands for the line and for MSI, too.
    table: Vec<Vector>,
    /// Some vector waits for a buffer.
    has_pending: bool,
    /// The last call, while the guest is not known to have polled, and how often it was repeated.
    called: Option<(Instant, u32)>,
}

/// The interrupts of one function. Outlives sessions, silent between them.
pub struct Messages {
    state: Mutex<State>,
    /// Packed, so that asking for the mode takes no lock.
    mode: AtomicU32,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    waker: Waker,
}

impl Messages {
    pub fn new(lines: Arc<RingLines>, stats: Arc<SessionStats>) -> std::io::Result<Messages> {
        let mode = AtomicU32::new(pack(IrqMode::Off));
        Ok(Messages { state: Mutex::default(), mode, lines, stats, waker: Waker::new()? })
    }

    /// Wakes the thread that serves the function.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// How many MSI-X vectors the function has. All are masked then.
    pub(super) fn set_vectors(&self, vectors: u16) {
        self.state.lock().table = vec![RESET; usize::from(vectors).max(1)];
    }

    /// Messages go to `ring` from now on; None: nowhere.
    pub(super) fn set_ring(&self, ring: Option<Ring>) {
        let mut state = self.state.lock();
        (state.has_pending, state.called) = (false, None);
        if let Some(old) = std::mem::replace(&mut state.ring, ring) {
            old.leave();
        }
        self.flush(&mut state);
    }

    /// Everything is switched off and masked.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        state.table.fill(RESET);
        state.kind = InterruptKind::Off;
        self.note_mode(&state);
    }

    /// Returns whether anything changed.
    pub(super) fn set_kind(&self, kind: InterruptKind) -> bool {
        let mut state = self.state.lock();
        if state.kind == kind {
            return false;
        }
        let is_msix = |kind| matches!(kind, InterruptKind::Msix { .. });
        if is_msix(kind) != is_msix(state.kind) {
            state.table.iter_mut().for_each(|vector| {
                (vector.used, vector.pending) = (!vector.entry.is_masked(), false);
            });
        }
        state.kind = kind;
        self.note_mode(&state);
        self.flush(&mut state);
        true
    }

    /// Bytes of the table.
    pub(super) fn table_len(&self) -> u64 {
        (self.state.lock().table.len() * MSIX_ENTRY) as u64
    }

    pub(super) fn read_table(&self, offset: u64, data: &mut [u8]) {
        let state = self.state.lock();
        for (at, byte) in (offset as usize..).zip(data) {
            let entry = state.table.get(at / MSIX_ENTRY).map(|vector| &vector.entry);
            *byte = entry.and_then(|entry| entry.as_bytes().get(at % MSIX_ENTRY).copied()).unwrap_or(0);
        }
    }

    /// Returns whether a vector came into use.
    pub(super) fn write_table(&self, offset: u64, data: &[u8]) -> bool {
        let mut state = self.state.lock();
        let mut more = false;
        for (at, byte) in (offset as usize..).zip(data) {
            let Some(vector) = state.table.get_mut(at / MSIX_ENTRY) else { break };
            if let Some(place) = vector.entry.as_mut_bytes().get_mut(at % MSIX_ENTRY) {
                *place = *byte;
            }
            more |= !vector.used && !vector.entry.is_masked();
            vector.used |= !vector.entry.is_masked();
        }
        self.note_mode(&state);
        self.flush(&mut state);
        more
    }

    /// The guest may have posted buffers.
    pub(super) fn posted(&self) {
        let mut state = self.state.lock();
        if state.has_pending {
            self.flush(&mut state);
        }
    }

    /// Calls the guest again if it may have slept through the last call. False: it has not, or is past help.
    pub(super) fn call_again(&self) -> bool {
        let mut state = self.state.lock();
        let Some((at, times)) = state.called else { return false };
        if times == TIMES || state.ring.as_ref().is_none_or(Ring::is_notified) {
            state.called = None;
            return false;
        }
        let now = Instant::now();
        if now.saturating_duration_since(at) >= AGAIN {
            state.called = Some((now, times + 1));
            self.lines.call(INTERRUPTS.into());
        }
        true
    }

    fn note_mode(&self, state: &State) {
        let mode = match state.kind {
            InterruptKind::Off => IrqMode::Off,
            InterruptKind::Line { .. } => IrqMode::Intx,
            InterruptKind::Msi { .. } => IrqMode::Msi { vectors: 1 },
            InterruptKind::Msix { .. } => {
                let used = state.table.iter().filter(|vector| vector.used).count();
                IrqMode::Msix { vectors: used as u16 }
            }
        };
        self.mode.store(pack(mode), Ordering::Release);
    }

    /// Sends what is pending and may leave.
    fn flush(&self, state: &mut State) {
        state.has_pending = false;
        for index in 0..state.table.len() {
            let waits = state.table.get(index).is_some_and(|vector| vector.pending);
            if waits && !self.send(state, index) {
                return;
            }
        }
    }

    /// Sends the message of a vector. False: not for want of a buffer, or of a ring.
    fn send(&self, state: &mut State, index: usize) -> bool {
        let State { ring, kind, table, has_pending, called } = state;
        let Some(vector) = table.get_mut(index) else { return true };
        let (message, data) = match *kind {
            InterruptKind::Off => {
                vector.pending = false;
                return true;
            }
            InterruptKind::Line { pin } => (Message::new(Op::Line, 0, pin.into(), 0), 0),
            InterruptKind::Msi { data } => (Message::new(Op::Message, 0, 0, 2), u32::from(data)),
            InterruptKind::Msix { masked } if masked || vector.entry.is_masked() => {
                vector.pending = true;
                return true;
            }
            InterruptKind::Msix { .. } => {
                let MsixEntry { address, data, .. } = vector.entry;
                (Message::new(Op::Message, 0, address.get(), 4), data.get())
            }
        };
        vector.pending = true;
        let Some(running) = ring else { return false };
        let mut bytes = [0; size_of::<Message>() + 4];
        bytes
            .iter_mut()
            .zip(message.as_bytes().iter().chain(&data.to_le_bytes()))
            .for_each(|(to, from)| *to = *from);
        match post(running, &bytes) {
            Ok(Some(notify)) => {
                vector.pending = false;
                self.stats.counts.irqs_raised.inc();
                if notify {
                    self.lines.call(INTERRUPTS.into());
                    if self.lines.may_lose_calls() && called.replace((Instant::now(), 0)).is_none() {
                        self.waker.wake();
                    }
                }
                true
            }
            Ok(None) => {
                *has_pending = true;
                false
            }
            Err(error) => {
                self.stats.counts.errors.inc();
                tracing::debug!(%error, "interrupts of a function: the virtqueue stands still");
                *ring = None;
                self.lines.fail(INTERRUPTS.into());
                false
            }
        }
    }
}

/// Puts a message into the guest's next buffer. None: there is no buffer. Else whether the guest is to be
/// called.
fn post(ring: &mut Ring, bytes: &[u8]) -> Result<Option<bool>, vmlane_device::virtio::queue::Broken> {
    let taken = match ring.next()? {
        Some(taken) => taken,
        None if ring.listen() => match ring.next()? {
            Some(taken) => taken,
            None => return Ok(None),
        },
        None => return Ok(None),
    };
    ring.quiet();
    // A buffer that is not in memory takes nothing; the message is lost with it.
    let len = ring.copy_in(bytes).unwrap_or(0);
    Ok(Some(ring.complete(&taken, len)))
}

impl Interrupts for Messages {
    fn mode(&self) -> IrqMode {
        unpack(self.mode.load(Ordering::Acquire))
    }

    fn raise(&self, vector: u16) -> bool {
        let mut state = self.state.lock();
        let index = usize::from(vector);
        let connected = match state.kind {
            InterruptKind::Off => false,
            InterruptKind::Line { .. } | InterruptKind::Msi { .. } => index == 0,
            InterruptKind::Msix { .. } => state.table.get(index).is_some_and(|vector| vector.used),
        };
        if connected {
            self.send(&mut state, index);
        }
        connected
    }
}
