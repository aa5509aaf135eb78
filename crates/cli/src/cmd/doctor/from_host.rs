//! `vmlane doctor VM [VM]` and `vmlane doctor lab NAME`: VMs, from their host.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vmlane_api::{Client, ClientError};
use vmlane_doctor::{Diagnosis, host, join, printable_lines};
use vmlane_keeper::takeover;
use vmlane_lab::Lab;

use super::{Args, print};
use crate::cmd::exit_codes::NOT_EXAMINED;

/// For a server in a guest to listen.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn examine(args: &Args) -> ExitCode {
    let done = match args.vms.as_slice() {
        [word, name] if word == "lab" => lab(args, name),
        names => vms(args, &args.place.runtime_dir, names, true).map(|diagnosis| {
            print(&if args.json { diagnosis.json() + "\n" } else { diagnosis.text() });
            diagnosis.exit_code()
        }),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("vmlane: {why}");
            ExitCode::from(NOT_EXAMINED)
        }
    }
}

fn vms(args: &Args, runtime_dir: &Path, names: &[String], ask: bool) -> Result<Diagnosis, String> {
    let began = Instant::now();
    let progress = args.progress();
    if let Err(error @ ClientError::NoDaemon { .. }) = Client::connect(runtime_dir) {
        let sessions = takeover::sessions(runtime_dir).unwrap_or_default();
        let host = host::without_daemon(names, &sessions.held, &sessions.lost);
        let evidence = join(host.ok_or_else(|| error.to_string())?, None, &progress);
        return Ok(Diagnosis::new(evidence, began.elapsed().as_secs_f64()));
    }
    let host = host::read(runtime_dir, names, &progress)?;
    let options = args.reach.options().map_err(|error| error.to_string())?;
    // Sockets lead through the daemon that the environment names.
    let ask = ask && runtime_dir == vmlane_sock::runtime_dir();
    let evidence = join(host, ask.then_some(&options), &progress);
    Ok(Diagnosis::new(evidence, began.elapsed().as_secs_f64()))
}

/// The way from the first guest to the second one, as the doctor in the first one sees it, then what their
/// host sees.
fn lab(args: &Args, name: &str) -> Result<u8, String> {
    let progress = args.progress();
    let failed = |error: anyhow::Error| format!("lab {name}: {error:#}");
    let lab = Lab::open(name).map_err(failed)?;
    let status = lab.status().map_err(failed)?;
    let [from, to] = status.guests.get(..2).and_then(|guests| guests.first_chunk()).ok_or_else(|| {
        format!("lab {name} has {} guests: two are needed, one to ask and one to answer", status.guests.len())
    })?;
    let (listen, target) = if let Some(nic) = to.nics.first() {
        let address = nic.ipv4.split('/').next().unwrap_or_default();
        ("tcp:0.0.0.0".to_owned(), format!("tcp:{address}"))
    } else if let Some(cid) = to.cid {
        ("vsock:".to_owned(), format!("vsock:{cid}"))
    } else {
        return Err(format!("lab {name}: guest {} has neither a card nor a device for sockets", to.name));
    };
    progress(&format!("starting a server in guest {}", to.name));
    let server = ["vmlane", "bench", "server", "--doctor", "--listen", &listen];
    // It ends when this is dropped.
    let server = lab.guest(&to.name).spawn(server).map_err(failed)?;
    server.wait_for("listening on", TIMEOUT).map_err(failed)?;
    progress(&format!("examining the way from guest {} to guest {}", from.name, to.name));
    let mut words = vec!["vmlane", "doctor", "--to", &target];
    words.extend(args.quick.then_some("--quick"));
    words.extend(args.json.then_some("--json"));
    let output = lab.guest(&from.name).exec(words).map_err(failed)?;
    drop(server);
    let code = output.exit.code.and_then(|code| u8::try_from(code).ok()).unwrap_or(3);
    if code > 1 && output.stdout().trim().is_empty() {
        return Err(format!(
            "the doctor in guest {}: {}",
            from.name,
            printable_lines(&output.stderr()).trim()
        ));
    }
    let names = [from.name.clone(), to.name.clone()];
    // A lab of other devices than the daemon's has none.
    let on_host = match status.daemon {
        Some(_) => Some(vms(args, &lab.daemon_runtime_dir(), &names, false)?),
        None => None,
    };
    if args.json {
        let guests: Value = serde_json::from_str(&output.stdout())
            .map_err(|error| format!("the answer of guest {}: {error}", from.name))?;
        let host: Option<Value> = on_host.as_ref().and_then(|seen| serde_json::from_str(&seen.json()).ok());
        let all = json!({ "version": vmlane_doctor::report::VERSION, "guests": guests, "host": host });
        print(&format!("{all}\n"));
    } else {
        let printed = printable_lines(&output.stdout());
        print(&format!("Between guest {} and guest {}:\n\n{printed}", from.name, to.name));
        if let Some(seen) = &on_host {
            print(&format!("\nThe host of both:\n\n{}", seen.text()));
        }
    }
    let host_code = on_host.map_or(0, |seen| seen.exit_code());
    Ok(code.max(host_code))
}
