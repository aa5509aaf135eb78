//! What differs between the kinds of uplinks: how one is opened, how its files get from the helper to the
//! daemon, and what of it is held for the next daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vmlane_config::{MOST_QUEUES, UplinkKind};
use vmlane_host::uplink::vhost_user::{ListenError, SocketFile, SocketName};
use vmlane_host::uplink::xdp::{self, XdpError, XdpFacts, XdpFiles, XdpOptions};
use vmlane_host::uplink::{TapError, TapFiles, TapOptions, mtu, vhost_user};
use vmlane_state::Found;

const _: () = assert!(TapOptions::MOST_QUEUES == MOST_QUEUES && XdpOptions::MOST_QUEUES == MOST_QUEUES);

/// How long what an uplink leads to may be in use: the port that had it goes in its own time.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why an uplink could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{cause}{}", why(cause))]
    Tap { cause: TapError },
    #[error("vhost_user = {socket:?}: {cause}")]
    VhostUser { socket: String, cause: io::Error },
    #[error("vhost_user = {socket:?}: {cause}")]
    Listen { socket: String, cause: ListenError },
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

/// The system's error, if there was one.
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

    /// It leads to an interface that is not there, or to a socket in a directory that is not there, and may
    /// come.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            OpenError::Xdp { cause: XdpError::Missing { .. } }
                | OpenError::Listen { cause: ListenError::Missing, .. }
        )
    }
}

/// The files of an uplink, opened by a process that may do that.
pub enum Opened {
    Tap(TapFiles),
    /// A connected socket.
    VhostUser(OwnedFd),
    Listening(Listening),
    Xdp(XdpFiles),
}

/// A socket where the other switch connects.
pub struct Listening {
    pub socket: OwnedFd,
    pub name: SocketName,
    /// By what number the helper knows it, if that has made it.
    pub of_helper: Option<usize>,
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
    /// Its file, and by what number the helper knows it.
    Listening {
        number: usize,
        file: SocketFile,
    },
    Xdp(XdpFacts),
}

pub fn xdp_options(interface: &str, queues: Option<u16>) -> XdpOptions {
    XdpOptions { name: interface.to_owned(), queues }
}

pub fn tap_options(interface: &str, queues: Option<u16>) -> TapOptions {
    TapOptions { name: interface.to_owned(), queues }
}

/// Opens what the uplink leads to; `make` it if there is none.
pub fn open(kind: &UplinkKind, make: bool) -> Result<Opened, OpenError> {
    match kind {
        UplinkKind::Tap { interface, queues, .. } => {
            if !make {
                mtu(interface)?;
            }
            Ok(Opened::Tap(TapFiles::open(&tap_options(interface, *queues))?))
        }
        UplinkKind::VhostUser { socket, listens: Some(listens), .. } => {
            let (socket, name) = vhost_user::listen(Path::new(socket), listens.owner)
                .map_err(|cause| OpenError::Listen { socket: socket.clone(), cause })?;
            Ok(Opened::Listening(Listening { socket, name, of_helper: None }))
        }
        UplinkKind::VhostUser { socket, listens: None, .. } => {
            let failed = |cause| OpenError::VhostUser { socket: socket.clone(), cause };
            Ok(Opened::VhostUser(vhost_user::connect(Path::new(socket)).map_err(failed)?))
        }
        UplinkKind::Xdp { interface, queues } => {
            Ok(Opened::Xdp(XdpFiles::open(&xdp_options(interface, *queues))?))
        }
    }
}

