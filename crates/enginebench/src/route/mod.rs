//! Streams between hosts: two programs, two daemons, two helpers, all processes as an operator runs them, on one machine. Beside
//! it, a plain pipe: the same two programs with one rustls connection between them.

mod hosts;
mod pipe;
mod work;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::report::{GBITS, Only, ROUND_TRIPS, Registry, Sample};
use hosts::Hosts;
use pipe::Pipe;
use work::Link;

/// CPU time of all processes that take part. Less is better.
const CPU: &str = "ns/KiB";
const BLOCK: usize = 64 << 10;

/// Adds the rows that begin with `only`, if the program that they run is to be had; else says why not.
pub fn register(registry: &mut Registry, only: &Only) {
    let rows = ["stream.64k", "cpu.64k", "rr.1"];
    let ours = rows.map(|row| format!("route.{row}"));
    let plain = rows.map(|row| format!("tls.{row}"));
    if !ours.iter().chain(&plain).any(|name| only.wants(name)) {
        return;
    }
    let directory = match hosts::Directory::new() {
        Ok(directory) => Rc::new(directory),
        Err(error) => return eprintln!("left out: {}: {error:#}", ours.join(", ")),
    };
    let units = [GBITS, CPU, ROUND_TRIPS];
    for ((run, unit), (ours, plain)) in RUNS.into_iter().zip(units).zip(ours.iter().zip(&plain)) {
        let (here, there) = (directory.clone(), directory.clone());
        registry.add(plain, unit, &[], move |length| {
            other(Pipe::new(&there).and_then(|mut pipe| run(&mut pipe, length)))
        });
        registry.add(ours, unit, &[plain], move |length| {
            other(Hosts::start(&here).and_then(|mut hosts| run(&mut hosts, length)))
        });
    }
}

type Run = fn(&mut dyn Link, Duration) -> anyhow::Result<Sample>;
const RUNS: [Run; 3] = [
    |link, length| Ok(work::stream(link, BLOCK, length)?.speed()),
    |link, length| Ok(work::stream(link, BLOCK, length)?.cost()),
    work::round_trips,
];

fn other<T>(result: anyhow::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{error:#}")))
}
