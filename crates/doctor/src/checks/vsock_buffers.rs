//! vsock's buffers.

use super::{Check, Threshold};
use crate::evidence::{Evidence, Kind};
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::size;

pub const CHECK: Check = Check {
    name: "vsock-buffers",
    title: "vsock's buffers are small",
    text: "A vsock connection has one buffer in each direction, which never grows by itself. With 64 KiB TCP is faster, with 256 KiB \
           vsock is far ahead. A program sets it (SO_VM_SOCKETS_BUFFER_SIZE, after SO_VM_SOCKETS_BUFFER_MAX_SIZE) before it connects \
           or listens.",
    reads: "the buffers of the measured connection, as the kernel tells them",
    thresholds: &[Threshold {
        limit: "below 256 KiB",
        source: "\"VMCI Socket Performance\" (2009), figures 1 and 2",
    }],
    examine,
};

const LEAST: u64 = 256 << 10;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    if !evidence.is_vsock {
        return Vec::new();
    }
    let sizes = evidence.runs(Kind::Stream).filter_map(|run| run.report.send_buffer);
    let Some(least) = sizes.min().filter(|least| *least < LEAST) else { return Vec::new() };
    let what = format!("vsock connections have buffers of {}.", size(least));
    let cost = Cost::estimated(0.5, "two thirds of the throughput and more");
    let remedy = Remedy::new("let programs set SO_VM_SOCKETS_BUFFER_SIZE to 256 KiB or more")
        .lasting("vmlane bench", "-s 256k");
    vec![
        Finding::new(CHECK.name, Severity::Slow, what, cost)
            .evidence(format!("{least} bytes (getsockopt)"))
            .remedy(remedy),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn small_ones_are_found() {
        let mut evidence = fixture::healthy();
        evidence.is_vsock = true;
        evidence.runs.iter_mut().for_each(|run| run.report.send_buffer = Some(65536));
        assert_eq!(examine(&evidence).len(), 1);
    }
}
