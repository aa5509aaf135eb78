//! The daemon's side of its uplink helper: a process that keeps the right to attach interfaces, which the
//! daemon gives up.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vmlane_config::UplinkConfig;

use super::error::{HelperError, UplinkError};
use super::kind::{Opened, Seen};
use super::messages::{Interface, Refusal, Reply, Request, Wish, receive, send};

/// How long an interface may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long its end may take.
const END: Duration = Duration::from_secs(1);

/// A helper. It ends with this value, or with this process.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    child: Child,
    /// The last request's.
    number: u32,
}

impl Helper {
    /// Starts this very program as a helper with the rights that this process still has.
    pub fn start(config: &Path) -> io::Result<Helper> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("vmlane").arg("uplink-helper").arg("--config").arg(config);
        // A group of its own: Ctrl-C at the daemon's terminal is for the daemon.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        let child = command.spawn()?;
        Ok(Helper { socket, child, number: 0 })
    }

    /// Has what an uplink leads to opened, which is `[[uplink]]` number `index` of the file; `make` it if
    /// there is none.
    pub fn open(&mut self, index: usize, uplink: &UplinkConfig, make: bool) -> Result<Opened, HelperError> {
        let wish = if make { Wish::Open } else { Wish::OpenIfThere };
        let (interface, files) = self.ask(index, uplink, wish)?;
        let opened = interface.opened.ok_or_else(|| HelperError::Refused("nothing came".into()))?;
        Opened::unpack(&uplink.kind, opened, files).map_err(HelperError::Refused)
    }

    /// Its interface as it is now, if it has one.
    pub fn inspect(&mut self, index: usize, uplink: &UplinkConfig) -> Result<Option<Seen>, HelperError> {
        Ok(self.ask(index, uplink, Wish::Inspect)?.0.seen)
    }

    /// Removes the socket that it has made under that number.
    pub fn remove(&mut self, made: usize, uplink: &UplinkConfig) -> Result<(), HelperError> {
        self.ask(made, uplink, Wish::Remove).map(drop)
    }

    fn ask(
        &mut self,
        index: usize,
        uplink: &UplinkConfig,
        wish: Wish,
    ) -> Result<(Interface, Vec<OwnedFd>), HelperError> {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        send(&self.socket, &Request { number, index, wish }, &[]).map_err(HelperError::Gone)?;
        let (interface, files) = loop {
            let reply = receive::<Reply>(&self.socket)
                .and_then(|reply| reply.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()));
            match reply.map_err(HelperError::Gone)? {
                // To a request that was given up.
                (reply, _) if reply.number != number => {}
                (Reply { outcome, .. }, files) => {
                    let refused = |refusal: Refusal| match refusal.missing {
                        true => HelperError::Missing(refusal.text),
                        false => HelperError::Refused(refusal.text),
                    };
                    break (outcome.map_err(refused)?, files);
                }
            }
        };
        if (&interface.name, &interface.kind) != (&uplink.name, &uplink.kind) {
            let found = format!("{:?} ({})", interface.name, interface.kind);
            return Err(HelperError::Changed { found });
        }
        Ok((interface, files))
    }
}

/// The helper as all who need it have it: the daemon's main thread, and uplinks that connect by themselves.
#[derive(Clone, Debug, Default)]
pub struct SharedHelper(Arc<Mutex<Place>>);

#[derive(Debug, Default)]
struct Place {
    helper: Option<Helper>,
    /// It does not answer, and is not asked again.
    gone: bool,
}

impl SharedHelper {
    pub fn set(&self, helper: Helper) {
        *self.0.lock() = Place { helper: Some(helper), gone: false };
    }

    /// Is there one that answers?
    pub fn is_there(&self) -> bool {
        let place = self.0.lock();
        place.helper.is_some() && !place.gone
    }

    /// Asks the helper, unless it has failed.
    pub fn ask<T>(
        &self,
        uplink: &UplinkConfig,
        ask: impl FnOnce(&mut Helper) -> Result<T, HelperError>,
    ) -> Result<T, UplinkError> {
        let name = || uplink.name.clone();
        let Place { helper, gone } = &mut *self.0.lock();
        let helper = helper.as_mut().filter(|_| !*gone);
        let answer = ask(helper.ok_or_else(|| UplinkError::NoHelper { name: name() })?);
        if let Err(HelperError::Gone(error)) = &answer {
            // It is not waited for again.
            tracing::error!(%error, "the helper that attaches interfaces does not answer: a reload can add no uplink any more");
            *gone = true;
        }
        answer.map_err(|cause| UplinkError::Helper { name: name(), cause })
    }

    /// Collects a helper that has failed. Threads that serve guests may not do that.
    pub fn collect(&self) {
        // Another thread may be waiting for its answer; a helper that does not answer is collected the next
        // time.
        let Some(mut place) = self.0.try_lock() else { return };
        if std::mem::take(&mut place.gone) {
            place.helper = None;
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It ends when nothing more can be asked; one that hangs is not waited for.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
