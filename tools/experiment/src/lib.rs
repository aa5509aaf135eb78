//! Experiments: the runs of a plan, made in labs, kept as raw rows; what is shown comes from the rows.
//!
//! | file | holds |
//! | --- | --- |
//! | `plan.rs` | a plan's text, read and checked |
//! | `factors.rs` | what a plan may vary, and what is impossible |
//! | `steps.rs` | which runs, in which order, in which labs |
//! | `repeats.rs` | how often each is made |
//! | `run.rs` | makes them: failures, repeats, resuming after an interruption |
//! | `bench.rs` | a lab that runs are made in |
//! | `synchronized_start.rs` | clients in many guests that start at once |
//! | `tool.rs` | bench, netperf, iperf3: their words and their answers |
//! | `rows.rs` | the raw rows and their file |
//! | `host.rs` | what the host is and uses |
//! | `summary.rs` | repeats in one number |
//! | `data.rs` | what charts and claims show of the rows |
//! | `words.rs` | what factors and values are called there |
//! | `units.rs` | numbers as people read them |
//! | `figure.rs` | charts, as SVG |
//! | `report.rs` | the page |
//! | `side_by_side.rs` | the results of several machines on one page |
//! | `stop.rs` | a signal ends a sweep at its next run |
//!
//! [`figure`] and [`report`] draw from the rows alone.

mod bench;
pub mod data;
pub mod factors;
pub mod figure;
mod foot;
pub mod host;
pub mod plan;
pub mod repeats;
pub mod report;
pub mod rows;
pub mod run;
pub mod side_by_side;
pub mod steps;
pub mod stop;
pub mod summary;
mod synchronized_start;
pub mod tool;
pub mod units;
mod words;

pub use factors::Factors;
pub use plan::Plan;
pub use rows::{Row, Setup, Writer};
pub use run::{Progress, Runner};
pub use steps::Step;

/// What the demo's plans have of User Mode Linux's own card, and what stands in its place for users who may
/// not open an interface of the host.
const UML_CARD: [(&str, &str); 2] = [
    (", \"uml-vector\"]", "]"),
    (
        "uml-vector is its own network card, on a bridge of the host.",
        "Its own network card (uml-vector) was left out: it needs root, to open an interface of the host.",
    ),
];

/// The plans of the demo: some minutes, and numbers to quote.
pub fn demo(full: bool, is_root: bool) -> Plan {
    let text = if full { include_str!("demo-full.toml") } else { include_str!("demo.toml") };
    let replaced = if is_root { &[][..] } else { &UML_CARD };
    let text = replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    // A test reads all of them.
    Plan::parse(&text, false).expect("the demo's plans are good")
}
