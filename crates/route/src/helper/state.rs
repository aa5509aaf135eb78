//! What the helper knows, and the steps of which everything in it is made.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use vmlane_port::{Budget, Distinct, LogLimit};
use vmlane_wire::route::Refusal;
use vmlane_worker::Policy;

use crate::admission::Admission;
use crate::buffer::Buffer;
use crate::daemon::Line;
use crate::frame::Frame;
use crate::link::{Link, Token};
use crate::settings::Settings;
use crate::status::{PeerState, Status};
use crate::stream::Stream;
use crate::tls::Identity;

pub(super) const CONTROL: Token = 0;
pub(super) const LISTENER: Token = 1;
pub(super) const LINE: Token = 2;
pub(super) const FIRST: Token = 3;
/// In a stream's token: its program's socket, not the daemon's.
pub(super) const PROGRAM: Token = 1 << 63;

/// How far a stream has come.
pub(super) enum Stage {
    /// The peer was asked, on behalf of the daemon's call of this number.
    Calling(u64),
    /// The daemon was asked for a ring; `accepts`: for a call of its own, which the peer has accepted. What
    /// the peer sent meanwhile.
    Asking {
        socket: OwnedFd,
        accepts: bool,
        early: Vec<Frame>,
    },
    Streaming(Box<Stream>),
}

/// One stream.
pub(super) struct Entry {
    pub(super) link: Token,
    pub(super) number: u32,
    pub(super) stage: Stage,
}

/// Limits on lines that strangers, programs and peers can cause.
#[derive(Default)]
pub(super) struct Logs {
    pub(super) accepting: LogLimit,
    pub(super) strangers: LogLimit,
    pub(super) rings: LogLimit,
}

/// Reads the configuration.
pub type Load = Box<dyn FnMut() -> Result<Settings, String> + Send>;

/// See the page above.
pub struct Helper {
    pub(super) settings: Settings,
    pub(super) load: Load,
    pub(super) identity: Identity,
    pub(super) epoll: Arc<OwnedFd>,
    pub(super) control: OwnedFd,
    pub(super) listener: Option<OwnedFd>,
    /// Accepting has failed: it is tried again at the next tick.
    pub(super) accepts_later: bool,
    pub(super) line: Line,
    pub(super) links: HashMap<Token, Link>,
    /// What windows of all streams may take.
    pub(super) windows: Arc<Budget>,
    /// Connections that have not proved a name.
    pub(super) unproved: Admission,
    pub(super) entries: HashMap<Token, Entry>,
    /// Calls of the daemon's that a peer was asked for.
    pub(super) calls: HashMap<u64, Token>,
    pub(super) peers: BTreeMap<String, PeerState>,
    /// Of connections that proved no peer's name.
    pub(super) strangers: Status,
    pub(super) strangers_reported: Option<Status>,
    /// What is read goes here where the link it is read from holds nothing: a thousand links that are silent
    /// hold no memory.
    pub(super) spare: Buffer,
    /// Links that have something to do.
    pub(super) busy: Distinct<Token>,
    pub(super) logs: Logs,
    pub(super) last: Token,
    pub(super) ticked: Instant,
    pub(super) policy: Policy,
}

impl Helper {
    pub(super) fn watch(&self, socket: impl AsFd, token: Token, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    pub(super) fn token(&mut self) -> Token {
        self.last += 1;
        self.last
    }

    /// A stream has its turn once its link has.
    pub(super) fn wake(&mut self, link: Token, stream: Token) {
        if let Some(link) = self.links.get_mut(&link) {
            link.lane.ready.push(stream);
            let token = link.lane.token;
            self.again(token);
        }
    }

    /// A link has something to do.
    pub(super) fn again(&mut self, link: Token) {
        self.busy.push(link);
    }

    /// Drops a stream; its peer gets `notice`, if there is one.
    pub(super) fn drop_stream(&mut self, token: Token, notice: Option<&dyn Fn(u32) -> Frame>) {
        let Some(entry) = self.entries.remove(&token) else { return };
        if let Stage::Calling(number) = entry.stage {
            self.calls.remove(&number);
        }
        if let Some(link) = self.links.get_mut(&entry.link) {
            link.lane.forget(entry.number);
            if let Some(notice) = notice {
                link.lane.queue(&notice(entry.number));
                self.again(entry.link);
            }
        }
    }
}

/// The reason for a peer, and for the daemon. An error may have no number: that of a daemon that has ended,
/// for one.
pub(super) fn refusal(error: &io::Error) -> Refusal {
    match Errno::from_io_error(error) {
        Some(Errno::TIMEDOUT) => Refusal::Gone,
        Some(Errno::NODEV) => Refusal::Absent,
        Some(Errno::ACCESS) => Refusal::Forbidden,
        Some(Errno::NOBUFS | Errno::AGAIN) => Refusal::Full,
        _ => Refusal::Refused,
    }
}
