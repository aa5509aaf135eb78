//! The bench beside a second tool that shares no code with it: `tiny.c`, two hundred lines that send and
//! receive. Both take turns over Unix sockets and TCP loopback. Every run must give a result, and the tiny
//! tool's ends must agree; the ratios are printed but not checked, because they mean little on a machine that
//! has other work. CPU time for a byte suffers least from that.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vmlane_bench::{Address, Hooks, Options, Server, Spec, Test, confidence};
use vmlane_testkit::Process;

const SIZES: [u64; 3] = [512, 4096, 65536];

/// Bits per second, and CPU seconds of both ends for a gigabyte.
#[derive(Clone, Copy)]
struct Sample {
    bps: f64,
    cpu: f64,
}

/// How many turns of how many seconds: a short check, or figures (`VMLANE_TINY=20,1`).
fn plan() -> (usize, f64) {
    let asked = std::env::var("VMLANE_TINY").ok();
    let asked = asked.as_deref().and_then(|text| text.split_once(','));
    asked.map_or((1, 0.3), |(rounds, seconds)| (rounds.parse().unwrap(), seconds.parse().unwrap()))
}

fn compiled(folder: &Path) -> PathBuf {
    let program = folder.join("tiny");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny.c");
    let built =
        Command::new("cc").args(["-O2", "-Wall", "-Wextra", "-Werror", source, "-o"]).arg(&program).status();
    assert!(built.expect("cc is there: building vmlane needs it").success());
    program
}

/// Bytes, seconds and CPU seconds that an end of the tiny tool prints.
fn numbers(line: &str) -> [f64; 3] {
    let all: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    all.try_into().unwrap_or_else(|_| panic!("{line:?}"))
}

fn tiny(program: &Path, address: &str, size: u64, seconds: f64) -> Sample {
    let mut server = Command::new(program);
    server.args(["server", address]).env("TINY_READ", size.to_string()).stdout(Stdio::piped());
    let mut server = Process(server.spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap());
    let mut ready = String::new();
    lines.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let client =
        Command::new(program).args(["client", address, &size.to_string(), &seconds.to_string()]).output();
    let client = client.unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let mut end = String::new();
    lines.read_to_string(&mut end).unwrap();
    assert!(server.wait().success());
    let (sent, received) = (numbers(&String::from_utf8_lossy(&client.stdout)), numbers(&end));
    assert!(received[0] > 0.0 && sent[0] == received[0], "{sent:?} {received:?}");
    Sample { bps: received[0] * 8.0 / received[1], cpu: (sent[2] + received[2]) / received[0] * 1e9 }
}

fn bench(to: &Address, size: u64, seconds: f64) -> Sample {
    // No warm-up: the other tool has none.
    let spec =
        Spec { message_bytes: size, receive_bytes: size, seconds, warmup: 0.0, ..Spec::new(Test::Stream) };
    let report =
        vmlane_bench::run(&to.clone().into(), &spec, &Options::default(), &mut Hooks::default()).unwrap();
    let cpus = report.cpu_process.local.unwrap() + report.cpu_process.remote.unwrap();
    Sample { bps: report.throughput_bps.unwrap(), cpu: cpus * report.seconds / report.bytes as f64 * 1e9 }
}

fn median(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    confidence::median(&samples.iter().map(of).collect::<Vec<_>>())
}

/// A TCP port of loopback that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_second_tool_that_shares_no_code_measures_the_same_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path());
    let path = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let (rounds, seconds) = plan();
    for over in ["unix", "tcp"] {
        let listen = if over == "unix" { path("bench") } else { "tcp:127.0.0.1:0".into() };
        let server = Server::bind(&[listen.parse().unwrap()]).unwrap().spawn().unwrap();
        let to = server.addresses()[0].clone();
        for size in SIZES {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                ours.push(bench(&to, size, seconds));
                let address = match over {
                    "unix" => path(&format!("tiny-{size}-{round}")),
                    _ => format!("tcp:127.0.0.1:{}", free_port()),
                };
                theirs.push(tiny(&program, &address, size, seconds));
            }
            let bps = [median(&ours, |s| s.bps), median(&theirs, |s| s.bps)];
            let cpu = [median(&ours, |s| s.cpu), median(&theirs, |s| s.cpu)];
            println!(
                "tiny: {over} {size}: vmlane {:.3e} bit/s, tiny {:.3e}, ratio {:.3}; CPU s/GB {:.3} and {:.3}, ratio {:.3}",
                bps[0],
                bps[1],
                bps[0] / bps[1],
                cpu[0],
                cpu[1],
                cpu[0] / cpu[1]
            );
        }
    }
}
