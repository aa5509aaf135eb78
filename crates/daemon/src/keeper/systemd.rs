//! systemd's file descriptor store: `FDSTORE=1` hands a descriptor over, `LISTEN_FDS` brings all back.
//! The unit needs `FileDescriptorStoreMax=` (`docs/survival.md`).

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vmlane_state::{Found, Store};

use crate::notify;

/// The first descriptor that systemd passes.
const FIRST: i32 = 3;

/// systemd as a store.
pub struct Systemd {
    socket: UnixDatagram,
    held: Mutex<BTreeSet<String>>,
}

/// systemd's store, if this process runs as a unit that has one, and what it held.
pub fn connect() -> Option<(Systemd, Found)> {
    let most: u32 = std::env::var("FDSTORE").ok()?.parse().ok()?;
    if most == 0 {
        return None;
    }
    let socket = notify::socket().ok()??;
    let found = passed();
    let held = Mutex::new(found.0.keys().cloned().collect());
    Some((Systemd { socket, held }, found))
}

/// What systemd passed to this process at its start, by name.
#[allow(unsafe_code)] // descriptors by number, as the protocol has them
fn passed() -> Found {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let mut found = Found::default();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return found;
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(65_536) as i32;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    for raw in FIRST..FIRST + count {
        // SAFETY: systemd passed it to this process and no other code here knows of it; this runs once.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        if let Some(name) = names.next() {
            found.0.insert(name.to_owned(), fd);
        }
    }
    found
}

impl Systemd {
    fn say(&self, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fds = fd.map(|fd| [fd]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let parts = [io::IoSlice::new(text.as_bytes())];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn forget(&self, name: &str) {
        if let Err(error) = self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None) {
            tracing::warn!(name, %error, "telling systemd to close a descriptor");
        }
    }
}

impl Store for Systemd {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        if !self.held.lock().insert(name.to_owned()) {
            self.forget(name);
        }
        // Without polling: systemd would drop an event descriptor whose other end hung up by itself.
        self.say(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(fd))
    }

    fn remove(&self, name: &str) {
        if self.held.lock().remove(name) {
            self.forget(name);
        }
    }

    fn remove_all(&self, prefix: &str) {
        let mut held = self.held.lock();
        let names: Vec<String> = held.iter().filter(|name| name.starts_with(prefix)).cloned().collect();
        for name in names {
            held.remove(&name);
            self.forget(&name);
        }
    }
}
