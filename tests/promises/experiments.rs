//! Experiments in real guests: a killed guest costs only its own run, an interrupted experiment can be
//! resumed, and a browser shows the report.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use vmlane_api::{Client, call};
use vmlane_experiment::{Row, rows};
use vmlane_lab::Lab;
use vmlane_tests::alone::{printed, vmlane};
use vmlane_tests::tree::read;
use vmlane_tests::{Process, kept, wait_until};

use crate::site::browser::Browser;

vmlane_tests::tests! {
    plain {
        every_claim_of_the_papers_has_a_line_with_its_experiment_and_a_verdict,
    }
    guests {
        a_guest_killed_in_mid_run_costs_only_that_run,
        an_invalid_plan_is_refused_with_its_line_and_boots_nothing,
    }
    long {
        an_interrupted_experiment_is_resumed_and_a_browser_shows_its_report,
        a_set_of_experiments_is_drawn_beside_another,
    }
}

/// Guests that are up in two seconds.
const PLAN: &str = r#"
name = "thin"
title = "A thin plan"
runs = 1
seconds = 2
warmup = 0.2
max_skew_ms = 5000

[matrix]
machine = "uml"
kernel = "7.2um1"
device = "virtio-net"
message = ["4k", "16k", "64k"]
buffer = "64k"

[[figure]]
title = "Throughput"
x = "message"
series = ["device"]
"#;

fn start(plan: &Path, out: &Path, name: &str) -> Process {
    Process(vmlane().args(["lab", "run", "--name", name, "--out"]).args([out, plan]).spawn().unwrap())
}

fn rows_of(out: &Path) -> Vec<Row> {
    rows::read(out).unwrap_or_default()
}

fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (plan, out) = (dir.path().join("plan.toml"), dir.path().join("out"));
    std::fs::write(&plan, PLAN).unwrap();
    (dir, plan, out)
}

/// Bytes that guest b's card has received.
fn arrived(lab: &Lab) -> u64 {
    let stats = Client::connect(&lab.daemon_runtime_dir()).unwrap().call(&call::Stats {}).unwrap();
    stats.vms.iter().find(|vm| vm.name == "b").unwrap().nics[0].port.get("rx_bytes")
}

/// How a verdict begins.
const VERDICTS: [&str; 3] = ["holds", "does not hold", "not measured"];

/// The claims of the papers and the rungs of the post, in the order of the table.
fn claims() -> Vec<String> {
    let of = [("V", 1..=8), ("X", 1..=8), ("S", 1..=6), ("B", 0..=7)];
    of.into_iter()
        .flat_map(|(letter, numbers)| numbers.map(move |number| format!("{letter}{number}")))
        .collect()
}

fn every_claim_of_the_papers_has_a_line_with_its_experiment_and_a_verdict() {
    let table = read("experiments/README.md");
    let (_, table) = table.split_once("## Claim by claim").expect("the table's heading");
    let lines = table.lines().filter(|line| line.starts_with("| ")).skip(2);
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(lines.iter().map(|cells| cells[1]).collect::<Vec<_>>(), claims());
    for cells in lines {
        let [_, id, claim, experiments, verdict, _] = cells[..] else { panic!("{cells:?}") };
        assert!(!claim.is_empty() && VERDICTS.iter().any(|begin| verdict.starts_with(begin)), "{cells:?}");
        let folders: Vec<&str> =
            experiments.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        assert!(!folders.is_empty(), "{cells:?}");
        for folder in folders {
            let mut words = read(format!("experiments/{folder}/README.md"));
            words.retain(|c| c.is_alphanumeric() || c.is_whitespace());
            assert!(words.split_whitespace().any(|word| word == id), "{folder} does not mention {id}");
        }
    }
}

