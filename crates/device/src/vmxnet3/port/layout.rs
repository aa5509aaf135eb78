//! Which posted buffers a frame goes to.
//!
//! The first is the next HEAD of ring 0; those that follow are the next BODY of ring 0 or, where there
//! is none, of ring 1. Nothing is consumed until all of the frame has a place.

use vmlane_mem::Spans;
use vmlane_port::DropReason;
use vmlane_wire::vmxnet3::desc::{MIN_HEAD, RxDesc};

use super::place::Place;
use super::ring::RxCommands;

/// A buffer that a frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Of ring 1.
    pub second: bool,
    pub place: Place,
    /// Bytes.
    pub len: u16,
}

/// A descriptor that the driver must post before a frame fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub second: bool,
    pub place: Place,
}

/// Why there is no place for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Not before this is posted.
    Later(Missing),
    /// Never, however many buffers are posted.
    Never(DropReason),
    /// A buffer that no driver may post: the queue stops.
    Broken,
}

/// The two rings of a queue.
#[derive(Debug)]
pub struct Buffers {
    pub ring0: RxCommands,
    pub ring1: Option<RxCommands>,
    /// As many of ring 0 may be in the driver's hands at once; None: all.
    depth: Option<u16>,
}

/// A frame's place, before it is taken.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    next0: Place,
    next1: Place,
}

impl Buffers {
    pub fn new(ring0: RxCommands, ring1: Option<RxCommands>, depth: Option<u16>) -> Buffers {
        let depth = depth.filter(|&depth| depth < ring0.size());
        Buffers { ring0, ring1, depth }
    }

    fn ring(&self, second: bool) -> Option<&RxCommands> {
        if second { self.ring1.as_ref() } else { Some(&self.ring0) }
    }

    /// Has the driver posted what was missing?
    pub fn is_there(&self, missing: Missing) -> bool {
        self.ring(missing.second).is_some_and(|ring| ring.is_posted(missing.place))
    }

    /// Has the driver seen the completion of a buffer?
    pub fn is_reposted(&self, second: bool, place: Place) -> bool {
        self.ring(second).is_none_or(|ring| ring.is_reposted(place))
    }

    /// The next HEAD of ring 0. BODYs in front of it are of no use any more; drivers know that they are
    /// skipped from the index of the completion that follows.
    #[inline]
    pub fn head(&mut self) -> Result<RxDesc, NoPlace> {
        // A ring of BODYs alone ends after a lap: its first descriptor is of the wrong generation then.
        for _ in 0..=self.ring0.size() {
            let place = self.ring0.head;
            let missing = NoPlace::Later(Missing { second: false, place });
            let (addr, control) = self.ring0.load(place).ok_or(missing)?;
            let desc = RxDesc::from_words(addr, control);
            if !desc.is_body() {
                self.within_depth()?;
                return Ok(desc);
            }
            self.ring0.head = self.ring0.next(place);
        }
        Err(NoPlace::Broken)
    }

    /// The same when a HEAD is next and no depth is set; else None.
    #[inline]
    pub fn quick_head(&self) -> Option<RxDesc> {
        let (addr, control) = self.ring0.load(self.ring0.head).filter(|_| self.depth.is_none())?;
        Some(RxDesc::from_words(addr, control)).filter(|desc| !desc.is_body())
    }

    /// With a depth of d, the descriptor d places back must have come back.
    #[inline]
    fn within_depth(&self) -> Result<(), NoPlace> {
        let Some(depth) = self.depth else { return Ok(()) };
        let (head, size) = (self.ring0.head, self.ring0.size());
        let Place { index, lap } = head.after(size - depth, size);
        // `after` went forward by the rest of a lap: one lap back is `depth` behind the head.
        if lap == 0 {
            return Ok(());
        }
        let place = Place { index, lap };
        if self.ring0.is_posted(place) {
            return Ok(());
        }
        Err(NoPlace::Later(Missing { second: false, place }))
    }

    /// Consumes the head without using its memory.
    #[inline]
    pub fn take_head(&mut self) -> Place {
        let place = self.ring0.head;
        self.ring0.head = self.ring0.next(place);
        place
    }

