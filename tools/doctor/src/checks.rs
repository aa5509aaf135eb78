//! The checks, one file each: a name and one function that examines the evidence. What each reads, its
//! thresholds and where they come from stand in the guide (docs/guide/slow-network.md), under its name.

pub mod alike;
mod black_hole;
mod bufferbloat;
mod busy;
mod captured;
mod checksum;
mod counters;
mod delayed_ack;
mod duplicate_address;
mod foreign_driver;
mod interrupts;
mod kernel_setting;
mod latency;
mod limits;
mod link_speed;
mod loopback;
mod loss;
mod lro_forwarding;
mod machine;
mod merging;
mod moderation;
mod mss;
mod mtu_mismatch;
mod nic_model;
mod order;
mod path_mtu;
mod policing;
mod queues;
mod retransmits;
mod rings;
mod rss_table;
mod segmentation;
mod sender_limit;
mod slow_answers;
mod small_window;
mod socket_buffers;
mod steal;
mod super_frames;
mod switch_drops;
mod tcp_options;
mod tunnel_offload;
pub mod unexplained;
mod vm_network;
mod vmm_settings;
mod vsock_address;
mod vsock_buffers;
mod vsock_transport;
mod way;
mod zero_window;

use crate::evidence::Evidence;
use crate::finding::Finding;

pub use unexplained::{health, unexplained};

pub struct Check {
    /// Its name in reports, and its anchor in the guide.
    pub name: &'static str,
    pub examine: fn(&Evidence) -> Vec<Finding>,
}

/// All checks, in the order of the guide: from the card up.
pub const ALL: [&Check; 58] = [
    &nic_model::CHECK,
    &foreign_driver::CHECK,
    &mtu_mismatch::CHECK,
    &path_mtu::CHECK,
    &black_hole::CHECK,
    &mss::CHECK,
    &super_frames::CHECK,
    &segmentation::CHECK,
    &merging::CHECK,
    &lro_forwarding::CHECK,
    &checksum::CHECK,
    &tunnel_offload::CHECK,
    &rings::CHECK,
    &queues::CHECK,
    &rss_table::CHECK,
    &interrupts::CHECK,
    &moderation::CHECK,
    &limits::QUEUEING,
    &limits::TRAFFIC_FILTER,
    &limits::FIREWALL,
    &limits::XDP,
    &counters::BACKLOG,
    &counters::OTHER_TRAFFIC,
    &counters::CONNTRACK,
    &way::ROUTE,
    &way::NETMASK,
    &way::NEIGHBOUR,
    &loss::CHECK,
    &retransmits::CHECK,
    &order::CHECK,
    &policing::CHECK,
    &bufferbloat::CHECK,
    &latency::CHECK,
    &socket_buffers::CHECK,
    &small_window::CHECK,
    &zero_window::CHECK,
    &delayed_ack::CHECK,
    &sender_limit::CHECK,
    &tcp_options::CHECK,
    &counters::TCP_MEMORY,
    &counters::ACCEPT_QUEUE,
    &kernel_setting::CHECK,
    &duplicate_address::CHECK,
    &busy::CHECK,
    &counters::CPU_QUOTA,
    &counters::MEMORY_PRESSURE,
    &kernel_setting::CLOCK,
    &steal::CHECK,
    &slow_answers::CHECK,
    &vsock_transport::CHECK,
    &vsock_address::CHECK,
    &vsock_buffers::CHECK,
    &switch_drops::CHECK,
    &vm_network::CHECK,
    &vmm_settings::CHECK,
    &loopback::CHECK,
    &link_speed::CHECK,
    &machine::CHECK,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing;

    /// The checks that answer each of the guide's ten questions, in the order of asking.
    const QUESTIONS: [&[&str]; 10] = [
        &[
            "duplicate-address",
            "slow-answers",
            "vsock-transport",
            "vsock-address",
            "vm-network",
            "netmask",
            "neighbour",
        ],
        &["latency", "route"],
        &[
            "busy-cpu",
            "steal",
            "vmm-settings",
            "machine-limit",
            "machine",
            "cpu-quota",
            "memory-pressure",
            "clock",
            "other-traffic",
        ],
        &["nic-model", "foreign-driver", "link-speed", "xdp"],
        &["mtu-mismatch", "path-mtu", "black-hole", "small-segments", "super-frames-lost"],
        &["segmentation-offload", "receive-merging", "lro-forwarding", "checksum-offload", "tunnel-offload"],
        &["rings", "queues", "rss-table", "interrupts", "interrupt-moderation", "backlog"],
        &["loss", "retransmits", "frame-order", "switch-drops"],
        &["policing", "bufferbloat", "queueing", "traffic-filter", "firewall", "conntrack"],
        &[
            "socket-buffers",
            "small-window",
            "zero-window",
            "delayed-ack",
            "sender-limit",
            "tcp-options",
            "vsock-buffers",
            "tcp-memory",
            "accept-queue",
            "kernel-setting",
        ],
    ];

    #[test]
    fn each_check_answers_one_of_the_guide_s_ten_questions() {
        let mut asked = QUESTIONS.concat();
        asked.sort_unstable();
        let mut names: Vec<&str> = ALL.iter().map(|check| check.name).collect();
        names.sort_unstable();
        assert_eq!(asked, names);
        let page = include_str!("../../../docs/guide/slow-network.md");
        let section = page.split("\n## ").find(|part| part.starts_with("Ten questions\n")).unwrap();
        for (number, expected) in (1..).zip(QUESTIONS) {
            let question = section.split_once(&format!("\n{number}. **")).unwrap().1;
            let (question, rest) = question.split_once("\n").unwrap();
            assert!(question.contains("?** `"), "question {number} has no command: {question}");
            let checks = rest.split_once("Checks: ").unwrap().1.lines().next().unwrap();
            let links = expected.iter().map(|name| format!("[{name}](#{name})"));
            assert_eq!(checks, links.collect::<Vec<_>>().join(", ") + ".", "question {number}");
        }
        assert_eq!(section.matches("Checks: ").count(), QUESTIONS.len());
    }

    #[test]
    fn the_guide_explains_each_check_under_its_name_and_no_other() {
        let names = ALL.iter().map(|check| check.name).chain([unexplained::NAME]);
        let names: Vec<&str> = names.collect();
        let page = include_str!("../../../docs/guide/slow-network.md");
        let parts: Vec<(&str, &str)> =
            page.split("\n### ").skip(1).filter_map(|part| part.split_once('\n')).collect();
        assert_eq!(parts.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for (name, text) in parts {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
            assert!(text.contains("\nReads: ") && text.contains("\n| finding from | source |\n"), "{name}");
        }
    }

    /// What is healthy is healthy for all of them, and nothing at all is no reason to panic.
    #[test]
    fn a_healthy_pair_has_no_finding() {
        let healthy = testing::healthy();
        for check in ALL {
            let found = (check.examine)(&healthy);
            assert!(found.is_empty(), "{}: {found:?}", check.name);
            (check.examine)(&Evidence::default());
        }
    }
}
