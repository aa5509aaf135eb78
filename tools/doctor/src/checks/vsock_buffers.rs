//! vsock's buffers.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "vsock-buffers", examine };

const LEAST: u64 = 256 << 10;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    if !evidence.is_vsock {
        return Vec::new();
    }
    let sizes = evidence.runs(RunKind::Stream).filter_map(|run| run.report.send_buffer);
    let Some(least) = sizes.min().filter(|least| *least < LEAST) else { return Vec::new() };
    let what = format!("vsock connections have buffers of {}.", size(least));
    let cost = Cost::estimated(0.5, "two thirds of the throughput and more");
    let remedy = Remedy::new("let programs set SO_VM_SOCKETS_BUFFER_SIZE to 256 KiB or more")
        .lasting("vmlane bench", "-s 256k");
    vec![CHECK.slow(what, cost).evidence(format!("{least} bytes (getsockopt)")).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn small_ones_are_found() {
        let mut evidence = testing::healthy();
        evidence.is_vsock = true;
        evidence.runs.iter_mut().for_each(|run| run.report.send_buffer = Some(65536));
        assert_eq!(examine(&evidence).len(), 1);
    }
}
