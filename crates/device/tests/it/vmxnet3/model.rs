//! Every order of events, for small numbers of them: no interrupt is lost between a device that publishes and
//! a driver that masks, and no descriptor between a ring and its laps.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_device::vmxnet3::vectors::Vectors;
use vmlane_guestsim::nic::{RingsSpec, RxShape, TxRequest};
use vmlane_mem::Window;
use vmlane_port::FramePort;

use super::{Nic, frame};

/// Decisions of one run, replayed with the last one changed until there is none left.
#[derive(Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, of));
        }
        let (choice, options) = self.taken[self.at];
        assert_eq!(options, of, "a run must be repeatable");
        self.at += 1;
        choice
    }

    /// Makes the next run another one. False: all were made.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, of)) = self.taken.pop() {
            if choice + 1 < of {
                self.taken.push((choice + 1, of));
                return true;
            }
        }
        false
    }
}

/// How the driver treats its vector's mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    /// The handler masks, polls, unmasks.
    Masks,
    /// The device masks when it fires; the handler polls and unmasks.
    AutoMask,
}

/// Where a driver is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Waiting,
    Polling,
    Unmasking,
}

/// A driver that takes what was published, and the moments at which it may act: between any two steps of
/// the device that it could notice.
struct Guest {
    page: Arc<Window>,
    driver: Driver,
    state: Mutex<State>,
}

struct State {
    choices: Choices,
    /// Guest steps that may still be slipped in where the device is in the middle of something.
    slips: usize,
    at: At,
    raised: bool,
    published: u32,
    seen: u32,
}

impl Guest {
    /// One step. False: it waits for an interrupt.
    fn step(&self, state: &mut State) -> bool {
        match state.at {
            At::Waiting if !state.raised => return false,
            At::Waiting => {
                state.raised = false;
                if self.driver == Driver::Masks {
                    self.page.store_u32(0, 1);
                }
                state.at = At::Polling;
            }
            At::Polling => {
                state.seen = state.published;
                state.at = At::Unmasking;
            }
            At::Unmasking => {
                self.page.store_u32(0, 0);
                state.at = At::Waiting;
            }
        }
        true
    }

    /// A moment at which the guest may run.
    fn moment(&self) {
        let mut state = self.state.lock();
        while state.slips > 0 && (state.at != At::Waiting || state.raised) {
            if state.choices.choose(2) == 0 {
                return;
            }
            state.slips -= 1;
            self.step(&mut state);
        }
    }
}

impl Interrupts for Guest {
    fn mode(&self) -> IrqMode {
        self.moment();
        IrqMode::Msix { vectors: 25 }
    }

    fn raise(&self, _vector: u16) -> bool {
        self.moment();
        self.state.lock().raised = true;
        self.moment();
        true
    }
}

/// One run; returns its choices and whether the guest saw everything in the end.
fn run(driver: Driver, choices: Choices, publications: u32, broken: bool) -> (Choices, bool) {
    let (page, _file) = Window::of_file("model", 4096).expect("a page");
    let page = Arc::new(page);
    let state = State { choices, slips: 7, at: At::Waiting, raised: false, published: 0, seen: 0 };
    let guest = Arc::new(Guest { page: page.clone(), driver, state: Mutex::new(state) });
    let vectors = Vectors::new(page.clone(), guest.clone());
    vectors.arm(1, driver == Driver::AutoMask);
    page.store_u32(0, 0);
    let mut left = publications;
    // The device publishes, or ticks in vain; the guest runs in between.
    for _ in 0..publications + 1 {
        guest.moment();
        let tick = left == 0 || guest.state.lock().choices.choose(2) == 1;
        if tick {
            vectors.fire_pending(0);
            continue;
        }
        left -= 1;
        guest.state.lock().published += 1;
        guest.moment();
        if broken && page.load_u32(0) != 0 {
            // A device that forgets what it may not fire.
            continue;
        }
        vectors.publish(0, 0);
    }
    // Nothing new comes: ticks and the guest's own steps must be enough.
    for _ in 0..4 {
        let mut state = guest.state.lock();
        while guest.step(&mut state) {}
        drop(state);
        vectors.fire_pending(0);
    }
    let mut state = guest.state.lock();
    let done = state.seen == state.published;
    (std::mem::take(&mut state.choices), done)
}

