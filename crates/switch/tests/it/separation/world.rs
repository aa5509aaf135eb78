//! Ports of a real switch beside the model of them: frames between them are followed until none is on its
//! way, and then compared.
//!
//! A window begins and ends when nothing moves. In it, the ports may change: a frame follows the rules that
//! were in force when it was sent, or later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vmlane_guestsim::memory_port::{Received, Wire};
use vmlane_port::{Filter, Frames, Offload, PortId, VlanSet};
use vmlane_stats::Counters;
use vmlane_switch::{PortSpec, Settings, Switch, Traffic, VlanMode, Worker};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::Tci;

use super::model::{self, Behind, Frame, Learned, Place, Port, Seen, Untagged, Vlans};

/// Frames that one port has memory for. Of those of one sender, half may wait for a port that goes to another
/// worker.
const ROOM: usize = 48;
/// Rounds after which all that was asked of workers is done.
const ROUNDS: usize = 4;

/// Who gives the workers their rounds.
enum Rounds {
    /// The test: each step's bits choose the next worker.
    ByHand(Vec<Worker>),
    /// Their threads.
    Threads,
}

/// A port of the switch.
struct Real {
    id: PortId,
    /// Those of this window; the last one is attached, if the port is.
    wires: Vec<Wire>,
}

struct Sent {
    sender: usize,
    /// How many changes there were before it.
    state: usize,
    frame: Option<Untagged>,
    /// A port went to another worker meanwhile: of a frame to several, or one that others watch, a port may
    /// miss it, or get it twice.
    workers_changed: bool,
}

/// Who may get a frame with which tags, and who has to.
#[derive(Debug, Default)]
struct Expected {
    may: BTreeMap<usize, Vec<Option<Tci>>>,
    must: BTreeSet<usize>,
    loose: bool,
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub frames: u64,
    pub deliveries: u64,
    /// Those of them that were certain.
    pub certain: u64,
}

impl Counts {
    pub fn and(self, more: Counts) -> Counts {
        Counts {
            frames: self.frames + more.frames,
            deliveries: self.deliveries + more.deliveries,
            certain: self.certain + more.certain,
        }
    }
}

pub struct World {
    switch: Switch,
    rounds: Rounds,
    ports: Vec<Real>,
    /// The ports as they were, oldest first.
    states: Vec<Vec<Port>>,
    /// Whose frames were dropped before a state.
    disturbed: Vec<(usize, usize)>,
    sent: Vec<Sent>,
    /// The number of the first frame of the window.
    first: u32,
    learned: Learned,
    pub counts: Counts,
}

fn spec(number: usize, port: &Port) -> PortSpec {
    let (switch, group) = match port.place {
        Place::Switch { number, group } => (format!("switch-{number}"), format!("group-{group}")),
        Place::Wire(number) => (format!("wire:{number}"), "-".into()),
    };
    PortSpec {
        name: format!("vm-{}/nic{number}", number / 2),
        group,
        switch,
        mac: port.own,
        vlan: match &port.vlans {
            Vlans::None => VlanMode::Untagged,
            Vlans::Access(own) => VlanMode::Access(*own),
            Vlans::Trunk(list) => {
                let mut set = VlanSet::none();
                list.iter().for_each(|vlan| set.insert(*vlan));
                VlanMode::Trunk(set)
            }
            Vlans::All => VlanMode::Trunk(VlanSet::all()),
        },
        policy: port.policy,
        traffic: Traffic::default(),
        uplink: port.uplink,
        direct: matches!(port.place, Place::Wire(_)),
        notify: false,
    }
}

impl World {
    /// `frames`: how many an owner may send in a round.
    pub fn new(ports: Vec<Port>, frames: u32, threads: bool) -> World {
        let settings = Settings {
            workers: 2,
            frames,
            // No one waits for what changes cost, and nothing becomes too old.
            bytes: usize::MAX / 2,
            hold: Duration::from_secs(3600),
            few: usize::MAX,
            ..Settings::default()
        };
        let (switch, rounds) = if threads {
            (Switch::start(settings).expect("threads to spare"), Rounds::Threads)
        } else {
            let (switch, workers) = Switch::unstarted_workers(settings);
            (switch, Rounds::ByHand(workers))
        };
        let add = |(number, port): (usize, &Port)| {
            let id = switch.add_port(spec(number, port)).expect("a switch with room");
            Real { id, wires: Vec::new() }
        };
        let real = ports.iter().enumerate().map(add).collect();
        let count = ports.len();
        let mut world = World {
            switch,
            rounds,
            ports: real,
            states: vec![ports],
            disturbed: Vec::new(),
            sent: Vec::new(),
            first: 0,
            learned: Learned::default(),
            counts: Counts::default(),
        };
        (0..count).for_each(|at| world.plug(at));
        world.carry_out(0);
        world
    }

