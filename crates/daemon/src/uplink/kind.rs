//! What differs between the kinds of uplinks: how one is opened, how its files get from the helper to the daemon, what of it is
//! held for the next daemon, and what it is once it is connected to a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vmlane_host::uplink::xdp::{self, Xdp, XdpError, XdpFacts, XdpFiles, XdpHold, XdpOptions};
use vmlane_host::uplink::{Tap, TapError, TapFiles, TapOptions, is_gone, mtu, vhost_user};
use vmlane_port::{FramePort, PortStats};
use vmlane_state::Found;

use super::connecting::Connecting;
use crate::config::UplinkKind;

/// How long what an uplink leads to may be in use: the port that had it goes in its own time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why an uplink could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{cause}{}", why(cause))]
    Tap { cause: TapError },
    #[error("vhost_user = {socket:?}: {cause}")]
    VhostUser { socket: String, cause: io::Error },
    #[error("what came is of another kind than the uplink")]
    Kind,
    #[error("{cause}{}", why(cause))]
    Xdp { cause: XdpError },
}

impl From<XdpError> for OpenError {
    fn from(cause: XdpError) -> OpenError {
        OpenError::Xdp { cause }
    }
}

impl From<TapError> for OpenError {
    fn from(cause: TapError) -> OpenError {
        OpenError::Tap { cause }
    }
}

/// What the system said, if it said something.
fn why(error: &dyn std::error::Error) -> String {
    error.source().map(|source| format!(": {source}")).unwrap_or_default()
}

impl OpenError {
    /// It is in use, perhaps only for a moment.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            OpenError::Tap { cause: TapError::Busy { .. } } | OpenError::Xdp { cause: XdpError::Busy { .. } }
        )
    }

    /// It leads to an interface that is not there, and may come.
    pub fn is_missing(&self) -> bool {
        matches!(self, OpenError::Xdp { cause: XdpError::Missing { .. } })
    }
}

/// The files of an uplink, opened by a process that may do that.
pub enum Opened {
    Tap(TapFiles),
    /// A connected socket.
    VhostUser(OwnedFd),
    Xdp(XdpFiles),
}

/// What can be seen of an interface by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Bytes of the longest packet.
    pub mtu: usize,
    /// Its number, if that is of interest.
    pub index: Option<u32>,
}

/// What belongs to the files of an [`Opened`] when they go to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Facts {
    Tap {
        /// Bytes.
        mtu: usize,
    },
    VhostUser,
    Xdp(XdpFacts),
}

/// An uplink that is connected to a port, as seen by the daemon.
pub enum Attached {
    Tap {
        /// One of its queues.
        watch: OwnedFd,
        queues: usize,
        /// The MTU that the port goes by.
        mtu: Arc<AtomicUsize>,
    },
    Xdp {
        hold: XdpHold,
        mtu: Arc<AtomicUsize>,
        facts: XdpFacts,
        queues: usize,
    },
    /// Its thread sees to the port.
    VhostUser(Connecting),
}

impl UplinkKind {
    fn xdp(interface: &str, queues: Option<u16>) -> XdpOptions {
        XdpOptions { name: interface.to_owned(), queues }
    }

    fn tap(interface: &str, queues: Option<u16>) -> TapOptions {
        TapOptions { name: interface.to_owned(), queues }
    }

    /// Opens what the uplink leads to; `make` it if there is none.
    pub fn open(&self, make: bool) -> Result<Opened, OpenError> {
        match self {
            UplinkKind::Tap { interface, queues } => {
                if !make {
                    mtu(interface)?;
                }
                Ok(Opened::Tap(TapFiles::open(&Self::tap(interface, *queues))?))
            }
            UplinkKind::VhostUser { socket, .. } => {
                let failed = |cause| OpenError::VhostUser { socket: socket.clone(), cause };
                Ok(Opened::VhostUser(vhost_user::connect(Path::new(socket)).map_err(failed)?))
            }
            UplinkKind::Xdp { interface, queues } => {
                Ok(Opened::Xdp(XdpFiles::open(&Self::xdp(interface, *queues))?))
            }
        }
    }

    /// The same, and waits for a moment while it is in use.
    pub fn open_patiently(&self, make: bool) -> Result<Opened, OpenError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.open(make) {
                Err(error) if error.is_busy() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return opened,
            }
        }
    }

    /// Its interface as it is now; None: it has none that could change.
    pub fn look(&self) -> Result<Option<Seen>, OpenError> {
        match self {
            UplinkKind::Tap { interface, .. } => Ok(Some(Seen { mtu: mtu(interface)?, index: None })),
            UplinkKind::Xdp { interface, .. } => {
                let (index, mtu) = xdp::look(interface)?;
                Ok(Some(Seen { mtu, index: Some(index) }))
            }
            UplinkKind::VhostUser { .. } => Ok(None),
        }
    }

    /// Under what names its files are held for the next daemon: none, if that one opens them anew. No VM's devices have such
    /// names: theirs have a dot before the first slash.
    pub fn held(&self) -> Vec<String> {
        match self {
            UplinkKind::Tap { interface, queues } => {
                (0..queues.unwrap_or(1)).map(|queue| format!("{HELD}{interface}/{queue}")).collect()
            }
            UplinkKind::VhostUser { .. } => Vec::new(),
            // Which frames a daemon had taken from its rings is known to that daemon alone.
            UplinkKind::Xdp { .. } => Vec::new(),
        }
    }

    /// Takes the files that a previous daemon left. None: it left none.
    pub fn resume(&self, found: &mut Found, mtu: Option<usize>) -> Option<Opened> {
        match self {
            UplinkKind::Tap { .. } => {
                let queues = self.held().iter().map(|name| found.take(name)).collect::<Option<Vec<_>>>()?;
                Some(Opened::Tap(TapFiles { queues, mtu: mtu? }))
            }
            UplinkKind::VhostUser { .. } => None,
            UplinkKind::Xdp { .. } => None,
        }
    }
}

