//! NICs whose guests send now and then: how late a frame is that meets a sleeping daemon, and what the daemon
//! costs while frames are paced. The daemon is a process with its defaults, on one CPU; the guests' driver
//! runs on the other, and is not asleep when its frame arrives: what is measured is the daemon's part.
//!
//! | row | what |
//! | --- | --- |
//! | `vmxnet3.asleep.1s`, `.20ms` | silence, then one frame: the median until it is delivered. Its NIC announces (profile `full`) |
//! | `vmxnet3.silent.1s`, `.20ms` | the same of one that cannot (profile `vmxnet3`) |
//! | `virtio.asleep.1s`, `.20ms` | the same with virtio-net |
//! | `vmxnet3.idle.1`, `.32` | cards that announce, whose guests do nothing: wake-ups of the daemon's threads; its CPU time |
//! | `switch.paced.N.cpu`, `.p50`, `.p99` | N frames a second over virtio-net: the daemon's CPU time, and how long frames are on their way |
//! | `switch.alone.rate`, `switch.beside.rate` | frames a second where each follows the one before at once; beside a program that takes 5 % of the core |
//! | `switch.beside.…` | the same with a program that takes 5 % of the daemon's core, in slices of 1 ms |
//! | `switch.poll.3k.…` | the same of a daemon that always polls |

mod neighbour;
mod nics;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::baseline::Cpus;
use crate::process::cpu_time;
use crate::report::{Registry, Sample};
use crate::vsock::vmlane;

use neighbour::Neighbour;
use nics::{Idle, Model, Pair};

/// Microseconds, of which fewer are better.
const MICROS: &str = "us (less is better)";
const OF_A_CORE: &str = "% of a core";
const FRAMES_A_SECOND: &str = "frames/s";
/// Frames of a row, at least.
const FRAMES: usize = 5;
/// What the daemon does about an attached VM is done after so long.
const AFTER_ATTACH: Duration = Duration::from_millis(300);

/// What guests and devices do at their beginning is over.
const UNTIL_IDLE: Duration = Duration::from_secs(3);
/// The least time in which few wake-ups can be counted.
const WATCHED: Duration = Duration::from_secs(4);

/// Frames a second that are not reached: each follows as soon as the one before has arrived.
const AT_ONCE: u32 = 1_000_000_000;

/// What a paced row reports.
#[derive(Clone, Copy)]
enum Figure {
    Cpu,
    /// Frames a second.
    Rate,
    Quantile(f64),
}

/// Adds the rows, if there is a daemon to measure.
pub fn register(registry: &mut Registry) -> anyhow::Result<()> {
    let program = vmlane()?;
    for (model, name) in [
        (Model::Virtio, "virtio.asleep"),
        (Model::Full, "vmxnet3.asleep"),
        (Model::Vmxnet3, "vmxnet3.silent"),
    ] {
        for (silence, tail) in [(Duration::from_millis(20), "20ms"), (Duration::from_secs(1), "1s")] {
            let beside = if model == Model::Virtio { vec![] } else { vec![format!("virtio.asleep.{tail}")] };
            let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
            let program = program.to_owned();
            registry.add(&format!("{name}.{tail}"), MICROS, &beside, move |length| {
                other(asleep(&program, model, silence, length))
            });
        }
    }
    let one = program.clone();
    registry.add("vmxnet3.idle.1", "wake-ups/s (less is better)", &[], move |_| {
        other(Idle::start::<1>(&one).and_then(|idle| watched(idle.pid(), wake_ups, 1.0)))
    });
    let many = program.clone();
    registry.add("vmxnet3.idle.32", OF_A_CORE, &[], move |_| {
        let used = |pid| Ok(cpu_time(pid)?.as_secs_f64());
        other(Idle::start::<32>(&many).and_then(|idle| watched(idle.pid(), used, 100.0)))
    });
    for (rate, name) in [(100, "100"), (1000, "1k"), (3000, "3k"), (10_000, "10k")] {
        paced_rows(registry, &program, &format!("switch.paced.{name}"), ("adaptive", rate, false));
    }
    paced_rows(registry, &program, "switch.poll.3k", ("poll", 3000, false));
    paced_rows(registry, &program, "switch.beside.3k", ("adaptive", 3000, true));
    for (name, neighbour, base) in
        [("switch.alone.rate", false, &[][..]), ("switch.beside.rate", true, &["switch.alone.rate"])]
    {
        let program = program.clone();
        registry.add(name, FRAMES_A_SECOND, base, move |length| {
            other(paced(&program, ("adaptive", AT_ONCE, neighbour), Figure::Rate, length))
        });
    }
    Ok(())
}