fn a_guest_killed_in_mid_run_costs_only_that_run() {
    let (_dir, plan, out) = files();
    let name = format!("texp-kill-{}", std::process::id());
    let mut run = start(&plan, &out, &name);
    wait_until("there is a row", || !rows_of(&out).is_empty());
    let lab = Lab::open(&name).unwrap();
    let before = arrived(&lab);
    // More than what clients and servers exchange before they begin.
    wait_until("the second run's bytes arrive", || arrived(&lab) > before + (1 << 20));
    lab.guest("b").kill().unwrap();
    let status = run.wait();
    let rows = rows_of(&out);
    let failed: Vec<&Row> = rows.iter().filter(|row| row.failed.is_some()).collect();
    assert_eq!((rows.len(), failed.len(), status.code()), (3, 1, Some(1)), "{failed:?}");
    assert!(failed[0].failed.as_deref().unwrap().contains("guest b"), "{:?}", failed[0].failed);
    assert!(failed[0].log.as_deref().unwrap().contains("==> b <=="), "{:?}", failed[0].log);
    assert!(rows.last().unwrap().throughput_bps.is_some(), "the next run has a result");
    kept(
        "experiments",
        "a guest killed in mid-run costs that run only, whose row has the reason; the next one has a result",
    );
}

fn an_interrupted_experiment_is_resumed_and_a_browser_shows_its_report() {
    let (_dir, plan, out) = files();
    let name = format!("texp-go-{}", std::process::id());
    let mut run = start(&plan, &out, &name);
    wait_until("there is a row", || !rows_of(&out).is_empty());
    run.signal(Signal::INT);
    assert_eq!(run.wait().code(), Some(130));
    let before = rows_of(&out);
    assert!(before.len() < 3, "it ended early");
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("combinations lack rows"));

    assert_eq!(start(&plan, &out, &name).wait().code(), Some(0));
    let after = rows_of(&out);
    assert_eq!(after.len(), 3);
    assert_eq!(after[..before.len()], before[..], "rows written before are unchanged");
    browse(&out.join("report.html"));
    kept("experiments", "interrupted and started again, an experiment makes only the runs that it lacks");
}

fn an_invalid_plan_is_refused_with_its_line_and_boots_nothing() {
    let (dir, plan, out) = files();
    std::fs::write(&plan, PLAN.replace("\"16k\"", "\"99999999999999999999k\"")).unwrap();
    let output = vmlane().args(["lab", "run", "--out"]).args([&out, &plan]).output().unwrap();
    let printed = printed(&output);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("line 13: message: \"99999999999999999999k\""), "{printed}");
    assert!(!out.exists() && dir.path().exists());
}

/// Rows of two machines, here of one twice.
fn a_set_of_experiments_is_drawn_beside_another() {
    let dir = tempfile::tempdir().unwrap();
    let vmlane = |words: &[&str]| {
        let output = vmlane().args(words).current_dir(&dir).output().unwrap();
        (output.status.code(), printed(&output))
    };
    let plan = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/near-native/plan.toml");
    let short =
        ["lab", "run", plan, "--out", "set/near-native", "--quick", "--runs", "1", "--seconds", "0.3"];
    let (code, printed) = vmlane(&short);
    assert_eq!(code, Some(0), "{printed}");
    let rows = rows_of(&dir.path().join("set/near-native"));
    assert!(rows.iter().all(|row| row.failed.is_none()) && rows.len() > 10);
    let (code, printed) = vmlane(&short);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("run: 0 runs in"), "what has a row is not made again: {printed}");
    let (code, printed) = vmlane(&["lab", "draw", "set", "set", "--out", "both"]);
    assert_eq!(code, Some(0), "{printed}");
    let page = dir.path().join("both/report.html");
    assert!(std::fs::read_to_string(&page).unwrap().contains("virtio-vsock, 64 KiB buffers, machine B"));
    browse(&page);
    let (code, printed) = vmlane(&["lab", "draw", "set", "both"]);
    assert!(code == Some(1) && printed.contains("there are no rows in both"), "{printed}");
    kept("experiments", "a set of experiments is drawn beside another");
}

/// Opens a page in a browser: its console must stay empty, and every chart must have marks.
fn browse(page: &Path) {
    let mut browser = Browser::start();
    let complaints = browser.open(&format!("file://{}", page.display()));
    assert!(complaints.is_empty(), "{complaints:?}");
    let dom = browser.evaluate("document.documentElement.outerHTML");
    let dom = dom.as_str().expect("a page");
    let charts: Vec<&str> =
        dom.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
    assert!(!charts.is_empty(), "the page has no chart: {dom}");
    for chart in charts {
        assert!(
            chart.contains("class=\"mark ") && chart.contains("x-title") && chart.contains("y-title"),
            "{chart}"
        );
    }
}