    /// The ports as they are.
    pub fn now(&self) -> &[Port] {
        self.states.last().expect("one at least")
    }

    /// A step of one worker for each of so many bits.
    pub fn step(&mut self, count: usize, order: u64) {
        let Rounds::ByHand(workers) = &mut self.rounds else { return };
        for at in 0..count {
            let number = (order >> (at % 64)) as usize % workers.len();
            assert!(workers[number].step(), "it was not asked to stop");
        }
    }

    /// What was asked is done, some frames are on their way still.
    fn carry_out(&mut self, order: u64) {
        for at in 0..ROUNDS {
            // Each has a step, one of them first.
            let first = order >> (at % 64) & 1;
            self.step(2, first | (1 - first) << 1);
        }
    }

    /// Something else is attached to a port.
    fn plug(&mut self, at: usize) {
        let port = &self.now()[at];
        let (wire, end) = Wire::small(port.own, ROOM);
        let filter = port.filter.clone();
        wire.change_filter(|kept| *kept = filter);
        let id = self.ports[at].id;
        self.switch.attach(id, end);
        self.switch.refresh(id);
        self.ports[at].wires.push(wire);
    }

    /// A port changes while frames are on their way. `order`: that of the workers meanwhile.
    fn change(&mut self, at: usize, order: u64, change: impl FnOnce(&mut Port)) {
        let mut next = self.now().to_vec();
        change(&mut next[at]);
        self.states.push(next);
        self.carry_out(order);
    }

    /// The same, and what waits from and for it is dropped, what was learned behind it forgotten.
    fn disturb(&mut self, at: usize, order: u64, change: impl FnOnce(&mut Port)) {
        self.disturbed.push((self.states.len(), at));
        self.change(at, order, change);
    }

    /// The operator changes a port.
    pub fn update(&mut self, at: usize, port: Port, order: u64) {
        assert!(self.switch.update_port(self.ports[at].id, spec(at, &port)));
        self.disturb(at, order, |known| {
            *known = Port { attached: known.attached, filter: known.filter.clone(), ..port };
        });
    }

    /// Its guest changes what it wants to get.
    pub fn filter(&mut self, at: usize, filter: Filter, order: u64) {
        if self.now()[at].attached {
            self.ports[at].wires.last().expect("its wire").change_filter(|kept| *kept = filter.clone());
            self.switch.refresh(self.ports[at].id);
        }
        self.change(at, order, |port| port.filter = filter);
    }

    /// A guest leaves, or comes.
    pub fn unplug_or_plug(&mut self, at: usize, order: u64) {
        let attached = self.now()[at].attached;
        if attached {
            self.switch.detach(self.ports[at].id);
        } else {
            self.plug(at);
        }
        self.disturb(at, order, |port| port.attached = !attached);
        assert!(!attached || self.ports[at].wires.iter().all(Wire::dropped));
    }

    /// A port is removed, and made again.
    pub fn replace(&mut self, at: usize, order: u64) {
        let attached = self.now()[at].attached;
        assert!(self.switch.remove_port(self.ports[at].id));
        self.disturb(at, order, |port| port.attached = false);
        self.ports[at].id = self.switch.add_port(spec(at, &self.now()[at])).expect("its place is free");
        if attached {
            self.plug(at);
        }
        self.disturb(at, order, |port| port.attached = attached);
    }

    /// A port goes to the other worker, if it may.
    pub fn move_to_other_worker(&mut self, at: usize, order: u64) {
        let id = self.ports[at].id;
        let views = self.switch.ports();
        let to = 1 - views.iter().find(|view| view.id == id).expect("it is listed").worker;
        self.sent.iter_mut().for_each(|sent| sent.workers_changed = true);
        if let Rounds::Threads = self.rounds {
            self.switch.move_port(id, to);
            return;
        }
        let Some(mut moving) = self.switch.begin_move(id, to) else { return };
        while moving.advance(&self.switch).is_none() {
            self.carry_out(order);
        }
        self.carry_out(order);
    }

    /// The number that the next frame carries.
    pub fn number(&self) -> u32 {
        self.first + self.sent.len() as u32
    }

    /// Are as many frames on their way as may wait?
    pub fn is_full(&self) -> bool {
        self.sent.len() >= ROOM / 2
    }

