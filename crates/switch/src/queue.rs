//! What other threads ask of the worker.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use vmlane_port::wrap::FrameTap;
use vmlane_port::{FramePort, PortId, PortStats};
use vmlane_worker::{Answer, CommandQueue};

use crate::mirror::Copies;
use crate::port::{Numbered, Port, PortState};
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
    Update {
        id: PortId,
        spec: PortSpec,
        /// The number of its isolation group.
        group: u16,
        /// None: it stays shaped as it is.
        shaper: Option<Box<Shaper>>,
    },
    Remove {
        id: PortId,
    },
    Attach {
        id: PortId,
        end: Box<dyn FramePort>,
    },
    Detach {
        id: PortId,
    },
    Refresh {
        id: PortId,
    },
    /// What looks at the port's frames from now on.
    Tap {
        id: PortId,
        taps: Vec<Arc<dyn FrameTap>>,
    },
    /// Nothing may be attached from now on, or something may again.
    Shut {
        id: PortId,
        shut: bool,
    },
    /// The interface behind an uplink's port has a link, or has none.
    Carrier {
        id: PortId,
        up: bool,
    },
    /// The network is to hear where the port's address is.
    Announce {
        id: PortId,
    },
    /// The teams that there are from now on.
    Teams {
        teams: Vec<(TeamSpec, Arc<TeamState>)>,
    },
    /// The port is a mirror's, and its frames go there from now on.
    Copy {
        id: PortId,
        copies: Copies,
    },
    /// What is attached is about to be dropped: other workers are to let go of it.
    Retire {
        id: PortId,
    },
    /// What is attached to a port of another worker has changed.
    Adopt {
        id: PortId,
    },
    /// Another worker failed with what is attached to a port of this one.
    Fault {
        id: PortId,
    },
    /// The port goes to another worker.
    Move {
        id: PortId,
        step: Step,
    },
    /// What was asked before is done when this is, and what the worker let go of is on its way back to its owner.
    Barrier,
    /// Tells the learned addresses of all ports; `into` has room for them.
    Learned {
        into: Arc<Mutex<Vec<LearnedAddress>>>,
    },
}

impl Request {
    /// The port that it is about; 0, which no port has, if it is about all.
    pub fn port(&self) -> PortId {
        match *self {
            Request::Add { of, .. } => of.id,
            Request::Update { id, .. }
            | Request::Remove { id }
            | Request::Attach { id, .. }
            | Request::Detach { id }
            | Request::Refresh { id }
            | Request::Tap { id, .. }
            | Request::Carrier { id, .. }
            | Request::Announce { id }
            | Request::Copy { id, .. }
            | Request::Retire { id }
            | Request::Adopt { id }
            | Request::Fault { id }
            | Request::Move { id, .. }
            | Request::Shut { id, .. } => id,
            Request::Teams { .. } | Request::Barrier | Request::Learned { .. } => PortId(0),
        }
    }

    /// What it costs, in tables made anew, where a guest can ask for it.
    pub fn rebuilds(&self) -> usize {
        match self {
            // A port's own memory is much of it: this is about what it takes (see the row of rings that stop and start in
            // `daemon/tests/neighbours`).
            Request::Attach { .. } => 8,
            Request::Detach { .. } => 2,
            Request::Refresh { .. } => 1,
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
