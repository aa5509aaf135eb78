//! The rows of VMXNET3: synthetic guests on one thread, the worker that moves their frames on the other.

mod captured;
mod drive;
mod guest;
mod switched;
mod verified;
mod wire;
mod workers;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::baseline::{Cpus, copy_frames};
use crate::report::Sample;
use crate::report::{GBITS, ROUND_TRIPS, Registry};

use self::drive::{Counts, bursts, flood, flood_from, in_turns, ping_pong};
use self::guest::{Guest, Load};
use self::switched::Switched;
use self::wire::Wire;

/// Million frames per second.
const MFRAMES: &str = "Mframes/s";
/// Buffers for the heads of frames that a guest has: the frames after which it has used each.
const BUFFERS: u64 = 1024;
/// How long many guests run, and how often, until they have.
const SLICE: Duration = Duration::from_millis(50);
const MOST_SLICES: u32 = 600;
const OF_MEAN: &str = "of the mean";
/// A plain copy of super-frames.
const COPY: &str = "copy.frames.64k";
/// The same, beside segments that the switch makes super-frames of.
const COPY_MERGED: &str = "copy.64k";

/// Adds all rows.
pub fn register(registry: &mut Registry) {
    registry.add(COPY, GBITS, &[], plain_copy);
    registry.add(COPY_MERGED, GBITS, &[], plain_copy);
    ports_rows(registry);
    segment_rows(registry);
    workers::register(registry);
    let mut add = |name: &str, unit, beside: &[&str], load, lro, value: fn(&Counts) -> Sample| {
        registry.add(name, unit, beside, move |length| Ok(value(&switched(2, 1, load, lro, length)?)));
    };
    add("vmxnet3.frames.64", MFRAMES, &["vmxnet3.ports.64"], Load::Small, true, Counts::mframes);
    add("vmxnet3.frames.1500", GBITS, &["vmxnet3.ports.1500"], Load::Full, true, Counts::gbits);
    add("vmxnet3.tso.64k", GBITS, &[COPY, "vmxnet3.ports.64k"], Load::Super, true, Counts::gbits);
    add("vmxnet3.segment.64k", GBITS, &[COPY], Load::Super, false, Counts::gbits);
    registry.add("vmxnet3.segment.64k.endpoint", GBITS, &[COPY, "vmxnet3.segment.64k"], |length| {
        Ok(one_way(Switched::endpoints(2, Load::Super), length).gbits())
    });
    registry.add("switch.wire.64k", GBITS, &["vmxnet3.tso.64k"], |length| {
        Ok(one_way(Switched::wired(Load::Super), length).gbits())
    });
    // The bar is a ratio of 0.7.
    registry.add("capture.on", GBITS, &["vmxnet3.frames.1500"], captured::captured);
    registry
        .add("vmxnet3.rr.1", ROUND_TRIPS, &["ring.rr.1", "tcp.rr.1"], |length| Ok(round_trips(2, length)));
    // The pair is among idle guests.
    let beside = &["vmxnet3.rr.1"];
    registry.add("vmxnet3.rr.256", ROUND_TRIPS, beside, |length| Ok(round_trips(256, length)));
    // Small frames: with full ones the guests' memory soon is more than any cache holds, and a plain copy
    // between as much falls to an eighth from 2 to 32 guests; that would be all one sees.
    for count in [2, 8, 32, 256] {
        let name = format!("vmxnet3.scale.{count}");
        let beside: &[&str] = if count == 2 { &[] } else { &["vmxnet3.scale.2"] };
        registry.add(&name, MFRAMES, beside, move |length| {
            Ok(switched(count, count, Load::Small, true, length)?.mframes())
        });
    }
    // The same without the time that the guests take, all of which one thread drives.
    for count in [2, 256] {
        let name = format!("vmxnet3.alone.{count}");
        let beside: &[&str] = if count == 2 { &[] } else { &["vmxnet3.alone.2"] };
        registry.add(&name, MFRAMES, beside, move |length| {
            Ok(alone(Switched::new(count, Load::Small, true), length)?.mframes())
        });
    }
    // The same at the ends of a wire, which has no addresses to look up and nothing to judge: the bars are
    // ratios of 1.1, and 1.0 for super-frames.
    registry.add("switch.wire.64", MFRAMES, &["vmxnet3.alone.2"], |length| {
        Ok(alone(Switched::wired(Load::Small), length)?.mframes())
    });
    // Two honest pairs beside a fifth guest: idle; sending small frames to an unknown address; sending
    // super-frames to an accomplice. The bar is a ratio of 0.7.
    registry.add("vmxnet3.honest.idle", GBITS, &[], |length| Ok(honest(None, length)));
    let idle: &[&str] = &["vmxnet3.honest.idle"];
    registry.add("vmxnet3.honest.junk", GBITS, idle, |length| Ok(honest(Some((Load::Small, 5)), length)));
    registry.add("vmxnet3.honest.flood", GBITS, idle, |length| Ok(honest(Some((Load::Super, 6)), length)));
    registry.add("vmxnet3.share.32", OF_MEAN, &[], |length| {
        Ok(switched(32, 32, Load::Small, true, length)?.smallest_share())
    });
}