    /// A guest sends a frame, which ends with its number unless it is too short to be one.
    pub fn send(&mut self, sender: usize, frame: &Frame) {
        if !self.now()[sender].attached {
            return;
        }
        let wire = self.ports[sender].wires.last().expect("its wire");
        wire.send(&frame.bytes, Offload::None, frame.beside);
        self.switch.kick(self.ports[sender].id);
        let (state, frame) = (self.states.len() - 1, frame.untagged());
        self.sent.push(Sent { sender, state, frame, workers_changed: false });
    }

    fn is_at_rest(&self) -> bool {
        let attached = self.ports.iter().zip(self.now()).filter(|(_, port)| port.attached);
        let mut wires = attached.filter_map(|(real, _)| real.wires.last());
        wires.all(|wire| wire.queued() + wire.outstanding() == 0)
    }

    /// All workers have had some rounds since all senders had their frames back.
    fn wait_for_rest(&mut self) {
        let count = || self.switch.heartbeats().map(|beat| beat.read().rounds).collect::<Vec<_>>();
        if let Rounds::Threads = self.rounds {
            let kick = || self.ports.iter().for_each(|real| self.switch.kick(real.id));
            wait_until("all frames are finished", || {
                kick();
                self.is_at_rest()
            });
            let before = count();
            wait_until("rounds of all workers", || {
                kick();
                count().iter().zip(&before).all(|(now, before)| *now >= before + ROUNDS as u64)
            });
            return;
        }
        let mut idle = 0;
        for _ in 0..10_000 {
            self.step(2, 0b10);
            let Rounds::ByHand(workers) = &self.rounds else { return };
            idle = if workers.iter().any(Worker::moved) { 0 } else { idle + 1 };
            if idle > ROUNDS && self.is_at_rest() {
                return;
            }
        }
        panic!("frames never come to rest");
    }

    /// The window ends: each port got what it had to get, and nothing that it must not.
    pub fn end_window(&mut self) -> Result<(), String> {
        self.wait_for_rest();
        let mut got: BTreeMap<(usize, usize), Vec<Received>> = BTreeMap::new();
        for at in 0..self.ports.len() {
            self.collect(at, &mut got)?;
        }
        let (during, after) = self.learn();
        for (number, sent) in self.sent.iter().enumerate() {
            let expected = self.expected(sent, &during);
            self.counts.frames += 1;
            self.counts.deliveries += expected.may.len() as u64;
            self.counts.certain += expected.must.len() as u64;
            for at in 0..self.ports.len() {
                let received = got.remove(&(number, at)).unwrap_or_default();
                compare(sent, at, &expected, &received).map_err(|fault| {
                    let Sent { sender, frame, .. } = sent;
                    let drops = [*sender, at].map(|port| self.drops(port));
                    format!(
                        "{fault}\n  frame {number} of port {sender}: {frame:?}\n  {expected:?}\n  {drops:?}"
                    )
                })?;
            }
        }
        self.first = self.number();
        self.sent.clear();
        self.disturbed.clear();
        self.states.drain(..self.states.len() - 1);
        self.learned = after;
        Ok(())
    }

    /// What a port has lost, and why.
    fn drops(&self, at: usize) -> Vec<(&'static str, u64)> {
        let all = self.switch.stats(self.ports[at].id).snapshot();
        all.into_iter().filter(|(name, count)| name.starts_with("drop_") && *count > 0).collect()
    }

    /// Takes what a port got: by number of the frame in this window, and port.
    fn collect(
        &mut self,
        at: usize,
        got: &mut BTreeMap<(usize, usize), Vec<Received>>,
    ) -> Result<(), String> {
        let attached = self.now()[at].attached;
        let wires = &mut self.ports[at].wires;
        let mut last = BTreeMap::new();
        for received in wires.iter().flat_map(Wire::received) {
            let number = received.bytes.last_chunk().map(|number| u32::from_be_bytes(*number));
            let index = number.and_then(|number| number.checked_sub(self.first)).map(|index| index as usize);
            let known = index.and_then(|index| Some((index, self.sent.get(index)?)));
            let Some((index, sent)) = known else {
                return Err(format!("port {at} got what no one sent: {received:?}"));
            };
            let before = last.insert(sent.sender, index).filter(|_| !sent.workers_changed);
            if before.is_some_and(|before| before > index) {
                return Err(format!("port {at} got frame {index} of port {} late", sent.sender));
            }
            got.entry((index, at)).or_default().push(received);
        }
        wires.drain(..wires.len() - usize::from(attached));
        Ok(())
    }