/// `how`: the daemon's mode, frames a second, whether a neighbour takes some of its core.
fn paced_rows(registry: &mut Registry, program: &Path, name: &str, how: (&'static str, u32, bool)) {
    let figures = [
        ("cpu", OF_A_CORE, Figure::Cpu),
        ("p50", MICROS, Figure::Quantile(0.5)),
        ("p90", MICROS, Figure::Quantile(0.9)),
        ("p99", MICROS, Figure::Quantile(0.99)),
    ];
    for (tail, unit, figure) in figures {
        let program = program.to_owned();
        registry.add(&format!("{name}.{tail}"), unit, &[], move |length| {
            other(paced(&program, how, figure, length))
        });
    }
}

fn other<T>(result: anyhow::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{error:#}")))
}

/// How much `count` grows in a second, times `unit`.
fn watched(pid: u32, count: impl Fn(u32) -> anyhow::Result<f64>, unit: f64) -> anyhow::Result<Sample> {
    let (start, before) = (Instant::now(), count(pid)?);
    std::thread::sleep(WATCHED);
    let value = unit * (count(pid)? - before) / start.elapsed().as_secs_f64();
    Ok(Sample { value })
}

/// How often threads of a process have slept so far.
fn wake_ups(pid: u32) -> anyhow::Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        total += line.context("no voluntary_ctxt_switches")?.trim().parse::<f64>()?;
    }
    Ok(total)
}

/// Silence, a frame, and again.
fn asleep(program: &Path, model: Model, silence: Duration, length: Duration) -> anyhow::Result<Sample> {
    let mut pair = Pair::start(program, model, "adaptive")?;
    let cpus = Cpus::allowed();
    let _daemon = cpus.pin_process(pair.pid(), 0)?;
    let _placed = cpus.pin(1);
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < FRAMES || start.elapsed() < length {
        std::thread::sleep(silence);
        times.push(pair.one_way()?);
    }
    Ok(quantile(times, 0.5))
}

/// Frames at even distances; a late one does not delay the next.
fn paced(
    program: &Path,
    (mode, rate, beside): (&str, u32, bool),
    figure: Figure,
    length: Duration,
) -> anyhow::Result<Sample> {
    let mut pair = Pair::start(program, Model::Virtio, mode)?;
    let cpus = Cpus::allowed();
    let _daemon = cpus.pin_process(pair.pid(), 0)?;
    let _neighbour = beside.then(|| Neighbour::start(cpus, 0)).transpose()?;
    let _placed = cpus.pin(1);
    let (gap, length) = (Duration::from_secs(1) / rate, length.max(Duration::from_secs(1)));
    let (start, before) = (Instant::now(), cpu_time(pair.pid())?);
    let (mut times, mut next) = (Vec::new(), start);
    while start.elapsed() < length {
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        times.push(pair.one_way()?);
        next = Instant::now().max(next + gap);
    }
    let (time, used) = (start.elapsed(), cpu_time(pair.pid())?.saturating_sub(before));
    Ok(match figure {
        Figure::Cpu => Sample { value: 100.0 * used.as_secs_f64() / time.as_secs_f64() },
        Figure::Rate => Sample { value: times.len() as f64 / time.as_secs_f64() },
        Figure::Quantile(part) => quantile(times, part),
    })
}

/// Of some times, in microseconds.
fn quantile(mut times: Vec<Duration>, part: f64) -> Sample {
    times.sort_unstable();
    let at = ((times.len() - 1) as f64 * part).round() as usize;
    Sample { value: times[at].as_secs_f64() * 1e6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_times() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_micros).collect();
        let of = |part| quantile(times.clone(), part).value.round();
        assert_eq!((of(0.0), of(0.5), of(0.99), of(1.0)), (1.0, 51.0, 99.0, 100.0));
    }
}
