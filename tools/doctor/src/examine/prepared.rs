//! A measurement whose connections are made while others still run, so that each costs fewer round trips when
//! its turn comes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

use vmlane_bench::{Error, Hooks, Options, Report, Spec, Target};

/// Both ends are connected and wait. Dropped, it never starts.
pub struct Prepared<'scope> {
    start: Sender<()>,
    thread: ScopedJoinHandle<'scope, Result<Report, Error>>,
}

impl<'scope> Prepared<'scope> {
    pub fn new<'env>(
        scope: &'scope Scope<'scope, 'env>,
        target: Target,
        spec: Spec,
        options: &'env Options,
    ) -> Prepared<'scope> {
        let (start, started) = channel();
        let thread = scope.spawn(move || {
            let mut hooks = Hooks { before_start: Some(Box::new(|| wait(&started))), ..Hooks::default() };
            vmlane_bench::run(&target, &spec, options, &mut hooks)
        });
        Prepared { start, thread }
    }

    /// Starts it, and waits for its end.
    pub fn run(self) -> Result<Report, Error> {
        self.start().end()
    }

    pub fn start(self) -> Started<'scope> {
        let _ = self.start.send(()); // one that has failed to connect no longer listens
        Started(self.thread)
    }
}

pub struct Started<'scope>(ScopedJoinHandle<'scope, Result<Report, Error>>);

impl Started<'_> {
    pub fn end(self) -> Result<Report, Error> {
        let panicked = |_| Err(Error::Usage("the measurement's thread panicked".to_owned()));
        self.0.join().unwrap_or_else(panicked)
    }
}

fn wait(started: &Receiver<()>) -> Result<(), Error> {
    started.recv().map_err(|_| Error::Usage("it was not needed".to_owned()))
}