    /// What was learned while frames were on their way, and what is after all of them.
    fn learn(&self) -> (Learned, Learned) {
        let mut of: BTreeMap<Seen, (BTreeSet<usize>, bool)> = BTreeMap::new();
        for sent in &self.sent {
            let Some(frame) = &sent.frame else { continue };
            let seen =
                self.states[sent.state..].iter().map(|ports| model::learned(ports, sent.sender, frame));
            let seen: BTreeSet<_> = seen.collect();
            for address in seen.iter().flatten() {
                let (senders, certain) = of.entry(*address).or_insert((BTreeSet::new(), true));
                senders.insert(sent.sender);
                *certain &= seen.len() == 1;
            }
        }
        let changed: BTreeSet<usize> = self.disturbed.iter().map(|(_, port)| *port).collect();
        let (mut during, mut after) = (self.learned.clone(), self.learned.clone());
        for &port in &changed {
            after.forget(port, |seen| of.get(seen).is_none_or(|(senders, _)| !senders.contains(&port)));
        }
        let forget = |during: &mut Learned| changed.iter().for_each(|port| during.forget(*port, |_| false));
        forget(&mut during);
        of.iter().for_each(|(seen, (senders, _))| during.add(self.now(), *seen, senders));
        // Also what was learned meanwhile.
        forget(&mut during);
        for (seen, (senders, certain)) in of {
            let touched = self.learned.behind(&seen).into_iter().flatten().chain(senders.iter().copied());
            match senders.first() {
                Some(&one) if senders.len() == 1 && certain && changed.is_disjoint(&touched.collect()) => {
                    after.set(self.now(), seen, one);
                }
                _ => after.copy(&during, seen),
            }
        }
        (during, after)
    }

    /// Is it for the address of one port, and does no other one get it?
    fn has_one_receiver(&self, frame: &Untagged, expected: &Expected) -> bool {
        let has = |at: &usize| self.states.iter().all(|ports| model::has(ports, *at, frame.to));
        expected.may.len() == 1 && expected.may.keys().all(has)
    }

    fn expected(&self, sent: &Sent, learned: &Learned) -> Expected {
        let mut expected = Expected::default();
        let Some(frame) = &sent.frame else { return expected };
        let mut first = true;
        for ports in &self.states[sent.state..] {
            for behind in behind(ports, sent.sender, frame, learned) {
                let receivers = model::receivers(ports, sent.sender, frame, behind);
                let get = receivers.keys().copied().collect();
                expected.must = if first { get } else { &expected.must & &get };
                first = false;
                receivers.into_iter().for_each(|(at, tag)| {
                    expected.may.entry(at).or_default().push(tag);
                });
            }
        }
        expected.loose = sent.workers_changed && !self.has_one_receiver(frame, &expected);
        let disturbed =
            |at: usize| self.disturbed.iter().any(|(state, who)| *who == at && *state > sent.state);
        let certain = !expected.loose && !disturbed(sent.sender);
        expected.must.retain(|&at| certain && !disturbed(at));
        expected
    }
}

/// Behind which ports the destination of a frame may have been seen when it is found.
fn behind(ports: &[Port], sender: usize, frame: &Untagged, learned: &Learned) -> Behind {
    let Some(to) = model::destination(ports, sender, frame) else { return Behind::from([None]) };
    let mut behind = learned.behind(&to);
    if behind.len() > 1 && behind.contains(&Some(sender)) {
        // Seen there perhaps from a later frame: then a worker to which it is handed over takes it for
        // unknown.
        behind.insert(None);
    }
    let own = model::learned(ports, sender, frame) == Some(to);
    if own { Learned::moved(ports, &behind, sender) } else { behind }
}

/// What one port got of one frame.
fn compare(sent: &Sent, at: usize, expected: &Expected, received: &[Received]) -> Result<(), String> {
    let most = 1 + usize::from(expected.loose);
    if received.len() > most {
        return Err(format!("port {at} got it {} times", received.len()));
    }
    if received.is_empty() && expected.must.contains(&at) {
        return Err(format!("port {at} did not get it"));
    }
    for one in received {
        let may = expected.may.get(&at).is_some_and(|tags| tags.contains(&one.tag));
        if !may {
            return Err(format!("port {at} got it with tag {:?}", one.tag));
        }
        if sent.frame.as_ref().is_none_or(|frame| frame.bytes != one.bytes) {
            return Err(format!("port {at} got other bytes: {:?}", one.bytes));
        }
    }
    Ok(())
}
