//! A small experiment, drawn: what a reader must find, and that drawing again changes nothing.

use super::*;
use crate::rows::PlanSource;
use crate::steps::Step;

const PLAN: &str = r#"
name = "t"
title = "A <title>"
paper = "The Paper, 2009"
notes = ["A note & more."]
runs = 2
seconds = 1

[[case]]
device = ["vmci", "vmxnet3", "qemu-e1000"]
sessions = [1, 5]
buffer = "64k"
message = ["512", "64k"]

[[case]]
device = ["vmci", "vmxnet3"]
test = "rr"
message = 1

[[figure]]
title = "Throughput"
x = "message"
series = ["device"]
panels = "sessions"
only = { test = "stream" }

[[figure]]
title = "Ratio"
kind = "ratio"
x = "message"
series = ["device", "sessions"]
only = { test = "stream", device = "vmci" }
over = { device = ["vmxnet3", "qemu-e1000"] }

[[figure]]
title = "Round trips"
kind = "lines"
value = "rtt-p50"
log = true
x = "device"
only = { test = "rr" }

[[claim]]
text = "VMCI is faster."
of = { device = "vmci", test = "stream" }
over = { device = "vmxnet3" }

[[claim]]
text = "It is 29 Gbit/s."
of = { device = "vmci", test = "stream", message = "64k" }

[[answer]]
text = "VMCI moved {value}, {ratio} times what {best} did."
of = { device = "vmci", test = "stream", message = "64k" }
over = { device = ["qemu-e1000", "vmxnet3"] }

[[answer]]
text = "Nobody asked for {value}."
of = { device = "virtio-net" }
"#;

/// The page as the rows alone make it.
fn html(rows: &[Row]) -> String {
    page(rows, plan_of(rows).as_ref())
}

fn row(step: &Step) -> Row {
    let factors = &step.factors;
    let times = match factors.text("device").as_str() {
        "vmci" => 4.0,
        "vmxnet3" => 2.0,
        _ => 1.0,
    };
    let value = f64::from(step.run) * times * factors.message as f64;
    let asks = factors.test.is_transactional();
    let rtt = vmlane_bench::report::RoundTrips {
        min: 1.0,
        p50: 100.0 / times,
        p90: 3.0,
        p99: 4.0,
        p999: 5.0,
        max: 6.0,
    };
    Row {
        version: 1,
        id: factors.id(),
        device: factors.text("device"),
        kernel: "6.12".into(),
        accelerator: "tcg".into(),
        guests: 2,
        tool: "vmlane".into(),
        test: factors.test.name().into(),
        message_bytes: factors.message,
        send_buffer: factors.buffer,
        sessions: factors.sessions,
        run: step.run,
        throughput_bps: (!asks).then_some(value * 1e6),
        transactions_per_second: asks.then_some(value),
        rtt_us: asks.then_some(rtt),
        wall_seconds: 2.0,
        host_cpu_seconds: Some(1.0),
        host_other_cpu_seconds: Some(1.0),
        setup: Setup {
            cpu_model: "Some <CPU>".into(),
            cpus: 2,
            qemu: "11.1.3".into(),
            host_kernel: "6.1-host".into(),
            guest_kernel: "6.12-guest".into(),
            commit: Some("c0ffee".into()),
            pinned: "nothing".into(),
            date: "2025-01-31 17:05 UTC".into(),
            plan: "t".into(),
            runs: 2,
            ..Setup::default()
        },
        ..Row::default()
    }
}

fn sweep() -> Vec<Row> {
    let plan = Plan::parse(PLAN, false).unwrap();
    let mut rows: Vec<Row> = plan.boots().iter().flat_map(|boot| &boot.steps).map(row).collect();
    rows[0].plan_source = Some(PlanSource { text: PLAN.into(), quick: false });
    rows
}