fn explore(driver: Driver, publications: u32, broken: bool) -> (u32, u32) {
    let (mut runs, mut lost) = (0, 0);
    let mut choices = Choices::default();
    loop {
        let (taken, done) = run(driver, choices, publications, broken);
        runs += 1;
        lost += u32::from(!done);
        choices = taken;
        if !choices.advance() {
            return (runs, lost);
        }
    }
}

#[test]
fn no_order_of_publishing_and_masking_loses_an_interrupt() {
    for driver in [Driver::Masks, Driver::AutoMask] {
        let (runs, lost) = explore(driver, 3, false);
        println!("{driver:?}: {runs} orders");
        assert!(runs > 300, "{driver:?}: {runs} orders are too few to mean anything");
        assert_eq!(lost, 0, "{driver:?}: of {runs} orders");
    }
}

#[test]
fn the_model_finds_a_device_that_forgets() {
    let (_, lost) = explore(Driver::Masks, 3, true);
    assert!(lost > 0);
}

/// What the driver and the device do to one transmit ring.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet in so many descriptors, if there is room.
    Post(usize),
    /// The device takes a packet.
    Fetch,
    /// It is done with the one it took last, or first.
    Finish { newest: bool },
    /// Completions are published, and the driver takes them.
    Complete,
}

const STEPS: [Step; 6] = [
    Step::Post(1),
    Step::Post(2),
    Step::Fetch,
    Step::Finish { newest: false },
    Step::Finish { newest: true },
    Step::Complete,
];

/// One order of steps on rings of these sizes, against a queue of what was posted.
fn walk(size: u16, choices: &mut Choices, steps: usize) {
    let spec = RingsSpec { tx: size, rx: RxShape::linux(4), memory: 4 << 20, ..RingsSpec::linux() };
    let mut nic = Nic::new(&spec);
    let (mut posted, mut taken, mut lengths) = (VecDeque::new(), Vec::new(), 60..);
    let (mut sent, mut completed) = (0usize, 0usize);
    for _ in 0..steps {
        match STEPS[choices.choose(STEPS.len())] {
            Step::Post(parts) => {
                let len = lengths.next().expect("endless");
                let split: &[usize] = if parts == 2 { &[30] } else { &[] };
                if nic.guest.tx[0].send(&frame(len), split, &TxRequest::NONE) {
                    posted.push_back(len);
                    sent += 1;
                }
            }
            Step::Fetch => {
                let fetched = nic.fetch();
                assert_eq!(
                    fetched.as_ref().map(|(_, bytes)| bytes.len()),
                    posted.pop_front(),
                    "ring of {size}"
                );
                taken.extend(fetched.map(|(token, _)| token));
            }
            Step::Finish { newest } if !taken.is_empty() => {
                let token = if newest { taken.pop().expect("one") } else { taken.remove(0) };
                nic.port.finish(&[token]);
            }
            Step::Finish { .. } => {}
            Step::Complete => {
                nic.flush();
                completed += nic.guest.tx[0].reap();
            }
        }
    }
    // To the end: everything comes out once, in order, and is completed.
    while let Some((token, bytes)) = nic.fetch() {
        assert_eq!(Some(bytes.len()), posted.pop_front());
        taken.push(token);
    }
    taken.into_iter().rev().for_each(|token| nic.port.finish(&[token]));
    nic.flush();
    completed += nic.guest.tx[0].reap();
    assert_eq!((posted.len(), completed), (0, sent), "ring of {size}");
}

#[test]
fn no_order_of_steps_loses_or_repeats_a_descriptor() {
    // Tiny rings: every order wraps, and generations change within a few steps.
    for (size, steps) in [(2, 6), (3, 5), (4, 5)] {
        let mut choices = Choices::default();
        let mut runs = 0;
        loop {
            walk(size, &mut choices, steps);
            runs += 1;
            if !choices.advance() {
                break;
            }
        }
        assert_eq!(runs, STEPS.len().pow(steps as u32));
    }
}
