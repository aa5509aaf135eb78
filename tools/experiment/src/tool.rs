//! What is run in the guests, and how its output becomes numbers: vmlane's own bench, netperf, iperf3.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vmlane_bench::report::RoundTrips;
use vmlane_bench::{Report, Test};

use crate::factors::{Factors, Tool};
use crate::plan::Plan;

/// The first port of iperf3's servers: each serves one client.
const IPERF3_PORT: usize = 5201;

/// What one client measured, or all of them together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub throughput_bps: Option<f64>,
    pub transactions_per_second: Option<f64>,
    pub rtt_us: Option<RoundTrips>,
    /// The whole report of the tool.
    pub report: Value,
}

/// The commands of a client, which start together, against the server at `host` (an IP address, or a CID).
/// `place` distinguishes clients of one server.
pub fn clients(factors: &Factors, plan: &Plan, host: &str, place: usize) -> Vec<Vec<String>> {
    match factors.tool {
        Tool::Vmlane => vec![vmlane(factors, plan, host)],
        Tool::Netperf => vec![netperf(factors, plan, host); factors.sessions as usize],
        Tool::Iperf3 => vec![iperf3(factors, plan, host, place)],
    }
}

/// The commands that answer, and what each prints when it does; `addresses` are those of the guest, and
/// `places` the clients that it will have.
pub fn servers(
    tool: Tool,
    vsock: bool,
    addresses: &[String],
    places: usize,
) -> Vec<(Vec<String>, &'static str)> {
    let own = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    match tool {
        Tool::Vmlane => {
            let mut argv = own("vmlane bench server");
            // Only the last is waited for: they are listened on in this order.
            let listen = addresses.iter().map(|address| format!("tcp:{}", bracketed(address)));
            for address in listen.chain(vsock.then(|| "vsock:".to_owned())) {
                argv.extend(["--listen".to_owned(), address]);
            }
            vec![(argv, if vsock { "listening on vsock" } else { "listening on tcp" })]
        }
        // -D: it stays where it is started, and prints where it listens.
        Tool::Netperf => vec![(own("netserver -D"), "Starting netserver")],
        Tool::Iperf3 => (0..places)
            .map(|place| {
                (own(&format!("iperf3 -s --forceflush -p {}", IPERF3_PORT + place)), "Server listening")
            })
            .collect(),
    }
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

fn vmlane(factors: &Factors, plan: &Plan, host: &str) -> Vec<String> {
    let to =
        if factors.device.is_vsock() { format!("vsock:{host}") } else { format!("tcp:{}", bracketed(host)) };
    let mut argv: Vec<String> =
        ["vmlane", "bench", factors.test.name(), "--json", "--to", &to].map(str::to_owned).to_vec();
    let mut add = |option: &str, value: String| argv.extend([option.to_owned(), value]);
    add("-l", plan.seconds.to_string());
    add("--warmup", plan.warmup.to_string());
    add("-n", factors.sessions.to_string());
    if factors.test.is_transactional() {
        add("-r", format!("{0},{0}", factors.message));
    } else {
        add("-m", factors.message.to_string());
    }
    if let Some(bytes) = factors.buffer {
        add("-s", bytes.to_string());
        add("-S", bytes.to_string());
    }
    argv.extend(factors.nodelay.then(|| "-D".to_owned()));
    argv
}

fn netperf(factors: &Factors, plan: &Plan, host: &str) -> Vec<String> {
    let test = match factors.test {
        Test::Maerts => "TCP_MAERTS",
        Test::Rr => "TCP_RR",
        Test::Crr => "TCP_CRR",
        _ => "TCP_STREAM",
    };
    // It has no warm-up; whole seconds only.
    let seconds = plan.seconds.ceil().max(1.0).to_string();
    let family = if factors.ip == 6 { "-6" } else { "-4" };
    let mut argv: Vec<String> = ["netperf", family, "-H", host, "-t", test, "-l", &seconds, "-P", "0", "--"]
        .map(str::to_owned)
        .to_vec();
    argv.extend(
        ["-k", "THROUGHPUT,THROUGHPUT_UNITS,LOCAL_SEND_SIZE,LSS_SIZE_END,RSR_SIZE_END"].map(str::to_owned),
    );
    let bytes = factors.message.to_string();
    if factors.test.is_transactional() {
        argv.extend(["-r".to_owned(), format!("{bytes},{bytes}")]);
    } else {
        argv.extend(["-m".to_owned(), bytes.clone(), "-M".to_owned(), bytes]);
    }
    if let Some(bytes) = factors.buffer {
        argv.extend(["-s".to_owned(), bytes.to_string(), "-S".to_owned(), bytes.to_string()]);
    }
    argv.extend(factors.nodelay.then(|| "-D".to_owned()));
    argv
}

fn iperf3(factors: &Factors, plan: &Plan, host: &str, place: usize) -> Vec<String> {
    let mut argv: Vec<String> = ["iperf3", "-J", "-c", host, "-p"].map(str::to_owned).to_vec();
    argv.push((IPERF3_PORT + place).to_string());
    let mut add = |option: &str, value: String| argv.extend([option.to_owned(), value]);
    // Whole seconds only.
    add("-t", plan.seconds.ceil().max(1.0).to_string());
    add("-O", plan.warmup.ceil().to_string());
    add("-P", factors.sessions.to_string());
    add("-l", factors.message.to_string());
    if let Some(bytes) = factors.buffer {
        add("-w", bytes.to_string());
    }
    argv.extend((factors.test == Test::Maerts).then(|| "-R".to_owned()));
    argv.extend(factors.nodelay.then(|| "-N".to_owned()));
    argv
}

/// One client's numbers.
pub fn read(factors: &Factors, output: &str) -> Result<Measured> {
    let measured = match factors.tool {
        Tool::Vmlane => {
            let report: Report = serde_json::from_str(output).context("the report of vmlane bench")?;
            Measured {
                throughput_bps: report.throughput_bps,
                transactions_per_second: report.transactions_per_second,
                rtt_us: report.rtt_us,
                report: serde_json::from_str(output)?,
            }
        }
        Tool::Netperf => read_netperf(output)?,
        Tool::Iperf3 => {
            let report: Value = serde_json::from_str(output).context("the report of iperf3")?;
            if let Some(error) = report["error"].as_str() {
                bail!("iperf3: {error}");
            }
            let bps = report["end"]["sum_received"]["bits_per_second"].as_f64();
            // The intervals are many; their sums are enough for all that is drawn.
            Measured { throughput_bps: bps, report: report["end"].clone(), ..Measured::default() }
        }
    };
    let value = measured.throughput_bps.or(measured.transactions_per_second);
    ensure!(
        value.is_some_and(|value| value.is_finite() && value > 0.0),
        "the result has no number: {output}"
    );
    Ok(measured)
}

fn read_netperf(output: &str) -> Result<Measured> {
    let pairs: serde_json::Map<String, Value> = output
        .lines()
        .filter_map(|line| line.trim().split_once('='))
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let text = |name: &str| pairs.get(name).and_then(Value::as_str).unwrap_or_default();
    let number: f64 =
        text("THROUGHPUT").parse().ok().with_context(|| format!("netperf printed {output:?}"))?;
    let mut measured = Measured::default();
    match text("THROUGHPUT_UNITS") {
        "10^6bits/s" => measured.throughput_bps = Some(number * 1e6),
        "Trans/s" => measured.transactions_per_second = Some(number),
        other => bail!("netperf counted in {other:?}"),
    }
    measured.report = Value::Object(pairs);
    Ok(measured)
}

/// All clients' numbers in one.
pub fn sum(mut all: Vec<Measured>) -> Measured {
    if all.len() == 1 {
        return all.remove(0);
    }
    let add = |of: fn(&Measured) -> Option<f64>| all.iter().map(of).sum::<Option<f64>>();
    let (throughput_bps, transactions_per_second) =
        (add(|m| m.throughput_bps), add(|m| m.transactions_per_second));
    // Percentiles do not add up: they stay with their clients.
    let report = all.into_iter().map(|measured| measured.report).collect();
    Measured { throughput_bps, transactions_per_second, rtt_us: None, report }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::parse(
            "name='t'\ntitle='t'\nruns=1\nseconds=1.5\nwarmup=0.3\n[matrix]\ndevice='vmxnet3'\n",
            false,
        )
        .unwrap()
    }

    fn factors(pairs: &[(&str, &str)]) -> Factors {
        let mut factors = Factors::default();
        pairs.iter().for_each(|(name, text)| factors.set(name, text).unwrap());
        factors
    }

    #[test]
    fn every_tool_gets_its_words() {
        let line = |pairs: &[(&str, &str)], host: &str| {
            let all = clients(&factors(pairs), &plan(), host, 1);
            (all.len(), all[0].join(" "))
        };
        assert_eq!(
            line(&[("message", "512"), ("buffer", "64k")], "4"),
            (
                1,
                "vmlane bench stream --json --to vsock:4 -l 1.5 --warmup 0.3 -n 1 -m 512 -s 65536 -S 65536"
                    .into()
            )
        );
        let nic = ("device", "vmxnet3");
        assert_eq!(
            line(&[nic, ("test", "rr"), ("message", "1"), ("ip", "6"), ("nodelay", "true")], "fd77::2"),
            (1, "vmlane bench rr --json --to tcp:[fd77::2] -l 1.5 --warmup 0.3 -n 1 -r 1,1 -D".into())
        );
        let (count, text) = line(&[nic, ("tool", "netperf"), ("sessions", "5"), ("test", "maerts")], "h");
        assert!(count == 5 && text.starts_with("netperf -4 -H h -t TCP_MAERTS -l 2 -P 0 -- -k"), "{text}");
        let (count, text) = line(&[nic, ("tool", "iperf3"), ("sessions", "5"), ("buffer", "64k")], "h");
        assert!(count == 1 && text == "iperf3 -J -c h -p 5202 -t 2 -O 1 -P 5 -l 65536 -w 65536", "{text}");
    }

    #[test]
    fn numbers_come_out_of_every_tool() {
        let netperf = factors(&[("device", "vmxnet3"), ("tool", "netperf")]);
        let read_it = read(&netperf, "THROUGHPUT=941.5\nTHROUGHPUT_UNITS=10^6bits/s\n").unwrap();
        assert_eq!(read_it.throughput_bps, Some(941.5e6));
        let rates = read(&netperf, "THROUGHPUT=1000\nTHROUGHPUT_UNITS=Trans/s\n").unwrap();
        assert_eq!(rates.transactions_per_second, Some(1000.0));
        assert!(read(&netperf, "establish control: are you sure there is a netserver").is_err());
        let iperf3 = factors(&[("device", "vmxnet3"), ("tool", "iperf3")]);
        let end = r#"{"end":{"sum_received":{"bits_per_second":2e9}}}"#;
        assert_eq!(read(&iperf3, end).unwrap().throughput_bps, Some(2e9));
        assert!(read(&iperf3, r#"{"error":"no route"}"#).unwrap_err().to_string().contains("no route"));
        let both = sum(vec![read_it.clone(), read_it]);
        assert_eq!((both.throughput_bps, both.report.as_array().map(Vec::len)), (Some(1883e6), Some(2)));
    }
}