#[test]
fn a_reader_finds_figures_claims_numbers_and_where_they_come_from() {
    let page = html(&sweep());
    // Two panels, a ratio, round trips.
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (4, 4));
    // 3 devices by 2 sizes by 2 panels; 2 devices by 2 sessions by 2 sizes; 2 devices.
    assert_eq!(page.matches("class=\"mark ").count(), 12 + 8 + 2);
    for part in [
        "A &lt;title&gt;",
        "After: The Paper, 2009",
        "A note &amp; more.",
        "Figure 1: Throughput<",
        "Throughput: 5 sessions",
        "Figure 3: Round trips",
        "message size",
        "VM to VM, sending, 64 KiB buffers",
        "What was published, and what was measured",
        "64 KiB<",
        "whisker: from the least to the most",
        "VMCI is faster.</td><td>Throughput, vmci / vmxnet3: 2.00 to 2.00 times, in the middle 2.00 (4 combinations)<small>one boot<",
        "29 Gbit/s.</td><td>Throughput: 393 Gbit/s",
        "vmci / each device",
        "Some &lt;CPU&gt;",
        "c0ffee",
        "6.1-host",
        "6.12-guest",
        "11.1.3",
        "2025-01-31 17:05 UTC",
        "<dt>Pinned to CPUs</dt><dd>nothing</dd>",
        "results.jsonl",
        "QEMU emulated its guests",
        "0.50 of the host's 2 CPUs",
        "28 runs were made.",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for part in ["NaN", "Runs that failed", "Rows that are missing", "take several combinations"] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn the_warning_comes_first_then_the_answer() {
    let page = html(&sweep());
    let places =
        ["QEMU emulated", "VMCI moved 393 Gbit/s, 2.00 times what vmxnet3 did.", "A note", "Figure 1"]
            .map(|part| page.find(part).unwrap_or_else(|| panic!("{part}: {page}")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(!page.contains("Nobody asked"), "what was not measured has no sentence");
    let apart = page_of(&PLAN.replace("panels = \"sessions\"", "panels = \"maker\""));
    assert!(
        apart.contains("Throughput: vmlane's devices") && apart.contains("Throughput: QEMU's"),
        "{apart}"
    );
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let page = html(&sweep()).replace("http://www.w3.org/2000/svg", "");
    for part in ["http:", "https:", "<script", "<img", "@import", "src="] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn the_same_rows_give_the_same_bytes_and_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = rows::Writer::create(dir.path()).unwrap();
    sweep().iter().for_each(|row| writer.add(row).unwrap());
    let path = draw(dir.path()).unwrap();
    let first = std::fs::read(&path).unwrap();
    assert_eq!(String::from_utf8_lossy(&first), html(&sweep()));
    draw(dir.path()).unwrap();
    assert_eq!(first, std::fs::read(&path).unwrap());
    for name in ["1a.svg", "1b.svg", "2.svg", "3.svg"] {
        let bytes = std::fs::read(dir.path().join(FIGURES).join(name)).unwrap();
        assert!(bytes.len() > 1000, "{name}");
    }
}

#[test]
fn failed_runs_are_listed_with_their_logs_and_do_not_stop_the_drawing() {
    let mut rows = sweep();
    for row in rows.iter_mut().filter(|row| row.device == "vmci") {
        row.failed = Some("no <answer>".into());
        row.log = Some("panic & end".into());
    }
    let page = html(&rows);
    assert!(page.contains("10 of 28 runs failed") && page.contains("no &lt;answer&gt;"));
    assert!(page.contains("panic &amp; end") && page.contains("not measured"));
    assert!(!page.contains("NaN") && !page.contains("inf "));
}

#[test]
fn a_report_of_a_file_that_was_cut_short_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = rows::Writer::create(dir.path()).unwrap();
    let all = sweep();
    all.iter().for_each(|row| writer.add(row).unwrap());
    let path = dir.path().join(rows::FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    // In the middle of a line.
    let line = text.match_indices('\n').nth(25).unwrap().0;
    std::fs::write(&path, &text[..line + 40]).unwrap();
    let page = std::fs::read_to_string(draw(dir.path()).unwrap()).unwrap();
    assert!(
        page.contains("26 runs were made; <strong>2 combinations lack rows</strong>"),
        "{}",
        &page[..3000]
    );
    assert!(all[26..].iter().all(|row| page.contains(&format!("{}: 1 of 2 runs", row.id))));
}

#[test]
fn an_empty_result_is_reported_and_rows_without_a_plan_are_shown_as_numbers() {
    let dir = tempfile::tempdir().unwrap();
    rows::Writer::create(dir.path()).unwrap();
    assert!(draw(dir.path()).unwrap_err().to_string().contains("no rows"));
    let mut rows = sweep();
    rows[0].plan_source = None;
    let page = html(&rows);
    assert!(page.contains("carry no plan") && page.contains("<td class=\"text\">vmxnet3</td>"));
}

/// Rows of another plan.
fn page_of(plan: &str) -> String {
    let source = Plan::parse(plan, false).unwrap();
    let mut rows: Vec<Row> = source.boots().iter().flat_map(|boot| &boot.steps).map(row).collect();
    rows[0].plan_source = Some(PlanSource { text: plan.into(), quick: false });
    html(&rows)
}

#[test]
fn without_a_paper_no_claim_is_called_published() {
    let page = page_of(&PLAN.replace("paper = \"The Paper, 2009\"\n", ""));
    assert!(page.contains("What was expected, and what was measured") && page.contains("<th>expected</th>"));
    assert!(!page.contains("published"));
}

#[test]
fn factors_that_change_together_are_named_together_and_others_alone() {
    let plan = PLAN.replace(
        "buffer = \"64k\"\nmessage = [\"512\", \"64k\"]",
        "buffer = \"8k\"\nmessage = \"512\"\n\n[[case]]\ndevice = \"vmci\"\nbuffer = \"64k\"\nmessage = \"64k\"",
    );
    let page = page_of(&plan);
    assert!(page.contains("Marks also differ in: socket buffers."), "the axis has message sizes only");
    let page = page_of(&plan.replace("x = \"message\"", "x = [\"message\", \"buffer\"]"));
    assert!(page.contains("message size, socket buffers<"), "{page}");
    assert!(page.contains(">512 B messages,<") && page.contains(">8 KiB buffers<"), "{page}");
    assert!(!page.contains("Marks also differ"));
}
