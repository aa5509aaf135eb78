//! The daemon itself: is it there, how long, what it does with its threads, what went wrong.

use std::fmt;

use prometheus_client::metrics::MetricType;
use vmlane_api::WorkerStatus;

use super::{Families, Scrape, Shown, family, shown, shown_bytes};

const FAULTS: [Shown; 3] = [
    shown("stuck_workers", "stuck_workers", "Times a worker was found stuck"),
    shown("quarantines", "quarantines", "Times a VM's devices were taken out of service for their faults"),
    shown("panics", "contained_faults", "Faults contained in the daemon's own threads"),
];

const MEMORY: [Shown; 1] =
    [shown("huge_pages", "huge_pages", "Times that 2 MiB of VMs' memory were put into a huge page")];

const STREAMS: [Shown; 9] = [
    shown_bytes("bytes", "stream_moved", "Bytes that the stream workers copied from end to end"),
    shown("turns", "stream_turns", "Turns of streams that moved something"),
    shown("joined", "streams_joined", "Streams joined"),
    shown("deferred", "stream_turns_deferred", "Turns put off because a VM had had its share of the round"),
    shown("broken", "streams_broken", "Streams ended because an end broke the rules of its ring"),
    shown("panics", "stream_faults", "Streams ended because of a fault of ours"),
    shown_bytes("overflow_bytes", "stream_overflow", "Bytes kept for a peer after their sender had left"),
    shown_bytes(
        "lost_bytes",
        "stream_lost",
        "Bytes lost because their sender left and its limit was reached",
    ),
    shown("lost_notices", "stream_lost_notices", "Notices that had got lost and were made good"),
];

const VSOCK: [Shown; 8] = [
    shown("packets", "virtio_vsock_packets", "Packets that virtio-vsock guests sent"),
    shown_bytes("bytes", "virtio_vsock_moved", "Payload bytes delivered by the virtio-vsock worker"),
    shown("refused", "virtio_vsock_refused_packets", "Packets of virtio-vsock guests answered with RST"),
    shown("forged", "virtio_vsock_forged_packets", "Packets whose source was not their sender"),
    shown("malformed", "virtio_vsock_malformed_packets", "Descriptor chains that are no packets"),
    shown(
        "stalled",
        "virtio_vsock_stalled_connections",
        "Connections reset because their receiver had no buffers for too long",
    ),
    shown(
        "deferred",
        "virtio_vsock_turns_deferred",
        "Turns put off because a VM had had its share of the worker",
    ),
    shown("panics", "virtio_vsock_faults", "Faults of ours contained in the virtio-vsock worker"),
];

const SWITCH: [Shown; 4] = [
    shown("rounds", "switch_rounds", "Rounds of the switch's worker in which a frame moved"),
    shown("naps", "switch_naps", "Short sleeps of the switch's worker"),
    shown("sleeps", "switch_sleeps", "Longer sleeps of the switch's worker"),
    shown("panics", "switch_faults", "Faults of ours contained in the switch's worker"),
];

const CAPTURES: [Shown; 3] = [
    shown("begun", "captures_begun", "Captures begun"),
    shown("recorded", "capture_records", "Frames and pieces of streams that captures recorded"),
    shown("lost", "capture_lost_records", "Records that captures lost because their readers were too slow"),
];

pub fn write(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let (status, stats) = (scrape.status(), scrape.stats());
    workers(scrape, families)?;
    families.counters(&FAULTS, stats.into_iter().map(|stats| ([], &stats.daemon)))?;
    families.counters(&MEMORY, stats.into_iter().map(|stats| ([], &stats.daemon)))?;
    families.counters(&STREAMS, stats.into_iter().map(|stats| ([], &stats.workers)))?;
    families.counters(&VSOCK, stats.into_iter().map(|stats| ([], &stats.vsock)))?;
    families.counters(&SWITCH, stats.into_iter().map(|stats| ([], &stats.switch)))?;
    families.counters(&CAPTURES, stats.into_iter().map(|stats| ([], &stats.captures)))?;
    let running = stats.map(|stats| stats.captures.get("running"));
    families.one(&family("captures_running", "Captures under way"), running)?;

    let build = family("build", "The version of the daemon's program");
    families.write(&build, MetricType::Info, |samples| {
        status.map_or(Ok(()), |status| samples.add(&[("version", &status.daemon)], true))
    })?;
    let uptime = family(
        "uptime",
        "Time since the daemon was started: counters of other things than VMs, NICs and uplinks are as old",
    )
    .in_seconds();
    families.one(&uptime, status.map(|status| status.uptime_seconds))?;
    let confined = family("confined", "1 if the daemon gave up the rights it does not need");
    families.one(&confined, status.map(|status| status.confined != "no"))?;
    let survives = family("survival_lost", "1 if VMCI streams would not outlive the daemon");
    families.one(&survives, status.map(|status| status.survival_lost.is_some()))?;
    itself(scrape, families)
}

/// What a worker has spent in some way.
type Seconds = fn(&WorkerStatus) -> f64;

/// Threads that move bytes and frames.
fn workers(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let watched = || scrape.status().into_iter().flat_map(|status| &status.watched);
    let busy =
        family("worker_busy", "Time in which a worker had work; its rate is the worker's load, 1 at most");
    let spin = family("worker_spin", "Time in which a worker polled in vain, at once again and again");
    let yields = family("worker_yield", "Time in which a worker polled in vain and offered its core between");
    let nap =
        family("worker_nap", "Time in which a worker polled in vain, with short pauses by a timer between");
    let times: [(_, Seconds); 4] = [
        (busy, |worker| worker.busy_seconds),
        (spin, |worker| worker.spin_seconds),
        (yields, |worker| worker.yield_seconds),
        (nap, |worker| worker.nap_seconds),
    ];
    for (family, seconds) in times {
        families.counter(&family.in_seconds(), |samples| {
            watched().try_for_each(|worker| samples.add(&[("worker", &worker.name)], seconds(worker)))
        })?;
    }
    let stuck = family("worker_stuck", "1 if a worker is awake and gets nothing done");
    families.each(&stuck, watched(), |worker| {
        ([("worker", worker.name.as_str())], worker.stuck_seconds.is_some())
    })
}

/// The exporter, which answers without a daemon, too.
fn itself(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let vms = scrape.status().map(|_| scrape.vms().len() + scrape.left_out);
    families.one(&family("vms", "VMs that the daemon serves"), vms)?;
    let left_out = family("vms_left_out", "VMs that are not shown because there are too many (--max-vms)");
    families.one(&left_out, Some(scrape.left_out))?;
    families.one(&family("up", "1 if the daemon answered this scrape"), Some(scrape.answers.is_some()))?;
    let restarts = family("restarts", "Times another daemon process answered than at the scrape before");
    families.counter(&restarts, |samples| samples.add(&[], scrape.seen.restarts))?;
    families.counter(&family("scrapes", "Times the daemon was asked"), |samples| {
        samples.add(&[], scrape.seen.scrapes)
    })?;
    let failures = family("scrape_failures", "Times the daemon was asked and did not answer");
    families.counter(&failures, |samples| samples.add(&[], scrape.seen.failures))?;
    let duration = family("scrape_duration", "Time that this scrape took").in_seconds();
    families.one(&duration, Some(scrape.duration()))
}