    /// Finds room for `need` bytes in at most `limit` buffers: their memory in `into`, themselves in
    /// `list`.
    #[inline]
    pub fn lay_out(
        &mut self,
        need: usize,
        limit: usize,
        into: &mut Spans,
        list: &mut Vec<Buffer>,
    ) -> Result<Layout, NoPlace> {
        into.clear();
        list.clear();
        into.prefetch(self.ring0.lookahead(), 1);
        let head = self.head()?;
        let place = self.ring0.head;
        if head.len() < MIN_HEAD || into.push(head.addr, head.len().min(need)).is_err() {
            return Err(NoPlace::Broken);
        }
        list.push(Buffer { second: false, place, len: head.len().min(need) as u16 });
        let next1 = self.ring1.as_ref().map(|ring| ring.head).unwrap_or_default();
        let mut layout = Layout { next0: self.ring0.next(place), next1 };
        if into.len() < need {
            self.bodies(need, limit, into, list, &mut layout)?;
        }
        Ok(layout)
    }

    fn bodies(
        &self,
        need: usize,
        limit: usize,
        into: &mut Spans,
        list: &mut Vec<Buffer>,
        layout: &mut Layout,
    ) -> Result<(), NoPlace> {
        let mut left = need - into.len();
        while let Some((addr, control)) = self.ring0.load(layout.next0).filter(|_| left > 0) {
            let desc = RxDesc::from_words(addr, control);
            if !desc.is_body() {
                break;
            }
            let place = layout.next0;
            left -= add(desc, left, limit, into, list, |len| Buffer { second: false, place, len })?;
            layout.next0 = self.ring0.next(place);
        }
        if left == 0 {
            return Ok(());
        }
        let ring1 = self.ring1.as_ref().ok_or(TOO_LARGE)?;
        let mut place = layout.next1;
        while left > 0 {
            let (addr, control) = ring1.load(place).ok_or_else(|| wait_for(ring1, place, left))?;
            let desc = RxDesc::from_words(addr, control);
            if !desc.is_body() {
                return Err(TOO_LARGE);
            }
            left -= add(desc, left, limit, into, list, |len| Buffer { second: true, place, len })?;
            place = ring1.next(place);
        }
        layout.next1 = place;
        Ok(())
    }

    /// Consumes what was laid out.
    #[inline]
    pub fn take(&mut self, layout: Layout) {
        self.ring0.head = layout.next0;
        if let Some(ring1) = &mut self.ring1
            && ring1.head != layout.next1
        {
            ring1.head = layout.next1;
            ring1.prefetch_far_ahead();
        }
    }

    /// Bytes of the largest frame that `limit` buffers like the next ones hold. None: they are not
    /// posted, so it is not known.
    pub fn largest(&mut self, limit: usize) -> Option<usize> {
        let head = self.head().ok()?.len();
        let ring0 = self.ring0.load(self.ring0.next(self.ring0.head));
        let ring1 = self.ring1.as_ref().map(|ring| ring.load(ring.head));
        let is_body = |(addr, control)| Some(RxDesc::from_words(addr, control)).filter(RxDesc::is_body);
        let body = match (ring0.and_then(is_body), ring1) {
            (Some(body), _) => body.len(),
            (None, Some(next)) => is_body(next?).map_or(0, |body| body.len()),
            (None, None) => 0,
        };
        Some(head + limit.saturating_sub(1) * body)
    }
}

/// What a BODY holds with most drivers, in bytes.
const BODY: usize = 4096;

/// No number of posted buffers would do.
const TOO_LARGE: NoPlace = NoPlace::Never(DropReason::NoRoom);

/// Adds a buffer for up to `left` bytes. Returns how many it takes.
#[inline]
fn add(
    desc: RxDesc,
    left: usize,
    limit: usize,
    into: &mut Spans,
    list: &mut Vec<Buffer>,
    buffer: impl FnOnce(u16) -> Buffer,
) -> Result<usize, NoPlace> {
    if list.len() >= limit {
        return Err(TOO_LARGE);
    }
    let len = desc.len().min(left);
    if len == 0 || into.push(desc.addr, len).is_err() {
        return Err(NoPlace::Broken);
    }
    list.push(buffer(len as u16));
    Ok(len)
}

/// What is left of a frame needs about as many more BODYs: the last of them is worth waiting for.
#[cold]
fn wait_for(ring1: &RxCommands, next: Place, left: usize) -> NoPlace {
    let steps = (left.div_ceil(BODY) - 1).min(usize::from(ring1.size()) / 2);
    NoPlace::Later(Missing { second: true, place: next.after(steps as u16, ring1.size()) })
}
