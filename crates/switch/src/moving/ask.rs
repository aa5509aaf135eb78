//! The steps of a port's way to another worker, as another thread asks for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vmlane_port::PortId;

use crate::queue::{Leaving, Request, Step};
use crate::switch::Switch;

/// How often it is checked whether nothing of the port is on the way.
const CHECKS: u32 = 20;
/// Between two checks.
const PAUSE: Duration = Duration::from_micros(200);

/// What the workers were asked last.
enum Stage {
    Nothing,
    Hold,
    OwnerSettled(Arc<AtomicUsize>),
    AllSettled(Arc<AtomicUsize>),
    Leave(Leaving),
    Follow,
    GiveUp,
}

/// A port on its way to another worker. To be advanced to its end: until then frames for the port wait.
pub struct Move {
    id: PortId,
    from: usize,
    to: usize,
    stage: Stage,
    checks: u32,
}

impl Move {
    pub(crate) fn new(id: PortId, from: usize, to: usize) -> Move {
        Move { id, from, to, stage: Stage::Nothing, checks: CHECKS }
    }

    /// What the workers have answered, and what is asked of them next. Each worker has to have a round before
    /// the next call. `Some`: that is the end; true if the port is the other worker's.
    pub fn advance(&mut self, switch: &Switch) -> Option<bool> {
        let &mut Move { id, from, to, .. } = self;
        let step = |step| Request::Move(id, step);
        match &self.stage {
            Stage::Nothing => {
                // When its own worker holds it, no other one hands a frame over to it any more.
                switch.ask_others(from, || step(Step::Hold));
                switch.ask(from, step(Step::Hold));
                self.stage = Stage::Hold;
            }
            Stage::Hold => self.check(switch),
            Stage::OwnerSettled(count) if count.load(Ordering::Relaxed) == 1 => {
                let settled = Arc::default();
                switch.ask_others(from, || step(Step::Settled(Arc::clone(&settled))));
                self.stage = Stage::AllSettled(settled);
            }
            Stage::AllSettled(count) if count.load(Ordering::Relaxed) + 1 == switch.count_workers() => {
                let into = Leaving::default();
                switch.ask(from, step(Step::Leave { to, into: into.clone() }));
                self.stage = Stage::Leave(into);
            }
            Stage::OwnerSettled(_) | Stage::AllSettled(_) => self.check(switch),
            Stage::Leave(into) => {
                let left = into.lock().take();
                match left {
                    Some(port) => {
                        switch.set_owner(id, to);
                        switch.ask(to, step(Step::Arrive(port)));
                        switch.ask_others(to, || step(Step::Follow { to }));
                        self.stage = Stage::Follow;
                    }
                    None => self.check(switch),
                }
            }
            Stage::Follow => {
                // Those to whom it sends know whose it is.
                switch.ask(to, step(Step::Resume));
                return Some(true);
            }
            Stage::GiveUp => return Some(false),
        }
        None
    }

    /// Has its worker check, or gives up.
    fn check(&mut self, switch: &Switch) {
        let id = self.id;
        self.checks = self.checks.saturating_sub(1);
        if self.checks == 0 {
            switch.ask_all(|_| Request::Move(id, Step::Resume));
            self.stage = Stage::GiveUp;
            return;
        }
        if self.checks + 1 < CHECKS {
            switch.pause(PAUSE);
        }
        let settled = Arc::default();
        switch.ask(self.from, Request::Move(id, Step::Settled(Arc::clone(&settled))));
        self.stage = Stage::OwnerSettled(settled);
    }
}

impl Switch {
    /// Moves a port, and what is attached to it, to the worker of another number, frames on their way
    /// included; this takes some rounds of all workers, while which frames for it wait. False, and nothing
    /// has changed: there is no such port or worker, it is there, it is one that stays (an uplink's, a direct
    /// one's), or what is on its way comes to no end.
    pub fn move_port(&self, id: PortId, to: usize) -> bool {
        let name = self.entries().lock().get(&id).map(|entry| entry.spec.name.clone());
        let moved = {
            let _alone = self.alone();
            let Some(mut moving) = self.begin_move(id, to) else { return false };
            loop {
                if let Some(moved) = moving.advance(self) {
                    break moved;
                }
            }
        };
        if let Some(name) = name.filter(|_| moved) {
            self.aim_mirrors(&name);
        }
        moved
    }

    /// The same, to be advanced by the caller, who lets the workers have their rounds. For tests.
    #[doc(hidden)]
    pub fn begin_move(&self, id: PortId, to: usize) -> Option<Move> {
        let from = self.owner(id);
        let ports = self.entries().lock();
        ports.get(&id).filter(|entry| entry.may_move())?;
        (to != from && to < self.count_workers()).then(|| Move::new(id, from, to))
    }
}