/// The same, and waits for a moment while it is in use.
pub fn open_patiently(kind: &UplinkKind, make: bool) -> Result<Opened, OpenError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match open(kind, make) {
            Err(error) if error.is_busy() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Its interface as it is now; None: it has none that could change.
pub fn inspect(kind: &UplinkKind) -> Result<Option<Seen>, OpenError> {
    match kind {
        UplinkKind::Tap { interface, .. } => Ok(Some(Seen { mtu: mtu(interface)?, index: None })),
        UplinkKind::Xdp { interface, .. } => {
            let (index, mtu) = xdp::index_and_mtu(interface)?;
            Ok(Some(Seen { mtu, index: Some(index) }))
        }
        UplinkKind::VhostUser { .. } => Ok(None),
    }
}

/// Under what names its files are held for the next daemon: none, if that one opens them anew. No VM's
/// devices have such names: theirs have a dot before the first slash.
pub fn held(kind: &UplinkKind) -> Vec<String> {
    match kind {
        UplinkKind::Tap { interface, queues, .. } => {
            (0..queues.unwrap_or(1)).map(|queue| format!("{HELD}{interface}/{queue}")).collect()
        }
        UplinkKind::VhostUser { .. } => Vec::new(),
        // Which frames a daemon had taken from its rings is known to that daemon alone.
        UplinkKind::Xdp { .. } => Vec::new(),
    }
}

/// Takes the files that a previous daemon left. None: it left none.
pub fn resume(kind: &UplinkKind, found: &mut Found, mtu: Option<usize>) -> Option<Opened> {
    match kind {
        UplinkKind::Tap { .. } => {
            let queues = held(kind).iter().map(|name| found.take(name)).collect::<Option<Vec<_>>>()?;
            Some(Opened::Tap(TapFiles { queues, mtu: mtu? }))
        }
        UplinkKind::VhostUser { .. } => None,
        UplinkKind::Xdp { .. } => None,
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
            Opened::Listening(Listening { socket, name: SocketName { file, .. }, of_helper }) => {
                let number = of_helper.unwrap_or_default();
                (Facts::Listening { number, file }, vec![socket])
            }
            Opened::Xdp(files) => {
                let (facts, files) = files.pack();
                (Facts::Xdp(facts), files)
            }
        }
    }

    /// Puts it together again, in the process that got `facts` and `files`. An error names what does not fit
    /// together.
    pub fn unpack(kind: &UplinkKind, facts: Facts, mut files: Vec<OwnedFd>) -> Result<Opened, String> {
        match (kind, facts) {
            (UplinkKind::Tap { queues, .. }, Facts::Tap { mtu }) => {
                match files.len() == usize::from(queues.unwrap_or(1)) {
                    true => Ok(Opened::Tap(TapFiles { queues: files, mtu })),
                    false => Err(format!("{} queues came", files.len())),
                }
            }
            (UplinkKind::VhostUser { listens: None, .. }, Facts::VhostUser) => {
                Ok(Opened::VhostUser(only(&mut files)?))
            }
            (
                UplinkKind::VhostUser { socket: path, listens: Some(_), .. },
                Facts::Listening { number, file },
            ) => {
                let (socket, path) = (only(&mut files)?, path.into());
                let name = SocketName { path, file };
                Ok(Opened::Listening(Listening { socket, name, of_helper: Some(number) }))
            }
            (UplinkKind::Xdp { interface, queues }, Facts::Xdp(facts)) => {
                let opened = XdpFiles::unpack(&xdp_options(interface, *queues), facts, files);
                opened.map(Opened::Xdp).map_err(|error| OpenError::from(error).to_string())
            }
            _ => Err(OpenError::Kind.to_string()),
        }
    }

    /// The files to be held for the next daemon under the names that [`held`] gives.
    pub fn to_hold(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Opened::Tap(TapFiles { queues, .. }) => queues.iter().map(AsFd::as_fd).collect(),
            Opened::VhostUser(_) => Vec::new(),
            // The next daemon makes it anew: the other switch connects again by itself.
            Opened::Listening(_) => Vec::new(),
            Opened::Xdp(_) => Vec::new(),
        }
    }
}

/// The one socket that came.
fn only(files: &mut Vec<OwnedFd>) -> Result<OwnedFd, String> {
    match (files.pop(), files.len()) {
        (Some(socket), 0) => Ok(socket),
        _ => Err("not one socket came".into()),
    }
}
