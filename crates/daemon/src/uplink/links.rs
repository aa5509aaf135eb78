//! The links of uplinks: what the kernel reports of their interfaces, of which a thread notifies the switch
//! at once; and what the operator has set.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_host::uplink::{LinkEvent, LinkEvents, LinkState};
use vmlane_port::{Frames as _, PortId};
use vmlane_switch::Switch;

/// An uplink whose link is followed.
struct Followed {
    port: PortId,
    interface: String,
    /// The interface's number, while there is one. It may be renamed meanwhile.
    index: Option<u32>,
}

/// What is known of an interface.
struct Interface {
    name: String,
    up: bool,
    bridge: Option<u32>,
}

/// What is known.
#[derive(Default)]
struct Table {
    /// By number.
    interfaces: BTreeMap<u32, Interface>,
    followed: Vec<Followed>,
}

/// An uplink whose link is to be followed.
pub struct Wanted {
    pub port: PortId,
    pub interface: String,
    /// The switch is notified of it again and again, which ends what it has found out by itself.
    pub in_team: bool,
}

/// A change that is to be reported to the switch.
#[derive(Debug, PartialEq, Eq)]
struct LinkChange {
    port: PortId,
    up: bool,
    /// The interface is a port of another bridge than before.
    joined: bool,
}

impl Table {
    /// Applies an event. Returns what it means for ports.
    fn apply(&mut self, event: LinkEvent) -> Vec<LinkChange> {
        let LinkEvent { index, name, state, bridge } = event;
        // One that is out of sight is tried: it refuses frames while it is down.
        let up = matches!(state, LinkState::Up | LinkState::Moved);
        let lost = matches!(state, LinkState::Gone | LinkState::Moved);
        let before = self.interfaces.get(&index).and_then(|interface| interface.bridge);
        let joined = !lost && bridge.is_some() && bridge != before;
        let mut concerned = Vec::new();
        for one in &mut self.followed {
            if one.index == Some(index) || one.index.is_none() && one.interface == name {
                one.index = Some(index).filter(|_| !lost);
                concerned.push(LinkChange { port: one.port, up, joined });
            }
        }
        match lost {
            true => drop(self.interfaces.remove(&index)),
            false => drop(self.interfaces.insert(index, Interface { name, up, bridge })),
        }
        concerned
    }

    /// Follows these and no others. Returns whether their links are up; that of one whose interface is in
    /// another network namespace may be. Of those that were followed before it reports only those in a
    /// team.
    fn follow(&mut self, wanted: Vec<Wanted>) -> Vec<(PortId, bool)> {
        let before = std::mem::take(&mut self.followed);
        let before: HashMap<PortId, Option<u32>> = before.iter().map(|one| (one.port, one.index)).collect();
        let mut states = Vec::new();
        for Wanted { port, interface, in_team } in wanted {
            let known = before.get(&port).copied().flatten();
            let known = known.filter(|index| self.interfaces.contains_key(index));
            let named =
                || self.interfaces.iter().find(|(_, known)| known.name == interface).map(|(index, _)| *index);
            let index = known.or_else(named);
            if in_team || !before.contains_key(&port) {
                let up = |index: u32| self.interfaces.get(&index).is_some_and(|known| known.up);
                states.push((port, index.is_none_or(up)));
            }
            self.followed.push(Followed { port, interface, index });
        }
        states
    }
}

/// The thread, and what it follows. It ends with this value.
pub struct Links {
    table: Arc<Mutex<Table>>,
    /// Until the thread begins.
    events: Option<LinkEvents>,
    thread: Option<(UnixStream, JoinHandle<()>)>,
}

impl Links {
    /// Opens what a confined daemon cannot open any more.
    pub fn open() -> io::Result<Links> {
        let (events, all) = LinkEvents::open()?;
        let mut table = Table::default();
        all.into_iter().for_each(|event| drop(table.apply(event)));
        Ok(Links { table: Arc::new(Mutex::new(table)), events: Some(events), thread: None })
    }

    /// From now on `switch` is notified of changes.
    pub fn start(&mut self, switch: Arc<Switch>) -> io::Result<()> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        // Interfaces that were made meanwhile.
        while is_readable(&events) {
            events.receive()?.into_iter().for_each(|event| drop(self.table.lock().apply(event)));
        }
        let (ours, theirs) = UnixStream::pair()?;
        let table = self.table.clone();
        let listen = move || listen(events, &theirs, &table, &switch);
        let thread = std::thread::Builder::new().name("links".into()).spawn(listen)?;
        self.thread = Some((ours, thread));
        Ok(())
    }

    /// Follows the interfaces of these ports and no others, and reports the state of their links to `switch`.
    pub fn follow(&self, switch: &Switch, wanted: Vec<Wanted>) {
        // Held meanwhile, so that the switch gets events in their order. Its worker never takes it.
        let mut table = self.table.lock();
        table.follow(wanted).into_iter().for_each(|(port, up)| switch.set_carrier(port, up));
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some((ours, thread)) = self.thread.take() {
            drop(ours);
            let _ = thread.join();
        }
    }
}

