//! `vmlane bench` compared with other tools in guests, interleaved in one run: with netperf and iperf3 on a
//! guest's loopback and from guest to guest, with the tiny tool of `tools/bench/tests/tiny.c` over vsock.
//! Every tool must give a result; the ratios are printed but not checked, because they mean little on a
//! machine that has other work.

use std::cell::Cell;
use std::process::Command;

use serde_json::Value;
use vmlane_lab::{Guest, Machine, Running};
use vmlane_tests::{Bed, TIMEOUT, full, median, siblings, tree};

vmlane_tests::tests! {
    long { bench_netperf_and_iperf3_all_give_results, a_tool_that_shares_no_code_measures_the_same_vsock }
}

const SIZES: [u32; 3] = [512, 4096, 65536];

/// A tool's result: bits or transactions per second, and CPU seconds of both its ends per gigabyte.
#[derive(Clone, Copy)]
struct Sample {
    value: f64,
    cpu: Option<f64>,
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value}"))
}

fn run(guest: &Guest, line: &str) -> String {
    guest.sh(line).unwrap_or_else(|error| panic!("{line}: {error:#}"))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Percent of one CPU at both ends, over bits per second, as CPU seconds per gigabyte.
fn per_gigabyte(cpus: f64, bps: f64) -> Option<f64> {
    Some(cpus / (bps / 8e9))
}

fn vmlane(guest: &Guest, address: &str, what: &str) -> Sample {
    // No warm-up: netperf has none, and all three count from the first byte.
    let line = format!("vmlane bench {what} --to tcp:{address} -l 1 --warmup 0 --json");
    let report = parsed(&run(guest, &line));
    if what.starts_with("rr") {
        return Sample { value: number(&report, "/transactions_per_second"), cpu: None };
    }
    let value = number(&report, "/throughput_bps");
    let cpus = number(&report, "/cpu_process/local") + number(&report, "/cpu_process/remote");
    Sample { value, cpu: per_gigabyte(cpus, value) }
}

fn iperf3(guest: &Guest, address: &str, size: u32) -> Sample {
    let report = parsed(&run(guest, &format!("iperf3 -J -c {address} -t 1 -l {size}")));
    let value = number(&report, "/end/sum_received/bits_per_second");
    let percent = |end: &str| number(&report, &format!("/end/cpu_utilization_percent/{end}_total"));
    Sample { value, cpu: per_gigabyte((percent("host") + percent("remote")) / 100.0, value) }
}

/// The number alone: `-P 0` leaves out the heading and `-v 0` all but the result, in 10^6 bits/s for streams.
fn netperf(guest: &Guest, address: &str, test: &str, options: &str) -> Sample {
    let text = run(guest, &format!("netperf -H {address} -t {test} -l 1 -P 0 -v 0 -- {options}"));
    let value: f64 = text.trim().parse().unwrap_or_else(|error| panic!("{error}: {text}"));
    Sample { value: if test == "TCP_STREAM" { value * 1e6 } else { value }, cpu: None }
}

/// So many rounds of a second each.
fn rounds() -> usize {
    if full() { 15 } else { 1 }
}

/// Guests that run at nearly the speed of the host: of an emulated one, no tool is what takes the time.
fn guests(what: &str) -> (Bed, Guest, Guest) {
    let bed = siblings::up(&siblings::spec(what, Machine::Uml));
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    (bed, a, b)
}

struct Tool<'a> {
    name: &'static str,
    measure: Box<dyn Fn() -> Sample + 'a>,
}

fn tool<'a>(name: &'static str, measure: impl Fn() -> Sample + 'a) -> Tool<'a> {
    Tool { name, measure: Box::new(measure) }
}

/// Runs the tools one after the other, round by round, every second time backwards; then prints a row:
/// medians, and of the ratios of each round, ours over theirs, the median and its neighbours (the middle half
/// of them).
fn row(place: &str, what: &str, tools: &[Tool<'_>]) {
    let rounds = rounds();
    let mut samples = vec![Vec::new(); tools.len()];
    for round in 0..rounds {
        let mut turns: Vec<usize> = (0..tools.len()).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            let sample = (tools[turn].measure)();
            assert!(sample.value > 0.0, "{place} {what}: {} measured nothing", tools[turn].name);
            samples[turn].push(sample);
        }
    }
    let value = |samples: &[Sample]| median(samples.iter().map(|sample| sample.value).collect());
    let ours = &samples[0];
    print!("agreement: {place} {what}: {} {:.4e}", tools[0].name, value(ours));
    for (tool, theirs) in tools.iter().zip(&samples).skip(1) {
        let mut ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(our, their)| our.value / their.value).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[rounds / 4], ratios[rounds - 1 - rounds / 4]);
        print!("  {} {:.4e} ratio {:.3} ({low:.3} to {high:.3})", tool.name, value(theirs), median(ratios));
    }
    for (tool, samples) in tools.iter().zip(&samples) {
        let cpu: Vec<f64> = samples.iter().filter_map(|sample| sample.cpu).collect();
        if cpu.len() == rounds {
            print!("  {} {:.3} CPU s/GB", tool.name, median(cpu));
        }
    }
    println!();
}

