//! Hosts in network namespaces, each with a lab of its own, and the program that makes what joins them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::alone::{output, status, vmlane};
use crate::{Process, wait_until};

/// `vmlane` in a network namespace.
pub fn inside(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(vmlane().get_program()).stdin(Stdio::null());
    command
}

/// Installs what tests need beside what all need. Its services are not started.
pub fn install(packages: &[&str]) {
    let bootstrap = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bootstrap.sh");
    output(Command::new(bootstrap).args(packages).env("START_SERVICES", "no"));
}

/// A script of `programs/` that makes namespaces and what is in them. They end with this value.
pub struct Network {
    program: Child,
    pub directory: PathBuf,
}

impl Network {
    pub fn up(script: &str, directory: &Path, hosts: &[String]) -> Network {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(script);
        let mut program = Command::new("python3")
            .arg(&script)
            .arg(directory)
            .args(hosts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "{} is not up", script.display());
        Network { program, directory: directory.to_owned() }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}

/// A daemon without a lab in a network namespace, which serves the NIC of VM a.
pub fn daemon(namespace: &str, config: &Path, run: &Path) -> Process {
    let mut command = inside(namespace);
    command.args(["daemon", "--config"]).arg(config).arg("--runtime-dir").arg(run).stderr(Stdio::null());
    let daemon = Process(command.spawn().expect("a daemon"));
    wait_until("the daemon listens", || run.join("vm/a/nic0.sock").exists());
    daemon
}

/// The lab of one host, whose namespace has its name.
pub struct HostLab {
    pub name: String,
    /// Its files are there.
    pub place: PathBuf,
}

impl HostLab {
    /// `config` is added to the daemon's.
    pub fn up(name: &str, directory: &Path, lab: &[&str], config: &str) -> HostLab {
        let file = directory.join(format!("{name}.toml"));
        std::fs::write(&file, config).expect("a configuration");
        let mut command = inside(name);
        command.args(["lab", "up", name, "--json"]).args(lab);
        let printed = output(command.arg("--daemon-config").arg(&file).args(["--boot-timeout", "600"]));
        let printed: Value = serde_json::from_str(&printed).expect("JSON");
        let place = printed["dir"].as_str().expect("a directory").into();
        HostLab { name: name.into(), place }
    }

    /// The daemon's directory.
    pub fn runtime_dir(&self) -> PathBuf {
        self.place.join("d")
    }

    pub fn status(&self) -> Value {
        status(&self.runtime_dir())
    }

    pub fn command(&self, guest: &str, script: &str) -> Command {
        let mut command = vmlane();
        command.args(["lab", "exec", &self.name, guest, "--", "sh", "-c", script]);
        command
    }

    pub fn run(&self, guest: &str, script: &str) -> String {
        output(&mut self.command(guest, script))
    }

    /// Copies the programs of `programs/` into a guest: to `/t`.
    pub fn equip(&self, guest: &str) {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let to = format!("{guest}:/t");
        output(vmlane().args(["lab", "cp", &self.name]).arg(programs).arg(to));
    }

    pub fn pings(&self, guest: &str, address: &str) -> bool {
        let command = format!("ping -c 1 -W 2 {address} >/dev/null");
        self.command(guest, &command).status().expect("ping").success()
    }
}

impl Drop for HostLab {
    fn drop(&mut self) {
        let _ = vmlane().args(["lab", "down", &self.name]).output();
    }
}

/// Noise over TCP, which must arrive as it was.
pub fn carry_noise(
    mib: u32,
    (from, sender): (&HostLab, &str),
    (to, receiver): (&HostLab, &str),
    address: &str,
) {
    let receive = "socat -u TCP-LISTEN:5001,reuseaddr - | sha256sum";
    let mut receiving = to.command(receiver, receive).stdout(Stdio::piped()).spawn().expect("a receiver");
    let bytes = mib << 20;
    let sent = from.run(
        sender,
        &format!(
            "head -c {bytes} /dev/urandom >/tmp/noise; sha256sum </tmp/noise; \
             socat -u OPEN:/tmp/noise TCP:{address}:5001,retry=600,interval=0.1; rm /tmp/noise"
        ),
    );
    let mut got = String::new();
    let mut out = BufReader::new(receiving.stdout.take().expect("a pipe"));
    out.read_line(&mut got).expect("a line");
    assert!(receiving.wait().expect("a receiver").success());
    assert_eq!(got, sent, "{sender} to {receiver}");
}

/// What a sender has reported.
#[derive(Default)]
struct GapLog {
    /// In milliseconds.
    longest: u64,
    /// How often it reported that it moves.
    moves: u64,
}

/// A TCP stream of a guest to one that sends nothing but acknowledgements, and when it stood still.
pub struct Gaps {
    printed: Arc<Mutex<GapLog>>,
    _sender: Process,
}

impl Gaps {
    /// Between guests that have the programs.
    pub fn of((from, sender): (&HostLab, &str), (to, receiver): (&HostLab, &str), address: &str) -> Gaps {
        to.run(receiver, "setsid nohup python3 /t/gaps.py receive 5002 >/tmp/receiver 2>&1 &");
        wait_until("the receiver listens", || to.run(receiver, "cat /proc/net/tcp").contains(":138A"));
        let mut command = from.command(sender, &format!("python3 /t/gaps.py send {address} 5002"));
        let mut sender = Process(command.stdout(Stdio::piped()).spawn().expect("a sender"));
        let mut lines = BufReader::new(sender.0.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("a line"), "moving");
        let printed = Arc::new(Mutex::new(GapLog::default()));
        let into = printed.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut printed = into.lock().unwrap();
                match line.strip_prefix("gap ") {
                    Some(gap) => printed.longest = printed.longest.max(gap.parse().expect("a time")),
                    None => printed.moves += 1,
                }
            }
        });
        Gaps { printed, _sender: sender }
    }

    /// Forgets what was reported until now.
    pub fn forget(&self) {
        *self.printed.lock().unwrap() = GapLog::default();
    }

    /// The longest gap since. Waits until the stream has gone on from now.
    pub fn longest(&self) -> u64 {
        let moves = || self.printed.lock().unwrap().moves;
        let before = moves();
        // The first may have been on its way.
        wait_until("the stream goes on", || moves() > before + 1);
        self.printed.lock().unwrap().longest
    }
}
