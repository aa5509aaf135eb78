//! `vmlane metrics` before a real Prometheus: `promtool` finds nothing to complain of, one Prometheus scrapes
//! thirty daemons, an alert goes off when one of them ends, and a scrape of a daemon with 200 VMs is cheap.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlane_testkit::Daemon;
use vmlane_tests::alone::{self, processor_seconds, vmlane};
use vmlane_tests::{Bed, Process, kept, median, spec, wait_until};

vmlane_tests::tests! {
    long {
        a_scrape_of_200_vms_is_cheap,
        every_panel_of_the_board_shows_data_of_guests_that_send,
        one_prometheus_watches_thirty_daemons,
        promtool_has_no_complaints,
    }
}

const DAEMONS: usize = 30;
const VMS: usize = 200;
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/prometheus/vmlane.rules.yml");

/// A daemon with `vms` VMs that have VMCI and a card.
fn daemon(vms: usize) -> Daemon {
    let vm = |vm: usize| {
        let mac = format!("52:54:00:00:{:02x}:{:02x}", vm / 256, vm % 256);
        let nic = format!("{{ model = \"vmxnet3\", mac = \"{mac}\" }}");
        format!("[[vm]]\nname = \"vm{vm}\"\ncid = {}\nnic = [ {nic} ]\n", vm + 3)
    };
    let daemon = alone::daemon(&(0..vms).map(vm).collect::<String>());
    daemon.start();
    daemon
}

/// An exporter of the daemon there, and its address.
fn exporter(runtime: &Path) -> (Process, String) {
    let mut command = vmlane();
    command.args(["metrics", "--listen", "127.0.0.1:0", "--runtime-dir"]).arg(runtime);
    let mut exporter = Process(command.stderr(Stdio::piped()).spawn().expect("an exporter"));
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.take().expect("its stderr")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (exporter, address.unwrap_or_else(|| panic!("{line:?}")).to_owned())
}

/// The body of an answer.
fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/openmetrics-text\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool, of Debian's package prometheus");
    child.stdin.take().expect("its stdin").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("its output");
    // It prints what it would have otherwise, and exits with 3 then.
    assert!(output.status.success() && output.stderr.is_empty(), "promtool {arguments:?}: {output:?}");
}

fn promtool_has_no_complaints() {
    promtool(&["check", "rules", RULES], "");
    promtool(&["check", "metrics"], &daemon(3).must(&["metrics", "--format", "prometheus"]));
}