/// Complete segments of one TCP stream, as an uplink gives them with its kernel's word for their checksums,
/// merged for their receiver or not.
fn segment_rows(registry: &mut Registry) {
    let mut add = |name, beside: &[&str], lro| {
        registry.add(name, GBITS, beside, move |length| {
            let Switched { mut guests, mut worker, _switch: switch } = Switched::new(2, Load::Segments, lro);
            let counts = bursts(&mut guests, length, || {
                worker.step();
            });
            // What is measured is what the row is named after.
            let merged = switch.ports().iter().any(|port| port.stats.rx_coalesced.get() > 0);
            if merged != lro {
                return Err(io::Error::other(format!(
                    "segments merged: {merged}, and they were to be: {lro}"
                )));
            }
            Ok(counts.gbits())
        });
    };
    add("switch.coalesce", &[COPY_MERGED], true);
    add("switch.segments", &["switch.coalesce"], false);
}

/// Ports without a switch.
fn ports_rows(registry: &mut Registry) {
    registry.add("vmxnet3.ports.64", MFRAMES, &[], |length| Ok(ports(Load::Small, length).mframes()));
    registry.add("vmxnet3.ports.1500", GBITS, &[], |length| Ok(ports(Load::Full, length).gbits()));
    registry.add("vmxnet3.ports.64k", GBITS, &[COPY], |length| Ok(ports(Load::Super, length).gbits()));
}

/// Copies super-frames between buffers like the guests', on a worker's CPU.
fn plain_copy(length: Duration) -> io::Result<Sample> {
    let _placed = Cpus::allowed().pin(0);
    copy_frames(Load::Super.scatter(), length)
}

/// One guest sends to another through a bare wire.
fn ports(load: Load, length: Duration) -> Counts {
    let (a, port_a) = Guest::new(0, 1, load, true, Arc::default());
    let (b, port_b) = Guest::new(1, 0, load, true, Arc::default());
    let mut wire = Wire([port_a, port_b]);
    flood(&mut [a, b], 1, length, || wire.step())
}

/// The first guest sends.
fn one_way(Switched { mut guests, mut worker, .. }: Switched, length: Duration) -> Counts {
    flood(&mut guests, 1, length, || {
        worker.step();
    })
}

/// Guests behind the switch, the first `senders` of which send.
fn switched(count: u16, senders: u16, load: Load, lro: bool, length: Duration) -> io::Result<Counts> {
    let Switched { mut guests, mut worker, .. } = Switched::new(count, load, lro);
    let mut run = |length| {
        flood(&mut guests, senders.into(), length, || {
            worker.step();
        })
    };
    // Who gets no frames would never be through.
    if senders == count {
        settle(&mut run)?;
    }
    Ok(run(length))
}

/// Runs until every guest has got a frame into each of its buffers, so that the kernel has given them pages
/// and has them in the tables of both mappings: many guests' first touches take longer than a row.
fn settle(run: &mut impl FnMut(Duration) -> Counts) -> io::Result<()> {
    let mut fewest = 0;
    for _ in 0..MOST_SLICES {
        fewest += run(SLICE).received.iter().map(|(frames, _)| *frames).min().unwrap_or(0);
        if fewest >= BUFFERS {
            return Ok(());
        }
    }
    let time = SLICE * MOST_SLICES;
    Err(io::Error::other(format!(
        "a guest got {fewest} frames in {time:?}, too few to use its {BUFFERS} buffers"
    )))
}

/// The guests send to their neighbours: what the switch alone takes for it.
fn alone(Switched { mut guests, mut worker, .. }: Switched, length: Duration) -> io::Result<Counts> {
    let mut run = |length| {
        in_turns(&mut guests, length, || {
            worker.step();
        })
    };
    settle(&mut run)?;
    Ok(run(length))
}

/// What two honest pairs get beside guest 4, which sends to 5, a guest that may not be there.
fn honest(hostile: Option<(Load, usize)>, length: Duration) -> Sample {
    let mut loads = vec![Load::Full; 4];
    let (load, count) = hostile.unwrap_or((Load::Small, 5));
    loads.resize(count, load);
    let Switched { mut guests, mut worker, .. } = Switched::mixed(&loads, true);
    let sends = |number| number == 0 || number == 2 || number == 4 && hostile.is_some();
    let mut counts = flood_from(&mut guests, sends, length, || {
        worker.step();
    });
    counts.received.truncate(4);
    counts.gbits()
}

/// Of the first two of `count` guests.
fn round_trips(count: u16, length: Duration) -> Sample {
    let Switched { mut guests, mut worker, .. } = Switched::new(count, Load::Small, true);
    let _idle = guests.split_off(2);
    let Ok(mut pair) = <[Guest; 2]>::try_from(guests) else { unreachable!("two were made") };
    ping_pong(&mut pair, length, || {
        worker.step();
    })
}
