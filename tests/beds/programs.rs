//! Running the scripts of `programs/` in guests.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vmlane_lab::{Guest, Output, Running};

use crate::alone::vmlane;
use crate::{Bed, TIMEOUT, eventually};

/// A script that serves until it is dropped.
pub struct Service(pub Running);

impl Service {
    /// What it has printed so far, for the message of a failed test.
    pub fn printed(&self) -> String {
        self.0.stdout() + &self.0.stderr()
    }
}

fn command(script: &str) -> Vec<String> {
    let mut words = script.split_whitespace();
    let name = words.next().expect("a script");
    let mut argv = vec!["python3".to_owned(), format!("/t/{name}.py")];
    argv.extend(words.map(str::to_owned));
    argv
}

/// Starts `script`, such as `echo serve 7000`, and returns when it listens.
pub fn serve(guest: &Guest, script: &str) -> Service {
    eventually(script, || {
        let running = guest.spawn(command(script)).unwrap();
        match running.wait_for("listening", TIMEOUT) {
            Ok(()) => Some(Service(running)),
            // A server that was just dropped ends a moment later.
            Err(_) if running.stderr().contains("Address already in use") => None,
            Err(e) => panic!("guest {}: {script}: {e:#}", guest.name()),
        }
    })
}

/// `python3 WORDS...` as a program of the host under `vmlane run`; scripts can import each other.
pub fn python_on_host(bed: &Bed, words: &[&str]) -> Command {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut command = vmlane();
    command.env("VMLANE_RUNTIME_DIR", bed.lab().daemon_runtime_dir()).env("PYTHONPATH", &programs);
    // -B: nothing is written into the scripts' folder, which is copied into guests.
    command.current_dir(programs).args(["run", "--", "python3", "-B"]).args(words);
    command
}

/// The last line of a script that must have succeeded, which is its result.
pub fn json(guest: &Guest, script: &str, output: &Output) -> Value {
    let (stdout, stderr) = (output.stdout(), output.stderr());
    let code = output.exit.shell_code();
    assert!(output.success(), "guest {}: {script}: exit code {code}: {stdout}{stderr}", guest.name());
    let last = stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{script}: {last:?} is no result: {e}"))
}

/// Runs `script` to its end.
pub fn python(guest: &Guest, script: &str) -> Value {
    let output = guest.exec(command(script)).unwrap();
    json(guest, script, &output)
}

/// The ports of the checked streams, of VMCI and of TCP.
const TAKE: u32 = 7100;
const TCP: u32 = 7200;
/// Seconds for a stream that a test ends.
const ENDLESS: u32 = 1_000_000;

/// Lets `guest` take streams from [`give`].
pub fn take(guest: &Guest) -> Service {
    serve(guest, &format!("stream take {TAKE}"))
}

/// Starts a stream of random bytes from one guest to another, where [`take`] runs, and returns once data
/// flows. It ends with [`whole`], or is cut.
pub fn give(bed: &Bed, from: &str, to: &str) -> Running {
    moves(begin(bed, from, to))
}

/// Starts a stream, and does not wait for it.
pub fn begin(bed: &Bed, from: &str, to: &str) -> Running {
    run(bed, from, &format!("stream give {} {TAKE} {ENDLESS}", bed.cid(to)))
}

/// [`give`], but slow enough to leave the processors to what it must outlast.
pub fn trickle(bed: &Bed, from: &str, to: &str) -> Running {
    moves(run(bed, from, &format!("stream give {} {TAKE} {ENDLESS} paced", bed.cid(to))))
}

/// Lets `guest` take streams from [`give_tcp`].
pub fn take_tcp(guest: &Guest) -> Service {
    serve(guest, &format!("tcp take {TCP}"))
}

/// [`give`] over TCP, to an address.
pub fn give_tcp(bed: &Bed, from: &str, address: &str) -> Running {
    moves(begin_tcp(bed, from, address))
}

/// [`begin`] over TCP.
pub fn begin_tcp(bed: &Bed, from: &str, address: &str) -> Running {
    run(bed, from, &format!("tcp give {address} {TCP} {ENDLESS}"))
}

fn run(bed: &Bed, from: &str, script: &str) -> Running {
    bed.guest(from).spawn(command(script)).unwrap()
}

/// Waits until data of a stream flows.
pub fn moves(stream: Running) -> Running {
    stream.wait_for("moving", TIMEOUT).unwrap();
    stream
}

/// Ends a stream, whose checksums must be equal at both ends; returns its report.
pub fn whole(bed: &Bed, from: &str, stream: Running) -> Value {
    const TERMINATE: i32 = 15;
    stream.signal(TERMINATE);
    json(&bed.guest(from), "give", &stream.wait().unwrap())
}

/// A stream passes from one guest to another, where [`take`] runs.
pub fn passes(bed: &Bed, from: &str, to: &str) {
    whole(bed, from, give(bed, from, to));
}

/// Ends the guest's programs that have sockets open, then unloads the VMCI drivers and loads them again.
pub fn reload_driver(guest: &Guest) {
    let transport = "vmw_vsock_vmci_transport";
    guest.sh(&format!("{}\nrmmod vmw_vmci && modprobe {transport}", unload(transport))).unwrap();
}

/// The same with the driver of virtio-vsock.
pub fn reload_virtio_vsock(guest: &Guest) {
    let transport = "vmw_vsock_virtio_transport";
    guest.sh(&format!("{}\nmodprobe {transport}", unload(transport))).unwrap();
}

/// A module of sockets is in use until the last one has been closed for a while.
fn unload(module: &str) -> String {
    format!(
        "pkill -9 python3; pkill -9 socat
         n=0
         until rmmod {module}; do
             n=$((n + 1)); [ $n -lt 240 ] || exit 1; sleep 0.5
         done"
    )
}