/// Under what the store holds an empty file for each uplink whose link the operator set down.
pub const DOWN: &str = "uplink-down/";

pub fn held_down(name: &str) -> String {
    format!("{DOWN}{name}")
}

fn is_readable(events: &LinkEvents) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Tells the switch of changes until the other end of `over` is closed.
fn listen(mut events: LinkEvents, over: &UnixStream, table: &Mutex<Table>, switch: &Switch) {
    loop {
        let ready = {
            let mut files =
                [PollFd::new(&events, PollFlags::IN), PollFd::from_borrowed_fd(over.as_fd(), PollFlags::IN)];
            let ready = poll(&mut files, None);
            ready.map(|_| files.map(|file| !file.revents().is_empty()))
        };
        match ready {
            Ok([_, true]) => return,
            Ok([false, _]) | Err(rustix::io::Errno::INTR) => continue,
            Ok([true, _]) => {}
            Err(error) => return tracing::error!(%error, "links of uplinks are not followed any more"),
        }
        match events.receive() {
            Ok(changes) => {
                let mut table = table.lock();
                for LinkChange { port, up, joined } in
                    changes.into_iter().flat_map(|event| table.apply(event))
                {
                    switch.set_carrier(port, up);
                    if joined {
                        switch.announce(port);
                    }
                }
            }
            Err(error) => return tracing::error!(%error, "links of uplinks are not followed any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(index: u32, name: &str, state: LinkState) -> LinkEvent {
        LinkEvent { index, name: name.into(), state, bridge: None }
    }

    fn wanted(port: PortId, interface: &str, in_team: bool) -> Wanted {
        Wanted { port, interface: interface.into(), in_team }
    }

    fn applied(table: &mut Table, event: LinkEvent) -> Vec<(PortId, bool)> {
        table.apply(event).into_iter().map(|change| (change.port, change.up)).collect()
    }

    #[test]
    fn an_interface_is_followed_by_its_number_and_found_by_its_name() {
        use LinkState::{Down, Gone, Moved, Up};
        let (one, two) = (PortId(1), PortId(2));
        let mut table = Table::default();
        assert!(applied(&mut table, event(7, "up0", Up)).is_empty());
        let both = || vec![wanted(one, "up0", true), wanted(two, "up1", true)];
        assert_eq!(table.follow(both()), [(one, true), (two, true)], "the other one is not known");
        assert_eq!(applied(&mut table, event(8, "up1", Down)), [(two, false)]);
        assert_eq!(applied(&mut table, event(7, "renamed", Down)), [(one, false)]);
        assert_eq!(table.follow(both()), [(one, false), (two, false)]);
        assert_eq!(applied(&mut table, event(7, "renamed", Up)), [(one, true)]);
        assert_eq!(applied(&mut table, event(7, "renamed", Gone)), [(one, false)]);
        assert!(applied(&mut table, event(9, "stranger", Up)).is_empty());
        assert_eq!(applied(&mut table, event(10, "up0", Up)), [(one, true)], "made anew");
        assert_eq!(applied(&mut table, event(10, "up0", Down)), [(one, false)]);
        assert_eq!(applied(&mut table, event(10, "up0", Moved)), [(one, true)], "out of sight");
        assert_eq!(applied(&mut table, event(11, "up0", Up)), [(one, true)], "back");
        assert_eq!(table.follow(vec![wanted(two, "up1", true)]), [(two, false)]);
        assert!(applied(&mut table, event(11, "up0", Down)).is_empty());
    }

    #[test]
    fn an_interface_that_joins_a_bridge_is_reported_once() {
        let mut table = Table::default();
        assert_eq!(table.follow(vec![wanted(PortId(1), "up0", false)]), [(PortId(1), true)]);
        assert!(table.follow(vec![wanted(PortId(1), "up0", false)]).is_empty(), "reported before");
        let mut joined = |bridge, state| {
            let changes = table.apply(LinkEvent { bridge, ..event(7, "up0", state) });
            changes.iter().any(|change| change.joined)
        };
        assert!(!joined(None, LinkState::Up));
        assert!(joined(Some(3), LinkState::Up));
        assert!(!joined(Some(3), LinkState::Down) && !joined(Some(3), LinkState::Up));
        assert!(joined(Some(4), LinkState::Up), "another one");
        assert!(!joined(None, LinkState::Up));
        assert!(joined(Some(4), LinkState::Up), "it had left");
        assert!(!joined(Some(4), LinkState::Gone));
    }
}
