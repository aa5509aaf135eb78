//! The links of uplinks: what the kernel says of their interfaces, of which a thread tells the switch at once; and what the
//! operator says.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_host::uplink::{LinkEvent, LinkEvents, LinkState};
use vmlane_port::PortId;
use vmlane_state::{Found, Store};
use vmlane_switch::Switch;

use super::{Uplink, Uplinks};
use crate::config::UplinkConfig;

/// An uplink whose link is followed.
struct Followed {
    port: PortId,
    interface: String,
    /// The interface's number, while there is one. It may be renamed meanwhile.
    index: Option<u32>,
}

/// What is known.
#[derive(Default)]
struct Table {
    /// By number: the name, and whether its link is up.
    interfaces: BTreeMap<u32, (String, bool)>,
    followed: Vec<Followed>,
}

impl Table {
    /// Takes in news. Returns the ports that they concern, and whether their links are up.
    fn hear(&mut self, event: LinkEvent) -> Vec<(PortId, bool)> {
        let LinkEvent { index, name, state } = event;
        // One that is out of sight is tried: it refuses frames while it is down.
        let up = matches!(state, LinkState::Up | LinkState::Moved);
        let lost = matches!(state, LinkState::Gone | LinkState::Moved);
        let mut concerned = Vec::new();
        for one in &mut self.followed {
            if one.index == Some(index) || one.index.is_none() && one.interface == name {
                one.index = Some(index).filter(|_| !lost);
                concerned.push((one.port, up));
            }
        }
        match lost {
            true => drop(self.interfaces.remove(&index)),
            false => drop(self.interfaces.insert(index, (name, up))),
        }
        concerned
    }

    /// Follows these and no others. Returns whether their links are up; that of one whose interface is in another network
    /// namespace may be.
    fn follow(&mut self, wanted: Vec<(PortId, String)>) -> Vec<(PortId, bool)> {
        let before = std::mem::take(&mut self.followed);
        for (port, interface) in wanted {
            let known = before.iter().find(|one| one.port == port).and_then(|one| one.index);
            let known = known.filter(|index| self.interfaces.contains_key(index));
            let named =
                || self.interfaces.iter().find(|(_, (name, _))| *name == interface).map(|(index, _)| *index);
            let index = known.or_else(named);
            self.followed.push(Followed { port, interface, index });
        }
        let up = |index: u32| self.interfaces.get(&index).is_some_and(|(_, up)| *up);
        self.followed.iter().map(|one| (one.port, one.index.is_none_or(up))).collect()
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
        all.into_iter().for_each(|event| drop(table.hear(event)));
        Ok(Links { table: Arc::new(Mutex::new(table)), events: Some(events), thread: None })
    }