/// What all those names begin with.
pub const HELD: &str = "uplink/";

impl Opened {
    /// Its files in the order of [`Opened::unpack`], and what belongs to them.
    pub fn pack(self) -> (Facts, Vec<OwnedFd>) {
        match self {
            Opened::Tap(TapFiles { queues, mtu }) => (Facts::Tap { mtu }, queues),
            Opened::VhostUser(socket) => (Facts::VhostUser, vec![socket]),
            Opened::Xdp(files) => {
                let (facts, files) = files.pack();
                (Facts::Xdp(facts), files)
            }
        }
    }

    /// Puts it together again, in the process that got `facts` and `files`. An error says what does not fit together.
    pub fn unpack(kind: &UplinkKind, facts: Facts, mut files: Vec<OwnedFd>) -> Result<Opened, String> {
        match (kind, facts) {
            (UplinkKind::Tap { queues, .. }, Facts::Tap { mtu }) => {
                match files.len() == usize::from(queues.unwrap_or(1)) {
                    true => Ok(Opened::Tap(TapFiles { queues: files, mtu })),
                    false => Err(format!("{} queues came", files.len())),
                }
            }
            (UplinkKind::VhostUser { .. }, Facts::VhostUser) => match (files.pop(), files.len()) {
                (Some(socket), 0) => Ok(Opened::VhostUser(socket)),
                _ => Err("not one socket came".into()),
            },
            (UplinkKind::Xdp { interface, queues }, Facts::Xdp(facts)) => {
                let opened = XdpFiles::unpack(&UplinkKind::xdp(interface, *queues), facts, files);
                opened.map(Opened::Xdp).map_err(|error| OpenError::from(error).to_string())
            }
            _ => Err(OpenError::Kind.to_string()),
        }
    }

    /// The files to be held for the next daemon under the names that [`UplinkKind::held`] gives.
    pub fn to_hold(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Opened::Tap(TapFiles { queues, .. }) => queues.iter().map(AsFd::as_fd).collect(),
            Opened::VhostUser(_) => Vec::new(),
            Opened::Xdp(_) => Vec::new(),
        }
    }

    /// Makes a port of it.
    pub fn connect(
        self,
        kind: &UplinkKind,
        stats: Arc<PortStats>,
    ) -> Result<(Box<dyn FramePort>, Attached), OpenError> {
        match (self, kind) {
            (Opened::Tap(files), kind) => {
                let queues = files.queues.len();
                let tap = Tap::new(&UplinkKind::tap(kind.target(), None), files, stats)?;
                let attached = Attached::Tap { watch: tap.watch()?, mtu: tap.mtu(), queues };
                Ok((Box::new(tap), attached))
            }
            (Opened::Xdp(files), kind) => {
                let (facts, queues) = (files.facts.clone(), files.queues.len());
                for advice in &facts.advice {
                    tracing::warn!(to = %kind, "{advice}");
                }
                let options = UplinkKind::xdp(kind.target(), None);
                let (port, hold) = Xdp::new(&options, files, stats)?;
                let mtu = port.mtu();
                Ok((Box::new(port), Attached::Xdp { hold, mtu, facts, queues }))
            }
            // A thread of its own makes ports of the sockets of the kind `vhost_user`.
            _ => Err(OpenError::Kind),
        }
    }
}

impl Attached {
    /// What it led to is gone for good.
    pub fn is_gone(&self) -> bool {
        match self {
            Attached::Tap { watch, .. } => is_gone(watch),
            Attached::Xdp { hold, .. } => hold.is_gone(),
            Attached::VhostUser(_) => false,
        }
    }

    /// Can the port carry packets of this length as it is?
    pub fn carries(&self, mtu: usize) -> bool {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => true,
            Attached::Xdp { facts, .. } => facts.carries(mtu),
        }
    }

    /// Is this the interface that the port has?
    pub fn is(&self, seen: &Seen) -> bool {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => true,
            Attached::Xdp { facts, .. } => seen.index == Some(facts.index),
        }
    }

    /// How frames pass, for an operator.
    pub fn how(&self) -> String {
        match self {
            Attached::Tap { queues, .. } => format!("read and write, {}", count(*queues, "queue")),
            Attached::VhostUser(_) => "memory shared with the other switch, 1 queue".into(),
            Attached::Xdp { facts, queues, .. } => format!(
                "XDP {}, {}, {}",
                if facts.native { "in the driver" } else { "generic" },
                if facts.zero_copy { "zero-copy" } else { "copy" },
                count(*queues, "queue"),
            ),
        }
    }

    /// Frames that were lost in front of the port, by reason.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => Vec::new(),
            Attached::Xdp { hold, .. } => {
                let lost = hold.lost();
                vec![
                    ("xdp_rx_dropped", lost.dropped),
                    ("xdp_rx_ring_full", lost.ring_full),
                    ("xdp_rx_no_place", lost.no_place),
                ]
            }
        }
    }

    /// The MTU that the port goes by, to be changed when the interface has another one.
    pub fn mtu(&self) -> Option<&Arc<AtomicUsize>> {
        match self {
            Attached::Tap { mtu, .. } | Attached::Xdp { mtu, .. } => Some(mtu),
            Attached::VhostUser(_) => None,
        }
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
