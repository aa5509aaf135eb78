//! The runtime with threads: what is deferred is delivered before sleeping, callers are answered, panics
//! are contained.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlane_port::role::Role;
use vmlane_testkit::wait_until;
use vmlane_worker::{
    Answer, Calls, CommandQueue, CpuSet, Engine, Event, Heartbeat, Parking, Polling, Ports, Refused, Rounds,
    Settings, Worker,
};

/// What the test and its engine share.
#[derive(Default)]
struct Port {
    /// Bytes that a guest has announced.
    written: AtomicUsize,
    /// Completions of which the guest was not notified yet, and of which it was.
    deferred: AtomicUsize,
    delivered: AtomicUsize,
    /// What was deferred still may not be delivered yet.
    too_early: AtomicBool,
    sleeps: AtomicU64,
    panics: AtomicU64,
    recovered: AtomicU64,
    /// Completions that a sleeping worker deferred. Must stay 0.
    overslept: AtomicUsize,
    /// Panics at the next call.
    fails: AtomicBool,
    rounds: AtomicU64,
    /// How long ports are polled while nobody else wants the core, in microseconds.
    window: AtomicU64,
    /// Where the thread ran when it was asked.
    affinity: Mutex<Option<CpuSet>>,
}

enum Command {
    /// A guest writes something meanwhile, and it is this that announces it, or not.
    Write {
        announces: bool,
    },
    Nothing(#[expect(dead_code, reason = "held until the command is done")] Answer),
    Panic(#[expect(dead_code, reason = "the same")] Answer),
    Affinity(#[expect(dead_code, reason = "the same")] Answer),
    /// The thread ends with a panic when it drops its engine.
    DieAtTheEnd,
}

/// Moves what is written at once, and defers the completions.
struct Loopback {
    port: Arc<Port>,
    dies: bool,
}

impl Engine for Loopback {
    type Command = Command;
    type Shared = ();

    fn announces(command: &Command) -> bool {
        matches!(command, Command::Write { announces: true })
    }

    fn run_command(&mut self, command: Command, _: Instant) {
        match command {
            Command::Nothing(_) => {}
            // By the worker's own thread, which so cannot find it in its last round before it sleeps.
            Command::Write { .. } => self.port.written.store(1, SeqCst),
            Command::Affinity(_) => {
                *self.port.affinity.lock().unwrap() = rustix::thread::sched_getaffinity(None).ok();
            }
            Command::Panic(_) => std::panic::resume_unwind(Box::new("a command fails")),
            Command::DieAtTheEnd => self.dies = true,
        }
    }
}

impl Rounds for Loopback {
    fn clock(&mut self, _: Instant, polling: Polling) {
        if !polling.contended {
            self.port.window.store(polling.window.as_micros() as u64, SeqCst);
        }
    }

    fn round(&mut self, _: Instant) -> bool {
        self.port.rounds.fetch_add(1, SeqCst);
        if self.port.fails.swap(false, SeqCst) {
            std::panic::resume_unwind(Box::new("a round fails"));
        }
        let moved = self.port.written.swap(0, SeqCst);
        self.port.deferred.fetch_add(moved, SeqCst);
        moved > 0
    }

    fn ports(&mut self) -> Ports {
        Ports::Armable(None)
    }

    fn undelivered(&self) -> bool {
        self.port.deferred.load(SeqCst) > 0
    }

    fn flush_deferred(&mut self) {
        if !self.port.too_early.load(SeqCst) {
            self.port.delivered.fetch_add(self.port.deferred.swap(0, SeqCst), SeqCst);
        }
    }

    fn arm(&mut self) -> bool {
        self.port.overslept.fetch_add(self.port.deferred.load(SeqCst), SeqCst);
        self.port.written.load(SeqCst) > 0
    }

    fn recover(&mut self) {
        self.port.recovered.fetch_add(1, SeqCst);
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Sleep => self.port.sleeps.fetch_add(1, SeqCst),
            Event::Panic => self.port.panics.fetch_add(1, SeqCst),
            Event::Nap => 0,
        };
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        if self.dies {
            std::panic::resume_unwind(Box::new("its end fails"));
        }
    }
}

type Requests = CommandQueue<Command>;

struct Bench {
    port: Arc<Port>,
    requests: Arc<Requests>,
    heartbeat: Arc<Heartbeat>,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    fn start(spin: Duration) -> Bench {
        Bench::start_on(spin, None)
    }

    fn start_on(spin: Duration, on: Option<&CpuSet>) -> Bench {
        let port = Arc::new(Port::default());
        let requests = requests();
        let heartbeat = Arc::new(Heartbeat::default());
        let settings = Settings { role: Role::Worker, spin, poll: false };
        let engine = Loopback { port: port.clone(), dies: false };
        let worker = Worker::new(engine, requests.clone(), heartbeat.clone(), settings);
        let thread = Some(worker.spawn("loopback".into(), on).expect("a thread"));
        Bench { port, requests, heartbeat, thread }
    }

    fn ask(&self, command: impl FnOnce(Answer) -> Command) -> Result<(), Refused> {
        let calls = Calls::new();
        let asked = self.requests.call(|()| Some(command(calls.answer())));
        calls.wait();
        asked
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.requests.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn requests() -> Arc<Requests> {
    Arc::new(Requests::new(Parking::new().expect("a descriptor")))
}

#[test]
fn what_is_deferred_is_delivered_before_the_worker_sleeps() {
    let bench = Bench::start(Duration::from_micros(100));
    for count in 1..=200 {
        bench.port.written.fetch_add(1, SeqCst);
        bench.requests.parking().wake();
        wait_until("it is delivered", || bench.port.delivered.load(SeqCst) == count);
    }
    assert_eq!(bench.port.overslept.load(SeqCst), 0);
}

#[test]
fn a_worker_stays_awake_for_what_may_not_be_delivered_yet() {
    let bench = Bench::start(Duration::ZERO);
    bench.port.too_early.store(true, SeqCst);
    bench.port.written.store(1, SeqCst);
    bench.requests.parking().wake();
    wait_until("it is deferred", || bench.port.deferred.load(SeqCst) == 1);
    let (sleeps, rounds) = (bench.port.sleeps.load(SeqCst), bench.port.rounds.load(SeqCst));
    wait_until("more rounds", || bench.port.rounds.load(SeqCst) > rounds + 100);
    assert_eq!(bench.port.sleeps.load(SeqCst), sleeps);
    bench.port.too_early.store(false, SeqCst);
    wait_until("it is delivered", || bench.port.delivered.load(SeqCst) == 1);
}

#[test]
fn what_a_command_announces_ends_a_gap_as_a_doorbell_does_and_no_other_command() {
    let bench = Bench::start(Duration::from_micros(500));
    let window = |bench: &Bench| bench.port.window.load(SeqCst);
    let write = |announces: bool| {
        std::thread::sleep(Duration::from_millis(1));
        // On a busy machine it may still be polling: what it finds by that ends a gap, too.
        wait_until("it sleeps", || !bench.heartbeat.read().busy);
        let before = bench.port.delivered.load(SeqCst);
        bench.requests.post(|()| (Some(Command::Write { announces }), ()));
        wait_until("it is delivered", || bench.port.delivered.load(SeqCst) > before);
    };
    (0..100).for_each(|_| write(false));
    assert_eq!(window(&bench), 500);
    wait_until("a shorter window after gaps that are longer than the longest", || {
        write(true);
        window(&bench) < 500
    });
}

#[test]
fn a_sleeping_worker_answers_and_a_stopped_one_refuses() {
    let bench = Bench::start(Duration::ZERO);
    wait_until("it sleeps", || !bench.heartbeat.read().busy);
    assert_eq!(bench.ask(Command::Nothing), Ok(()));
    bench.requests.stop();
    wait_until("it refuses", || bench.ask(Command::Nothing) == Err(Refused));
}

#[test]
fn a_panic_in_a_command_answers_its_caller_and_the_worker_goes_on() {
    let bench = Bench::start(Duration::ZERO);
    // More than would be too many in a row.
    for count in 1..=150 {
        assert_eq!(bench.ask(Command::Panic), Ok(()));
        assert_eq!(bench.ask(Command::Nothing), Ok(()));
        wait_until("it goes on", || bench.port.recovered.load(SeqCst) == count);
        bench.asleep_once();
    }
    assert_eq!(bench.port.panics.load(SeqCst), 150);
}

#[test]
fn a_panic_in_a_round_is_contained() {
    let bench = Bench::start(Duration::ZERO);
    bench.port.fails.store(true, SeqCst);
    assert_eq!(bench.ask(Command::Nothing), Ok(()));
    wait_until("it goes on", || bench.port.recovered.load(SeqCst) == 1);
    assert_eq!(bench.ask(Command::Nothing), Ok(()));
}

#[test]
fn callers_are_answered_when_the_thread_dies() {
    let bench = Bench::start(Duration::ZERO);
    bench.requests.post(|()| (Some(Command::DieAtTheEnd), ()));
    bench.requests.stop();
    wait_until("it refuses", || bench.ask(Command::Nothing) == Err(Refused));
}

#[test]
fn time_counts_as_work_while_something_moves_and_not_while_nothing_does() {
    let port = Arc::new(Port::default());
    let heartbeat = Arc::new(Heartbeat::default());
    let settings = Settings { role: Role::Worker, spin: Duration::ZERO, poll: false };
    let engine = Loopback { port: port.clone(), dies: false };
    let mut worker = Worker::new(engine, requests(), heartbeat.clone(), settings);
    (0..10).for_each(|_| assert!(worker.step()));
    assert_eq!(heartbeat.read().worked, 0);
    port.written.store(1, SeqCst);
    worker.step();
    // As if the round had taken so long.
    let length = Duration::from_millis(2);
    std::thread::sleep(length);
    (0..2).for_each(|_| assert!(worker.step()));
    let worked = heartbeat.read().worked;
    assert!(Duration::from_nanos(worked) >= length, "{worked}");
    let spun = heartbeat.read().spun;
    (0..10).for_each(|_| assert!(worker.step()));
    assert!(heartbeat.read().worked == worked && heartbeat.read().spun > spun);
}

#[test]
fn sleep_is_no_work() {
    let begun = Instant::now();
    let bench = Bench::start(Duration::ZERO);
    let mut slept = Duration::ZERO;
    for count in 1..=5 {
        bench.port.written.store(1, SeqCst);
        bench.requests.parking().wake();
        wait_until("it sleeps again", || {
            bench.port.delivered.load(SeqCst) == count && !bench.heartbeat.read().busy
        });
        std::thread::sleep(Duration::from_millis(20));
        slept += Duration::from_millis(20);
    }
    let reading = bench.heartbeat.read();
    let awake = reading.worked + reading.spun + reading.yielded + reading.napped;
    let (awake, elapsed) = (Duration::from_nanos(awake), begun.elapsed());
    assert!(reading.worked > 0 && awake + slept <= elapsed, "{reading:?} of {elapsed:?}");
}

impl Bench {
    /// Some rounds pass, so that faults do not follow each other.
    fn asleep_once(&self) {
        let rounds = self.port.rounds.load(SeqCst);
        self.requests.parking().notify();
        wait_until("some rounds, or sleep", || {
            self.port.rounds.load(SeqCst) > rounds + 1 || !self.heartbeat.read().busy
        });
    }
}

#[test]
fn a_thread_runs_on_the_cpus_that_it_was_given_and_elsewhere_if_it_may_not() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu)).unwrap();
    let missing = (0..CpuSet::MAX_CPU).rev().find(|&cpu| !allowed.is_set(cpu)).unwrap();
    let only = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    for (on, expected) in [(None, allowed), (Some(only(last)), only(last)), (Some(only(missing)), allowed)] {
        let bench = Bench::start_on(Duration::ZERO, on.as_ref());
        bench.ask(Command::Affinity).unwrap();
        assert_eq!(bench.port.affinity.lock().unwrap().take(), Some(expected));
    }
}