    /// From now on `switch` is told of changes.
    pub fn start(&mut self, switch: Arc<Switch>) -> io::Result<()> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        // Interfaces that were made meanwhile.
        while is_readable(&events) {
            events.news()?.into_iter().for_each(|event| drop(self.table.lock().hear(event)));
        }
        let (ours, theirs) = UnixStream::pair()?;
        let table = self.table.clone();
        let listen = move || listen(events, &theirs, &table, &switch);
        let thread = std::thread::Builder::new().name("links".into()).spawn(listen)?;
        self.thread = Some((ours, thread));
        Ok(())
    }

    /// Follows the interfaces of these ports and no others, and tells `switch` how their links are.
    pub fn follow(&self, switch: &Switch, wanted: Vec<(PortId, String)>) {
        // Held meanwhile, so that the switch hears things in their order. Its worker never takes it.
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

fn held_down(name: &str) -> String {
    format!("{DOWN}{name}")
}

impl Uplinks {
    /// Tells `switch` of links that change, from now on.
    pub fn follow_links(&mut self, switch: &Arc<Switch>) {
        if let Some(Err(error)) = self.links.as_mut().map(|links| links.start(switch.clone())) {
            tracing::error!(%error, "no thread that follows the links of uplinks");
        }
    }

    /// How the links of teams' uplinks are. What the switch has found out by itself (a frame was refused) ends with that.
    pub fn tell_links(&self, switch: &Switch) {
        let Some(links) = &self.links else { return };
        let in_team = |known: &&Uplink| {
            self.teams.iter().any(|team| team.members().any(|name| *name == known.config.name))
        };
        let followed = self.known.iter().filter(in_team);
        let interface = |known: &Uplink| Some((known.port, known.config.kind.interface()?.to_owned()));
        links.follow(switch, followed.filter_map(interface).collect());
    }

    /// Takes in what the operator said to a previous daemon.
    pub fn resume_down(&mut self, found: &mut Found) {
        let names: Vec<String> = found.0.keys().filter(|name| name.starts_with(DOWN)).cloned().collect();
        for name in names {
            drop(found.take(&name));
            self.down.extend(name.strip_prefix(DOWN).map(str::to_owned));
        }
    }

    /// What the operator said of uplinks that there are no more is forgotten.
    pub fn forget_down(&mut self, wanted: &[UplinkConfig]) {
        let store = &self.store;
        self.down.retain(|name| {
            let stays = wanted.iter().any(|uplink| uplink.name == *name);
            if !stays {
                store.iter().for_each(|store| store.remove(&held_down(name)));
            }
            stays
        });
    }

    /// Sets an uplink's link up or down, also for the next daemon. False: there is none of that name.
    pub fn set_link(&mut self, switch: &Switch, name: &str, up: bool) -> bool {
        let Some(known) = self.known.iter().find(|known| known.config.name == name) else { return false };
        if up {
            self.down.remove(name);
            self.store.iter().for_each(|store| store.remove(&held_down(name)));
        } else {
            self.down.insert(name.to_owned());
            let hold = |store: &Arc<dyn Store>| {
                vmlane_mem::memfd("down", 1).and_then(|file| store.put(&held_down(name), file.as_fd()))
            };
            if let Some(Err(error)) = self.store.as_ref().map(hold) {
                tracing::warn!(uplink = name, %error, "the link will be up again after the daemon's end");
            }
        }
        switch.set_link(known.port, up)
    }

    /// Names of all uplinks, for messages.
    pub fn names(&self) -> String {
        match &self.known[..] {
            [] => "none".into(),
            known => known.iter().map(|one| one.config.name.as_str()).collect::<Vec<_>>().join(", "),
        }
    }
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
        match events.news() {
            Ok(news) => {
                let mut table = table.lock();
                for event in news {
                    let concerned = table.hear(event);
                    concerned.into_iter().for_each(|(port, up)| switch.set_carrier(port, up));
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
        LinkEvent { index, name: name.into(), state }
    }

    #[test]
    fn an_interface_is_followed_by_its_number_and_found_by_its_name() {
        use LinkState::{Down, Gone, Moved, Up};
        let (one, two) = (PortId(1), PortId(2));
        let mut table = Table::default();
        assert!(table.hear(event(7, "up0", Up)).is_empty());
        let wanted = || vec![(one, "up0".to_owned()), (two, "up1".to_owned())];
        assert_eq!(table.follow(wanted()), [(one, true), (two, true)], "the other one is not known");
        assert_eq!(table.hear(event(8, "up1", Down)), [(two, false)]);
        assert_eq!(table.hear(event(7, "renamed", Down)), [(one, false)]);
        assert_eq!(table.follow(wanted()), [(one, false), (two, false)]);
        assert_eq!(table.hear(event(7, "renamed", Up)), [(one, true)]);
        assert_eq!(table.hear(event(7, "renamed", Gone)), [(one, false)]);
        assert!(table.hear(event(9, "stranger", Up)).is_empty());
        assert_eq!(table.hear(event(10, "up0", Up)), [(one, true)], "made anew");
        assert_eq!(table.hear(event(10, "up0", Down)), [(one, false)]);
        assert_eq!(table.hear(event(10, "up0", Moved)), [(one, true)], "out of sight");
        assert_eq!(table.hear(event(11, "up0", Up)), [(one, true)], "back");
        assert_eq!(table.follow(vec![(two, "up1".into())]), [(two, false)]);
        assert!(table.hear(event(11, "up0", Down)).is_empty());
    }
}
