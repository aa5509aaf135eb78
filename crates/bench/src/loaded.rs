//! How long round trips take while streams fill the same path: once alone, once beside the streams.

use std::time::Duration;

use serde::Serialize;

use crate::address::Target;
use crate::client::{Hooks, Options, run};
use crate::error::Error;
use crate::report::Report;
use crate::spec::{Spec, Test};

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// The streams begin and end this much around the round trips, in seconds.
const AROUND: f64 = 1.0;

/// Round trips alone and beside streams. Its keys are a contract.
#[derive(Clone, Debug, Serialize)]
pub struct Loaded {
    pub version: u32,
    pub alone: Report,
    pub loaded: Report,
    /// The streams meanwhile.
    pub load: Report,
    /// What the load adds to the middle and to the slowest hundredth of the round trips.
    pub added_p50_us: f64,
    pub added_p99_us: f64,
}

/// Measures `asks` alone, then beside streams of `streams` sessions.
///
/// # Errors
/// One of the three measurements failed.
pub fn measure(to: &Target, asks: &Spec, load: &Spec, options: &Options) -> Result<Loaded, Error> {
    if asks.test != Test::Rr {
        return Err(Error::Usage("latency under load is that of rr".into()));
    }
    let alone = run(to, asks, options, &mut Hooks::default())?;
    let streams = Spec {
        warmup: AROUND,
        seconds: asks.warmup + asks.seconds + AROUND,
        cooldown: AROUND,
        ..load.clone()
    };
    let (loaded, load) = std::thread::scope(|scope| {
        let filling = scope.spawn(|| run(to, &streams, options, &mut Hooks::default()));
        std::thread::sleep(Duration::from_secs_f64(AROUND));
        let loaded = run(to, asks, options, &mut Hooks::default());
        let load = filling.join().unwrap_or_else(|_| {
            let cause = std::io::Error::other("the streams' thread panicked");
            Err(Error::Io { doing: "filling the path", cause })
        });
        (loaded, load)
    });
    let (loaded, load) = (loaded?, load?);
    let added = |pick: fn(&Report) -> Option<f64>| {
        pick(&loaded).zip(pick(&alone)).map_or(0.0, |(with, without)| with - without)
    };
    Ok(Loaded {
        version: VERSION,
        added_p50_us: added(|report| report.rtt_us.map(|times| times.p50)),
        added_p99_us: added(|report| report.rtt_us.map(|times| times.p99)),
        alone,
        loaded,
        load,
    })
}

impl Loaded {
    /// For people.
    pub fn text(&self) -> String {
        let times = |report: &Report| {
            report.rtt_us.map_or("-".to_owned(), |t| {
                format!(
                    "p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
                    t.p50, t.p90, t.p99, t.p999, t.max
                )
            })
        };
        let sessions = self.load.sessions;
        format!(
            "round trips to {} in us, alone and beside {sessions} stream{}:\n  alone           {}\n  beside streams  {}\n  \
             added           p50 {:+.1}  p99 {:+.1}\n  the streams     {:.1} Mbit/s\n",
            self.alone.to,
            if sessions == 1 { "" } else { "s" },
            times(&self.alone),
            times(&self.loaded),
            self.added_p50_us,
            self.added_p99_us,
            self.load.throughput_bps.unwrap_or(0.0) / 1e6
        )
    }
}
