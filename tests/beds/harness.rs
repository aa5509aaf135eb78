//! The program that runs these tests: what a test needs, the beds that are opened and closed around tests,
//! and reasons for what does not run.
//!
//! A module of `promises/` lists its tests with [`crate::tests!`]. Those of one bed run one after another in
//! one lab, and each leaves it as it was: `State` reports what did not, and then the next test gets a lab
//! that was booted anew.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::bed::Bed;
use crate::state::State;
use crate::topology::Topology;

/// Longest time for one test in the short form.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// What runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// No guest; runs always.
    Plain,
    /// Guests: `make test`.
    Guests,
    /// Hours of guests: `make acceptance`.
    Long,
}

impl Form {
    /// Why a test of this form does not run when `VMLANE_TESTS` is this.
    fn not_now(self, requested: &str) -> Option<&'static str> {
        match (self, requested) {
            (Form::Plain, _) | (Form::Guests, "guests" | "full") | (Form::Long, "full") => None,
            (Form::Guests, _) => Some("boots guests: make test-guests, or VMLANE_TESTS=guests"),
            (Form::Long, _) => Some("long: make acceptance, or VMLANE_TESTS=full"),
        }
    }

    /// Whether a run with this `VMLANE_TESTS` counts it: tests of one form are counted by one run of `make
    /// test`.
    fn is_counted(self, requested: &str) -> bool {
        match requested {
            "plain" => self == Form::Plain,
            "guests" => self != Form::Plain,
            _ => true,
        }
    }
}

/// Where a test runs.
#[derive(Clone, Copy, Debug)]
pub enum TestPlace {
    /// In a lab that it shares with other tests.
    Bed(&'static Topology, fn(&Bed)),
    /// In labs of its own, or in none.
    Own(fn()),
}

/// A test of `promises/`.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// With its module: `streams::bytes_arrive`.
    pub name: &'static str,
    pub form: Form,
    pub place: TestPlace,
}

impl Test {
    fn module(&self) -> &'static str {
        self.name.split("::").next().unwrap_or_default()
    }

    /// Tests of one group run in one process: those of a bed, or those of a module that have labs of their
    /// own.
    fn group(&self) -> &'static str {
        match self.place {
            TestPlace::Bed(topology, _) => topology.name,
            TestPlace::Own(_) => self.module(),
        }
    }
}

/// Lists the tests of a module: `plain { name, ... }` for those without guests, `guests { ... }` and `long {
/// ... }` for those with labs of their own, `guests in BED { ... }` and `long in BED { ... }` for those that
/// get a bed.
#[macro_export]
macro_rules! tests {
    (@block $form:ident $bed:ident; $($name:ident)+) => {
        &[$($crate::tests!(@one $form $name $crate::harness::TestPlace::Bed(&$crate::topology::$bed, $name))),+]
    };
    (@block $form:ident; $($name:ident)+) => {
        &[$($crate::tests!(@one $form $name $crate::harness::TestPlace::Own($name))),+]
    };
    (@one $form:ident $name:ident $place:expr) => {
        $crate::harness::Test {
            name: concat!(module_path!(), "::", stringify!($name)),
            form: $crate::tests!(@form $form),
            place: $place,
        }
    };
    (@form plain) => { $crate::harness::Form::Plain };
    (@form guests) => { $crate::harness::Form::Guests };
    (@form long) => { $crate::harness::Form::Long };
    ($($form:ident $(in $bed:ident)? { $($name:ident),+ $(,)? })+) => {
        pub const TESTS: &[&[$crate::harness::Test]] = &[$($crate::tests!(@block $form $($bed)?; $($name)+)),+];
    };
}

thread_local! {
    /// The bed that is open, between tests.
    static OPEN: RefCell<Option<Opened>> = const { RefCell::new(None) };
}

/// A bed, and the state in which its tests find it.
struct Opened {
    bed: Bed,
    topology: &'static Topology,
    state: State,
}

