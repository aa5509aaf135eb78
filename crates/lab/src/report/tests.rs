//! A small sweep, drawn: what a reader must find, and that drawing again changes nothing.

use std::collections::BTreeMap;

use super::*;

fn row(device: &str, test: &str, sessions: u32, message_bytes: u64, run: u32) -> Row {
    let value = f64::from(run) * 10.0 * message_bytes as f64 * if device == OURS { 4.0 } else { 1.0 };
    let count = |names: [&str; 3]| -> BTreeMap<String, u64> {
        names.map(|name| (name.to_owned(), 1 << 20)).into_iter().collect()
    };
    let counters = [
        ("a".to_owned(), count(["stream_bytes_sent", "wrote_sent", "interrupts"])),
        ("b".to_owned(), count(["wrote_received", "read_sent", "interrupts"])),
    ];
    Row {
        version: 1,
        device: device.into(),
        kernel: "6.12".into(),
        accelerator: "tcg".into(),
        guests: 2,
        tool: "vmlane-bench".into(),
        test: test.into(),
        message_bytes,
        send_buffer: (test == "stream").then_some(65536 * u64::from(run)),
        sessions,
        run,
        throughput_bps: (test == "stream").then_some(value * 1e6),
        transactions_per_second: (test == "rr").then_some(value),
        wall_seconds: 2.0,
        host_other_cpu_seconds: Some(1.0),
        counters: if device == OURS { counters.into_iter().collect() } else { BTreeMap::new() },
        setup: Setup {
            cpu_model: "Some <CPU>".into(),
            cpus: 2,
            qemu: "11.1.3".into(),
            host_kernel: "6.1-host".into(),
            guest_kernel: "6.12-guest".into(),
            commit: Some("c0ffee".into()),
            pinned: "nothing".into(),
            date: "2025-01-31 17:05 UTC".into(),
            runs: 2,
            ..Setup::default()
        },
        ..Row::default()
    }
}

fn sweep() -> Vec<Row> {
    let mut rows = Vec::new();
    for device in [OURS, "qemu-virtio-net", "qemu-vmxnet3"] {
        for run in 1..=2 {
            for sessions in [1, 5] {
                rows.extend([512, 65536].map(|size| row(device, "stream", sessions, size, run)));
            }
            rows.push(row(device, "rr", 1, 1, run));
        }
    }
    rows
}

#[test]
fn a_reader_finds_figures_numbers_and_where_they_come_from() {
    let page = html(&sweep());
    // Two panels for one session, two for five, and one for round trips.
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (5, 5));
    for part in [
        "Figure 1: one session<",
        "Figure 2: five sessions<",
        "Figure 3: round trips",
        "VMCI, 64 KiB",
        "TCP, 128 KiB",
        "VMCI and TCP over qemu-vmxnet3",
        "Round trips per second: 4.00 times as many as TCP over qemu-virtio-net, 4.00 times",
        "moved 4.00 to 4.00 times the bytes of TCP over qemu-virtio-net",
        "Some &lt;CPU&gt;",
        "c0ffee",
        "6.1-host",
        "6.12-guest",
        "11.1.3, tcg",
        "2025-01-31 17:05 UTC",
        "<dt>Pinned to CPUs</dt><dd>nothing</dd>",
        "results.jsonl",
        "instructions were emulated",
        "0.50 of the host's 2 CPUs",
        "interrupts to a",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("NaN") && !page.contains("Runs that failed"));
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let page = html(&sweep()).replace("http://www.w3.org/2000/svg", "");
    for part in ["http:", "https:", "<script", "<link", "<img", "@import", "src="] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = rows::Writer::create(dir.path()).unwrap();
    sweep().iter().for_each(|row| writer.add(row).unwrap());
    let path = draw(dir.path()).unwrap();
    let first = std::fs::read(&path).unwrap();
    assert_eq!(String::from_utf8_lossy(&first), html(&sweep()));
    draw(dir.path()).unwrap();
    assert_eq!(first, std::fs::read(&path).unwrap());
}

#[test]
fn failed_runs_are_listed_and_do_not_stop_the_drawing() {
    let mut rows = sweep();
    for row in rows.iter_mut().filter(|row| row.device == OURS) {
        row.failed = Some("no <answer>".into());
    }
    let page = html(&rows);
    assert!(page.contains("10 of 30 runs failed") && page.contains("no &lt;answer&gt;"));
    assert!(!page.contains("NaN") && !page.contains("inf "));
}

#[test]
fn an_empty_result_says_so() {
    let dir = tempfile::tempdir().unwrap();
    rows::Writer::create(dir.path()).unwrap();
    assert!(draw(dir.path()).unwrap_err().to_string().contains("no rows"));
}
