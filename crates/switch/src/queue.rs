//! What other threads ask of the worker.

use std::sync::Arc;

use vmlane_port::{FramePort, PortId, PortStats};
use vmlane_worker::{Answer, CommandQueue};

use crate::port::PortState;
use crate::spec::PortSpec;

pub enum Request {
    Add {
        id: PortId,
        spec: PortSpec,
        stats: Arc<PortStats>,
        state: Arc<PortState>,
    },
    Update {
        id: PortId,
        spec: PortSpec,
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
    /// Nothing may be attached from now on, or something may again.
    Shut {
        id: PortId,
        shut: bool,
    },
}

/// A request, and the caller that waits for its end.
pub struct Command {
    pub request: Request,
    pub answer: Option<Answer>,
}

pub type Requests = CommandQueue<Command>;