/// Runs what the command line asks for. `VMLANE_GROUP` restricts it to the tests of one bed, or of one module
/// without those in beds; `VMLANE_MODULE` to one module. With `--list`, the group stands in front of each
/// name.
pub fn main(modules: &[&[&[Test]]]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One lab at a time; the runner of `make test` starts several processes.
    arguments.test_threads = Some(1);
    let setting = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let (group, module) = (setting("VMLANE_GROUP"), setting("VMLANE_MODULE"));
    let requested = setting("VMLANE_TESTS").unwrap_or_default();
    let mut tests: Vec<Test> =
        modules.iter().copied().flatten().copied().flatten().map(|test| without_crate(*test)).collect();
    tests.retain(|test| {
        test.form.is_counted(&requested)
            && group.as_ref().is_none_or(|group| test.group() == group)
            && module.as_ref().is_none_or(|module| test.module() == module)
            && !arguments.is_filtered_out(&trial(*test, &requested, false))
    });
    // Tests of one bed follow each other, whichever modules they are of.
    tests.sort_by_key(|test| test.group());
    let is_last = |at: usize| tests.get(at + 1).is_none_or(|next| next.group() != tests[at].group());
    let trials = tests.iter().enumerate().map(|(at, test)| trial(*test, &requested, is_last(at))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn without_crate(test: Test) -> Test {
    Test { name: test.name.split_once("::").map_or(test.name, |(_, rest)| rest), ..test }
}

/// With the last test of a bed, the bed is closed.
fn trial(test: Test, requested: &str, is_last: bool) -> Trial {
    let not_now = test.form.not_now(requested);
    Trial::ignorable_test(test.name, move || {
        if let Some(reason) = not_now {
            if is_last {
                close()?;
            }
            return Ok(Completion::ignored_with(reason));
        }
        let _alarm = alarm(test.name);
        println!();
        let began = Instant::now();
        let ran = run(&test);
        let closed = if is_last { close() } else { Ok(()) };
        println!("seconds {:.1} {}", began.elapsed().as_secs_f64(), test.name);
        ran.and(closed).map(|()| Completion::Completed)
    })
    .with_kind(test.group())
}

fn run(test: &Test) -> Result<(), Failed> {
    let (topology, in_bed) = match test.place {
        TestPlace::Own(alone) => return contained(alone),
        TestPlace::Bed(topology, in_bed) => (topology, in_bed),
    };
    let opened = OPEN.with_borrow_mut(Option::take);
    let opened = match opened.filter(|opened| std::ptr::eq(opened.topology, topology)) {
        Some(opened) => opened,
        None => open(topology)?,
    };
    let ran = contained(|| {
        in_bed(&opened.bed);
        opened.bed.check();
    });
    if ran.is_err() {
        // Its lab may be in any state.
        opened.bed.print_logs();
        return ran;
    }
    match contained(|| opened.state.differences(&opened.bed, topology))? {
        differences if differences.is_empty() => OPEN.set(Some(opened)),
        differences => {
            println!("unclean: {} left bed {}:\n{differences}", test.name, topology.name);
            contained(|| opened.bed.finish())?;
        }
    }
    Ok(())
}

fn open(topology: &'static Topology) -> Result<Opened, Failed> {
    contained(|| {
        let began = Instant::now();
        let bed = Bed::open(topology);
        let state = State::of(&bed);
        println!("seconds {:.1} boot of {}", began.elapsed().as_secs_f64(), topology.name);
        Opened { bed, topology, state }
    })
}

/// Closes the open bed: the checks of its end count for the test that was the last in it.
fn close() -> Result<(), Failed> {
    match OPEN.with_borrow_mut(Option::take) {
        Some(opened) => contained(|| opened.bed.finish()),
        None => Ok(()),
    }
}

/// A panic has been printed by its hook.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Failed> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
            .into()
    })
}

/// Ends this process when a test takes longer than any does: a guest that no longer answers would block it
/// for ever. Its lab goes down with the process.
fn alarm(test: &'static str) -> mpsc::Sender<()> {
    let (running, ended) = mpsc::channel();
    let limit = if crate::full() { LONGEST * 20 } else { LONGEST };
    std::thread::spawn(move || {
        if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
            eprintln!("{test} has run for {limit:?}: a guest hangs, or a test waits in vain");
            std::process::exit(101);
        }
    });
    running
}
