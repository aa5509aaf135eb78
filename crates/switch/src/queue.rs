//! What other threads ask of the worker.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use vmlane_port::wrap::FrameTap;
use vmlane_port::{FramePort, PortId, PortStats};
use vmlane_worker::{Answer, CommandQueue};

use crate::impair::{Impairment, Line};
use crate::mirror::Copies;
use crate::port::{Numbered, Port};
use crate::port_state::PortState;
use crate::shaping::Shaper;
use crate::spec::{LearnedAddress, PortSpec};
use crate::team::{TeamSpec, TeamState};

/// Where a port lies that has left its worker.
pub type Leaving = Arc<Mutex<Option<Box<Port>>>>;

/// What is asked of a worker while a port goes to another one: see `moving.rs`.
pub enum Step {
    Hold,
    /// Counts the workers with whom it is.
    Settled(Arc<AtomicUsize>),
    Leave {
        to: usize,
        into: Leaving,
    },
    Arrive(Box<Port>),
    Follow {
        to: usize,
    },
    Resume,
}

pub enum Request {
    Add {
        of: Numbered,
        spec: PortSpec,
        stats: Arc<PortStats>,
        state: Arc<PortState>,
        /// None: it is not shaped.
        shaper: Option<Box<Shaper>>,
    },
    /// About a port, if there is one.
    Of(PortId, Change),
    /// A port goes to another worker.
    Move(PortId, Step),
    /// The teams that there are from now on.
    Teams(Vec<(TeamSpec, Arc<TeamState>)>),
    /// What was asked before is done when this is, and what the worker let go of is on its way back to its
    /// owner.
    Barrier,
    /// Lists the learned addresses of all ports, for which there is room.
    Learned(Arc<Mutex<Vec<LearnedAddress>>>),
}

/// What is asked about one port.
pub enum Change {
    Update {
        spec: PortSpec,
        /// The number of its isolation group.
        group: u16,
        /// None: it stays shaped as it is.
        shaper: Option<Box<Shaper>>,
    },
    Remove,
    Attach(Box<dyn FramePort>),
    Detach,
    Refresh,
    /// What captures the port's frames from now on.
    Tap(Vec<Arc<dyn FrameTap>>),
    /// Nothing may be attached from now on, or something may again.
    Shut(bool),
    /// The interface behind an uplink's port has a link, or has none.
    Carrier(bool),
    /// What happens to frames on their way to it, and a line for them if it has none.
    Impair(Impairment, Option<Box<Line>>),
    /// The network is to learn where the port's address is.
    Announce,
    /// The port is a mirror's, and its frames go there from now on.
    Copy(Copies),
    /// What is attached is about to be dropped: other workers are to let go of it.
    Retire,
    /// What is attached to a port of another worker has changed.
    Adopt,
    /// Another worker failed with what is attached to a port of this one.
    Fault,
}

impl Request {
    /// The port that it is about; 0, which no port has, if it is about all.
    pub fn port(&self) -> PortId {
        match *self {
            Request::Add { of, .. } => of.id,
            Request::Of(id, _) | Request::Move(id, _) => id,
            Request::Teams(_) | Request::Barrier | Request::Learned(_) => PortId(0),
        }
    }

    /// What it costs, in tables made anew, where a guest can ask for it.
    pub fn rebuilds(&self) -> usize {
        match self {
            // A port's own memory is much of it: this is about what it takes (see the row of rings that stop
            // and start in `daemon/tests/neighbours`).
            Request::Of(_, Change::Attach(_)) => 8,
            Request::Of(_, Change::Detach) => 2,
            Request::Of(_, Change::Refresh) => 1,
            _ => 0,
        }
    }
}

/// A request, and the caller that waits for its end.
pub struct Command {
    pub request: Request,
    pub answer: Option<Answer>,
}

pub type Requests = CommandQueue<Command>;