fn a_scrape_of_200_vms_is_cheap() {
    let daemon = daemon(VMS);
    let (exporter, address) = exporter(&daemon.runtime());
    let begun = Instant::now();
    // What the daemon does without being asked.
    let used = || processor_seconds(daemon.pid());
    let idle = used();
    std::thread::sleep(Duration::from_secs(10));
    let idle = (used() - idle) / begun.elapsed().as_secs_f64();

    let (mut times, mut bytes) = (Vec::new(), 0);
    let used = || used() + processor_seconds(exporter.id());
    let (begun, before) = (Instant::now(), used());
    let scrapes = 20;
    for _ in 0..scrapes {
        // The exporter asks the daemon once a second at most.
        std::thread::sleep(Duration::from_millis(1100));
        let begun = Instant::now();
        bytes = get(&address, "/metrics").expect("an answer").len();
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let used = used() - before - idle * begun.elapsed().as_secs_f64();
    let each = used.max(0.0) * 1e3 / f64::from(scrapes);
    let (slowest, time) = (times.iter().copied().fold(0.0, f64::max), median(times));
    println!(
        "a scrape of {VMS} VMs: {time:.1} ms (median of {scrapes}, slowest {slowest:.1}), {bytes} bytes, {each:.1} ms \
         of CPU time in the exporter and the daemon: {:.2} % of a core at one in 15 s",
        each / 150.0
    );
    // CPU time is the same on a busy machine; a scrape takes no longer than this on a free one.
    assert!(each < 100.0, "{time} ms, {each} ms of CPU time");
}

/// A Prometheus that scrapes `targets` every second.
fn prometheus(directory: &Path, targets: &[String]) -> (Process, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = port.expect("a free port").to_string();
    let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [ \"{RULES}\" ]\nscrape_configs:\n  \
         - job_name: vmlane\n    static_configs: [ {{ targets: [ {} ] }} ]\n",
        targets.join(", ")
    );
    std::fs::create_dir_all(directory).expect("a directory");
    let file = directory.join("prometheus.yml");
    std::fs::write(&file, config).expect("a configuration");
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
    command.arg(format!("--web.listen-address={address}")).stdin(Stdio::null()).stdout(Stdio::null());
    let log = std::fs::File::create(directory.join("log")).expect("a log");
    let process = Process(command.stderr(log).spawn().expect("prometheus, of Debian's package of this name"));
    wait_until("Prometheus is ready", || {
        get(&address, "/-/ready").is_some_and(|text| text.contains("Ready"))
    });
    (process, address)
}

/// The value of a query that has one result.
fn query(address: &str, query: &str) -> Option<f64> {
    values(address, query).ok()?.first().copied()
}

/// The values of all results of a query; or why there is none.
fn values(address: &str, query: &str) -> Result<Vec<f64>, String> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = get(address, &format!("/api/v1/query?query={escaped}")).ok_or("no answer")?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
    let results = answer["data"]["result"].as_array().ok_or_else(|| answer.to_string())?;
    let value = |result: &Value| result["value"][1].as_str()?.parse().ok();
    results.iter().map(|result| value(result).ok_or_else(|| result.to_string())).collect()
}

fn one_prometheus_watches_thirty_daemons() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut daemons: Vec<Daemon> = (0..DAEMONS).map(|_| daemon(2)).collect();
    let (_exporters, addresses): (Vec<_>, Vec<_>) =
        daemons.iter().map(|daemon| exporter(&daemon.runtime())).unzip();
    let (_prometheus, address) = prometheus(&folder.path().join("prometheus"), &addresses);
    let is = |what: &str, value: f64| {
        wait_until(&format!("{what} is {value}"), || query(&address, what) == Some(value));
    };
    is("sum(vmlane_up)", DAEMONS as f64);
    is("sum(vmlane_vms)", 2.0 * DAEMONS as f64);
    is("sum(up)", DAEMONS as f64);
    // Types and units have come through, so it was OpenMetrics.
    let metadata = get(&address, "/api/v1/metadata?metric=vmlane_nic_sent_bytes").expect("an answer");
    assert!(metadata.contains("\"counter\"") && metadata.contains("\"unit\":\"bytes\""), "{metadata}");
    let slowest = query(&address, "max(scrape_duration_seconds)").expect("a number");
    println!("Prometheus scraped {DAEMONS} daemons; the slowest scrape took {:.1} ms", slowest * 1e3);

    drop(daemons.pop());
    is("sum(vmlane_up)", DAEMONS as f64 - 1.0);
    is("sum(up)", DAEMONS as f64);
    // Prometheus waits for a minute before it sends the alert; it counts as pending until then.
    is("count(ALERTS{alertname=\"VmlaneDaemonDown\"})", 1.0);
    is("count(ALERTS{alertname=~\"Vmlane.*\",alertname!=\"VmlaneDaemonDown\"}) or vector(0)", 0.0);
}

const BOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/grafana/vmlane.json");
/// Beside a lab's two guests: uplinks in a team, a mirror, and cards that may receive less than they get.
const BUSY: &str = "\
[[port_group]]
name = \"net0\"
shape = { out = { average = \"40M\", burst = \"100K\" } }
[[uplink]]
name = \"first\"
tap = \"vlboard0\"
[[uplink]]
name = \"second\"
tap = \"vlboard1\"
[[team]]
name = \"outside\"
uplinks = [\"first\"]
standby = [\"second\"]
[[mirror]]
name = \"ids\"
from = [\"a/nic0\"]
to = \"b/nic0\"
";
/// What only AF_XDP uplinks have.
const WITHOUT_DATA: [&str; 1] = ["vmlane_uplink_interface_lost_frames_total"];
/// Panels whose values must be more than 0 while guests send.
const MOVING: [&str; 8] = [
    "VMs connected",
    "Worker load",
    "Bytes sent (up) and received (down)",
    "Frames sent (up) and received (down)",
    "Shaping: share of the time that frames waited for tokens",
    "Stream bytes sent (up) and received (down)",
    "Copies delivered, and dropped",
    "Time of a scrape",
];

/// Each expression of the board as Grafana would ask it, with the title of its panel.
fn board() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(BOARD).expect("the board");
    let board: Value = serde_json::from_str(&text).expect("JSON");
    let mut expressions = Vec::new();
    for panel in board["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let asked = [("$instance", ".*"), ("$vm", ".*"), ("$__rate_interval", "10s")]
                .into_iter()
                .fold(expression.to_owned(), |text, (from, to)| text.replace(from, to));
            expressions.push((panel["title"].as_str().expect("a title").to_owned(), asked));
        }
    }
    expressions
}

fn every_panel_of_the_board_shows_data_of_guests_that_send() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut spec = spec("board", &["6.12"; 2]).device("vmxnet3").expect("a device");
    let config = folder.path().join("more.toml");
    std::fs::write(&config, BUSY).expect("a configuration");
    spec.daemon_config = Some(config);
    let bed = Bed::up(&spec);
    let (exporter, target) = exporter(&bed.lab().daemon_runtime_dir());
    let (prometheus, address) = prometheus(&folder.path().join("prometheus"), &[target]);
    let server =
        ["vmlane", "bench", "server", "--listen", "vsock:", "--listen", "tcp:0.0.0.0"].map(str::to_owned);
    let _server = bed.guest("b").spawn(server).expect("a server");
    let stream = |to: &str| {
        let line =
            format!("while :; do vmlane bench stream --to {to} -l 20 || sleep 1; done >/dev/null 2>&1");
        bed.guest("a").spawn(["sh", "-c", &line].map(str::to_owned)).expect("a client")
    };
    let _streams = [stream("vsock:4"), stream("tcp:10.77.0.2")];

    let board = board();
    // Without what a panel leaves out because nothing has happened yet.
    let all: Vec<(&str, String)> =
        board.iter().map(|(title, asked)| (title.as_str(), asked.replace(" > 0", ""))).collect();
    let moving = |title: &str| {
        let mut asked = all.iter().filter(|(of, _)| *of == title);
        asked.any(|(_, asked)| {
            values(&address, asked).is_ok_and(|found| found.iter().any(|value| *value > 0.0))
        })
    };
    for title in MOVING {
        wait_until(&format!("the panel {title:?} shows more than 0"), || moving(title));
    }
    let mut empty = Vec::new();
    for ((title, asked), (_, unfiltered)) in board.iter().zip(&all) {
        let found = values(&address, asked).unwrap_or_else(|error| panic!("{title}: {asked}: {error}"));
        assert!(found.iter().all(|value| value.is_finite()), "{title}: {asked}: {found:?}");
        if values(&address, unfiltered).is_ok_and(|found| found.is_empty()) {
            empty.push(unfiltered);
        }
    }
    empty.retain(|asked| !WITHOUT_DATA.iter().any(|family| asked.contains(family)));
    assert!(empty.is_empty(), "without data: {empty:#?}");
    kept(
        "operation",
        &format!("the {} expressions of the board, asked of a Prometheus while two guests send", board.len()),
    );
    // Nothing of the lab may be in use.
    drop((prometheus, exporter));
    bed.finish();
}
