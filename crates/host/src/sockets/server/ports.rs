//! The host's own ports: who listens, who takes datagrams, and which one is next.

use std::collections::HashMap;

use rustix::io::Errno;
use vmlane_vsock::FIRST_FREE_PORT;
use vmlane_wire::host::PORT_ANY;

use crate::sockets::Datagrams;
use crate::sockets::inbox::Token;

/// The first of those that are given out, as Firecracker's.
const FIRST: u32 = 1 << 30;

/// See the module's text.
pub struct Ports {
    /// By port.
    pub listeners: HashMap<u32, Token>,
    pub datagrams: Datagrams,
    last: u32,
}

impl Ports {
    pub fn new(datagrams: Datagrams) -> Ports {
        // Not where a previous daemon began: guests may still hold their ends of its connections.
        let moment = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.subsec_nanos());
        Ports { listeners: HashMap::new(), datagrams, last: FIRST + moment % (1 << 29) }
    }

    /// The next one for an end of this host.
    pub fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        if self.last < FIRST_FREE_PORT || self.last == PORT_ANY {
            self.last = FIRST;
        }
        self.last
    }

    /// The port at which a program listens that wants this one, or any.
    pub fn for_listener(&mut self, wanted: u32) -> Result<u32, Errno> {
        self.free(wanted, |ports, port| ports.listeners.contains_key(&port))
    }

    /// The same for one that takes datagrams.
    pub fn for_datagrams(&mut self, wanted: u32) -> Result<u32, Errno> {
        self.free(wanted, |ports, port| ports.datagrams.lock().contains_key(&port))
    }

    /// Far more ports are given out than programs are served.
    fn free(&mut self, wanted: u32, taken: impl Fn(&Ports, u32) -> bool) -> Result<u32, Errno> {
        let any = wanted == PORT_ANY;
        let mut port = if any { self.next() } else { wanted };
        while taken(self, port) {
            if !any {
                return Err(Errno::ADDRINUSE);
            }
            port = self.next();
        }
        Ok(port)
    }
}
