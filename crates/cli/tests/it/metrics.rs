//! `vmlane metrics` beside a daemon: printed once, served by HTTP, at a socket that systemd passes; and what
//! is made for Prometheus and Grafana names only what it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use vmlane_testkit::{Daemon, Process, Ran, wait_until};

use crate::common::openmetrics::{Families, parse, value};
use crate::common::{VMLANE, daemon, place};

const CONFIG: &str = "\
[daemon]
workers = 1
[[vm]]
name = \"web\"
cid = 3
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" }, { model = \"vmxnet3\", mac = \"52:54:00:00:00:02\" } ]
[[vm]]
name = \"db\"
cid = 4
[[vm]]
name = \"mail\"
cid = 5
vsock = \"virtio\"
[[vm]]
name = \"cache\"
cid = 6
vsock = \"hybrid\"
[route]
name = \"here\"
cids = [\"3-99\"]
cid = 99
certificate = \"/etc/vmlane/route/here.pem\"
key = \"/etc/vmlane/route/here.key\"
authority = \"/etc/vmlane/route/authority.pem\"
[[peer]]
name = \"there\"
address = \"192.0.2.7:7447\"
cids = [\"100-199\"]
groups = [\"default\"]
";

fn metrics(daemon: &Daemon, arguments: &[&str]) -> Ran {
    daemon.ask(&[&["metrics"], arguments].concat())
}

/// An exporter, and its address.
fn exporter(daemon: &Daemon, arguments: &[&str]) -> (Process, String) {
    let mut command = daemon.command(&[&["metrics"], arguments].concat());
    let mut exporter = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("serving http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
    (exporter, address)
}

fn read(text: &str) -> Families {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin {text}"))
}

/// Status line and headers, and the body.
fn get(address: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn a_daemons_counters_are_printed_once() {
    let daemon = daemon(CONFIG);
    let families = read(&metrics(&daemon, &[]).out);
    for (name, labels, expected) in [
        ("vmlane_up", &[][..], 1.0),
        ("vmlane_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
        ("vmlane_vms", &[], 4.0),
        ("vmlane_vm_vmm_late_total", &[("vm", "cache")], 0.0),
        ("vmlane_vm_stream_sent_bytes_total", &[("vm", "mail")], 0.0),
        ("vmlane_vm_packets_sent_total", &[("vm", "mail")], 0.0),
        ("vmlane_vm_attached", &[("vm", "db")], 0.0),
        ("vmlane_vm_stream_sent_bytes_total", &[("vm", "web")], 0.0),
        ("vmlane_nic_active", &[("vm", "web"), ("nic", "nic1")], 0.0),
        ("vmlane_nic_link_up", &[("vm", "web"), ("nic", "nic0")], 1.0),
        ("vmlane_nic_received_bytes_total", &[("vm", "web"), ("nic", "nic0")], 0.0),
        ("vmlane_nic_drops_total", &[("vm", "web"), ("nic", "nic1"), ("reason", "flood")], 0.0),
        ("vmlane_captures_running", &[], 0.0),
        ("vmlane_peer_up", &[("peer", "there")], 0.0),
    ] {
        assert_eq!(value(&families, name, labels), Some(expected), "{name} {labels:?}");
    }
    let busy = value(&families, "vmlane_worker_busy_seconds_total", &[("worker", "switch")]);
    assert!(busy.is_some_and(|busy| busy >= 0.0), "{busy:?}");
    // Each family of counters that the daemon reported has its samples: a counter that was renamed there is
    // missed here.
    let device = "vmlane_uplink vmlane_team vmlane_mirror vmlane_nic_ovn";
    // What the helper for other hosts reports is checked where one runs (route.rs).
    let helper = "vmlane_peer_certificates vmlane_peer_handshakes vmlane_peer_links vmlane_peer_over_handshakes \
                  vmlane_peer_received vmlane_peer_sent vmlane_peer_unknown vmlane_peer_violations";
    let elsewhere =
        |name: &str| device.split(' ').chain(helper.split(' ')).any(|prefix| name.starts_with(prefix));
    let empty = families.iter().filter(|(name, family)| family.samples.is_empty() && !elsewhere(name));
    let empty: Vec<_> = empty.map(|(name, _)| name).collect();
    assert!(empty.is_empty(), "no daemon reports this: {empty:?}");

    let one = read(&metrics(&daemon, &["--max-vms", "1"]).out);
    assert_eq!(value(&one, "vmlane_vms_left_out", &[]), Some(3.0));
    assert!(value(&one, "vmlane_vm_attached", &[]).is_some(), "one VM is shown");
    let older = metrics(&daemon, &["--format", "prometheus"]).out;
    assert!(older.contains("# TYPE vmlane_nic_drops_total counter\n") && !older.contains("# EOF"), "{older}");
}

#[test]
fn without_a_daemon_it_is_reported_down() {
    let daemon = place(CONFIG);
    let ran = metrics(&daemon, &[]);
    ran.fails(1, &["no daemon answers"]);
    assert_eq!(value(&read(&ran.out), "vmlane_up", &[]), Some(0.0));
}

#[test]
fn an_exporter_serves_before_after_and_between_daemons() {
    let daemon = place(CONFIG);
    let (_exporter, address) = exporter(&daemon, &["--listen", "127.0.0.1:0"]);
    let (head, body) = get(&address, "*/*");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;"), "{head}");
    assert!(body.contains("\nvmlane_up 0\n"), "{body}");

    let scrape = || read(&get(&address, "application/openmetrics-text;version=1.0.0").1);
    let number = |name| value(&scrape(), name, &[]);
    let up = |is| wait_until("the exporter notices", || number("vmlane_up") == Some(is));
    daemon.start();
    up(1.0);
    assert_eq!(number("vmlane_restarts_total"), Some(0.0));
    daemon.kill();
    up(0.0);
    daemon.start();
    up(1.0);
    assert_eq!(number("vmlane_restarts_total"), Some(1.0));
    assert!(number("vmlane_scrape_failures_total") >= Some(2.0));
    let (head, _) = get(&address, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
}

#[test]
fn a_socket_that_systemd_passes_is_served() {
    let daemon = daemon(CONFIG);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let start = |arguments: &str, socket: OwnedFd| {
        let mut command = Command::new("sh");
        let script = format!(
            "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {VMLANE} metrics {arguments} --runtime-dir {}",
            daemon.runtime().display()
        );
        command.arg("-c").arg(script).stdin(socket);
        command
    };
    let socket = OwnedFd::from(listener.try_clone().unwrap());
    let _exporter = Process(start("", socket).stderr(Stdio::null()).spawn().unwrap());
    drop(listener);
    let (_, body) = get(&address, "application/openmetrics-text");
    assert_eq!(value(&read(&body), "vmlane_up", &[]), Some(1.0));

    let other = |address| OwnedFd::from(TcpListener::bind(address).unwrap());
    for (arguments, socket, words) in [
        ("", other("0.0.0.0:0"), "--allow-remote"),
        ("--listen 127.0.0.1:0", other("127.0.0.1:0"), "leave --listen away"),
        ("", OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), "no listening socket"),
    ] {
        let output = start(arguments, socket).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && printed.contains(words), "{words}: {printed}");
    }
}

#[test]
fn other_hosts_are_served_on_request_only() {
    let daemon = place(CONFIG);
    metrics(&daemon, &["--listen", "0.0.0.0:0"]).fails(1, &["--allow-remote"]);
    assert_eq!(metrics(&daemon, &["--listen", "nowhere"]).code, 2);
    let (_exporter, address) = exporter(&daemon, &["--listen", "0.0.0.0:0", "--allow-remote"]);
    assert!(address.starts_with("0.0.0.0:"), "{address}");
}

/// Names of metrics, and the labels that their matchers name, in an expression of PromQL.
fn names(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in expression.match_indices("vmlane_") {
        if expression[..at].ends_with(word) {
            continue;
        }
        let name: String = expression[at..].chars().take_while(|c| word(*c)).collect();
        let rest = &expression[at + name.len()..];
        let inside =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = inside.split("\",").filter_map(|matcher| {
            let label: String = matcher.trim().chars().take_while(|c| word(*c)).collect();
            (!label.is_empty()).then_some(label)
        });
        found.push((name, labels.collect()));
    }
    found
}

fn packaged(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Samples' names with the labels that they may have.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let daemon = daemon(CONFIG);
    let families = read(&metrics(&daemon, &[]).out);
    let named = families.into_iter().map(|(name, family)| {
        let ending = match family.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let labels = family.samples.iter().flat_map(|sample| sample.labels.keys().cloned()).collect();
        (format!("{name}{ending}"), labels)
    });
    named.collect()
}

/// Every metric that an expression names is shown, with the labels by which it is chosen.
fn all_known(expressions: &[String], known: &BTreeMap<String, BTreeSet<String>>) {
    for expression in expressions {
        let named = names(expression);
        assert!(!named.is_empty() || expression.starts_with("up{"), "{expression} names no metric of ours");
        for (name, labels) in named {
            let Some(has) = known.get(&name) else {
                panic!("{name} in {expression} is not shown by `vmlane metrics`")
            };
            // Labels of a scrape are Prometheus's; this daemon has no uplinks, teams and mirrors, and so no
            // labels of theirs.
            let scrape = ["instance", "job"];
            let missing =
                |label: &String| !has.is_empty() && !has.contains(label) && !scrape.contains(&label.as_str());
            let missing: Vec<_> = labels.iter().filter(|label| missing(label)).collect();
            assert!(missing.is_empty(), "{name} has no labels {missing:?}: {expression}");
        }
    }
}

#[test]
fn alert_rules_name_only_what_is_shown() {
    let rules = yaml_rust2::YamlLoader::load_from_str(&packaged("prometheus/vmlane.rules.yml")).unwrap();
    let groups = rules[0]["groups"].as_vec().unwrap();
    let rules: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).collect();
    let mut alerts = BTreeSet::new();
    for rule in &rules {
        let alert = rule["alert"].as_str().unwrap();
        assert!(alerts.insert(alert), "{alert} is there twice");
        assert!(rule["labels"]["severity"].as_str().is_some(), "{alert} has no severity");
        assert!(rule["annotations"]["summary"].as_str().is_some(), "{alert} has no summary");
    }
    assert!(rules.len() > 15);
    let expressions: Vec<String> =
        rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    all_known(&expressions, &known());
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/watching.md"));
    let guide = guide.unwrap();
    let missing: Vec<_> = alerts.iter().filter(|alert| !guide.contains(&format!("`{alert}`"))).collect();
    assert!(missing.is_empty(), "docs/guide/watching.md does not explain {missing:?}");
}

#[test]
fn the_board_names_only_what_is_shown() {
    let board: serde_json::Value = serde_json::from_str(&packaged("grafana/vmlane.json")).unwrap();
    let mut expressions = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id");
        for target in panel["targets"].as_array().into_iter().flatten() {
            expressions.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        expressions.extend(variable["query"]["query"].as_str().map(str::to_owned));
    }
    for annotation in board["annotations"]["list"].as_array().unwrap() {
        expressions.push(annotation["expr"].as_str().unwrap().to_owned());
    }
    assert!(expressions.len() > 30, "{}", expressions.len());
    all_known(&expressions, &known());
}