fn compare(place: &str, from: &Guest, address: &str) {
    for size in SIZES {
        let (ours, theirs) = (format!("stream -m {size} -M {size}"), format!("-m {size} -M {size}"));
        let tools = [
            tool("vmlane", || vmlane(from, address, &ours)),
            tool("netperf", || netperf(from, address, "TCP_STREAM", &theirs)),
            tool("iperf3", || iperf3(from, address, size)),
        ];
        row(place, &format!("stream {size}"), &tools);
    }
    for size in SIZES {
        let (ours, theirs) = (format!("rr -r {size},{size}"), format!("-r {size},{size}"));
        let tools = [
            tool("vmlane", || vmlane(from, address, &ours)),
            tool("netperf", || netperf(from, address, "TCP_RR", &theirs)),
        ];
        row(place, &format!("rr {size}"), &tools);
    }
}

/// The three servers in a guest, on every address.
fn servers(guest: &Guest) -> Vec<Running> {
    let start = |argv: &[&str], word: &str| {
        let running = guest.spawn(argv.iter().copied()).unwrap();
        running.wait_for(word, TIMEOUT).unwrap();
        running
    };
    run(guest, "netserver >/dev/null");
    vec![
        start(&["vmlane", "bench", "server", "--listen", "tcp:0.0.0.0"], "listening on tcp"),
        start(&["iperf3", "--forceflush", "-s"], "Server listening"),
    ]
}

fn bench_netperf_and_iperf3_all_give_results() {
    let (bed, a, b) = guests("agree");
    let running = [servers(&a), servers(&b)];
    compare("loopback", &a, "127.0.0.1");
    compare("guest to guest", &a, "10.77.0.2");
    drop(running);
    bed.finish();
}

/// A stream from one guest to the other by the tool in C; its reads may be longer than the messages.
fn tiny(from: &Guest, to: &Guest, (cid, port): (u32, u32), (size, read): (u32, u32)) -> Sample {
    let any = u32::MAX;
    let line = format!("TINY_READ={read} exec /root/tiny server vsock:{any}:{port}");
    let server = to.spawn(["sh", "-c", &line]).unwrap();
    server.wait_for("ready", TIMEOUT).unwrap();
    let sent = numbers(&run(from, &format!("/root/tiny client vsock:{cid}:{port} {size} 1")));
    let end = server.wait().unwrap();
    assert!(end.success(), "{}", end.stderr());
    let received = numbers(end.stdout().lines().last().unwrap_or_default());
    assert_eq!(sent[0], received[0], "what was sent has arrived");
    Sample { value: received[0] * 8.0 / received[1], cpu: Some((sent[2] + received[2]) / received[0] * 1e9) }
}

/// Bytes, seconds and CPU seconds that an end of the tiny tool prints.
fn numbers(line: &str) -> [f64; 3] {
    let all: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    all.try_into().unwrap_or_else(|_| panic!("{line:?}"))
}

fn over_vsock(from: &Guest, cid: u32, (size, read): (u32, u32)) -> Sample {
    let line = format!("vmlane bench stream --to vsock:{cid} -m {size} -M {read} -l 1 --warmup 0 --json");
    let report = parsed(&run(from, &line));
    let value = number(&report, "/throughput_bps");
    let cpus = number(&report, "/cpu_process/local") + number(&report, "/cpu_process/remote");
    Sample { value, cpu: per_gigabyte(cpus, value) }
}

fn a_tool_that_shares_no_code_measures_the_same_vsock() {
    let folder = tempfile::tempdir().unwrap();
    let (program, source) = (folder.path().join("tiny"), tree::root().join("tools/bench/tests/tiny.c"));
    // The guests' system may be older than this one's.
    let built = Command::new("cc").args(["-O2", "-static"]).arg(source).arg("-o").arg(&program).status();
    assert!(built.expect("cc is there: building vmlane needs it").success());
    let (bed, a, b) = guests("tiny");
    [&a, &b].iter().for_each(|guest| guest.cp_to(&program, "/root/tiny").unwrap());
    let server = b.spawn(["vmlane", "bench", "server", "--listen", "vsock:"]).unwrap();
    server.wait_for("listening on vsock", TIMEOUT).unwrap();
    let (cid, port) = (bed.cid("b"), Cell::new(7000));
    for (size, read) in SIZES.map(|size| (size, size)).into_iter().chain([(4096, 65536)]) {
        let next = || {
            port.set(port.get() + 1);
            (cid, port.get())
        };
        let tools = [
            tool("vmlane", || over_vsock(&a, cid, (size, read))),
            tool("tiny", || tiny(&a, &b, next(), (size, read))),
        ];
        row("vsock", &format!("stream {size}, reads of {read}"), &tools);
    }
    drop(server);
    bed.finish();
}
