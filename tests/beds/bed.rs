//! A lab under test, and what must hold at the end of each test in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use toml::Table;
use vmlane_api::call;
use vmlane_lab::{Guest, Lab, LabSpec, merge_config};

use crate::topology::Topology;
use crate::{Process, TIMEOUT, wait_until};

/// Words that must not appear in a guest's kernel log.
const ALARMS: [&str; 5] = ["BUG:", "WARNING:", "Oops", "Call Trace", "soft lockup"];

/// A lab. A test that has one of its own calls [`Bed::finish`] at its end; one that shares a lab leaves it as
/// it was.
pub struct Bed {
    lab: Option<Lab>,
    vmlane: PathBuf,
}

/// The daemon's configuration as a test wants it; dropped, it is as before.
pub struct Configured<'a> {
    bed: &'a Bed,
    before: String,
    /// Only the start of a daemon reads what differs.
    restarts: bool,
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        // A failed test's bed is booted anew.
        if !std::thread::panicking() {
            self.bed.reconfigure(&self.before, self.restarts);
        }
    }
}

/// The lab's supervisor, which does nothing until this is dropped: it would start a daemon of its own as soon
/// as it sees none, and so before one that takes over.
struct Halted(Pid);

impl Halted {
    fn new(supervisor: u32) -> Halted {
        let supervisor = Pid::from_raw(supervisor as i32).unwrap();
        kill_process(supervisor, Signal::STOP).unwrap();
        Halted(supervisor)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // It fails only if it is gone.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Two guests with these devices. The lab's name is `what` and the id of this process.
pub fn lab(what: &str, devices: &[&str]) -> LabSpec {
    let mut spec = LabSpec::new(&format!("{what}-{}", std::process::id()));
    for device in devices {
        spec = spec.device(device).unwrap();
    }
    spec.boot_seconds = 300;
    spec
}

/// Guests with VMCI devices.
pub fn spec(what: &str, kernels: &[&str]) -> LabSpec {
    let kernels: Vec<String> = kernels.iter().map(|k| (*k).to_owned()).collect();
    LabSpec { guests: kernels.len(), kernels, ..lab(what, &["vmci"]) }
}

impl Bed {
    /// The bed of a topology, booted.
    pub fn open(topology: &Topology) -> Bed {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), topology.config()).unwrap();
        Bed::up(&LabSpec { daemon_config: Some(file.path().to_owned()), ..topology.spec() })
    }

    /// Boots the guests and copies the programs into them.
    pub fn up(spec: &LabSpec) -> Bed {
        let vmlane = vmlane_lab::find_vmlane().unwrap();
        let lab = Lab::up(spec).unwrap_or_else(|error| panic!("{error:#}"));
        let bed = Bed { lab: Some(lab), vmlane };
        for guest in spec.guests() {
            bed.equip(&guest.name);
        }
        bed
    }

    /// Copies the programs into a guest. Needed again after its QEMU was killed, because its disk is lost
    /// with it.
    pub fn equip(&self, guest: &str) {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let guest = self.guest(guest);
        // Not into an existing directory: a second copy would be created inside the first.
        guest.sh("rm -rf /t").unwrap();
        guest.cp_to(&programs, "/t").unwrap();
    }

    pub fn lab(&self) -> &Lab {
        self.lab.as_ref().expect("the lab is up until finish")
    }

    pub fn guest(&self, name: &str) -> Guest {
        self.lab().guest(name)
    }

    /// The file of the daemon's configuration.
    fn config(&self) -> PathBuf {
        self.lab().status().unwrap().daemon.expect("a lab with a daemon").config
    }

    /// The daemon's configuration as it is.
    pub fn configuration(&self) -> String {
        fs::read_to_string(self.config()).unwrap()
    }

    fn reconfigure(&self, text: &str, restarts: bool) {
        fs::write(self.config(), text).unwrap();
        if restarts {
            self.kill_daemon();
        } else {
            self.vmlane(&["reload"]);
        }
    }

    fn changed(&self, restarts: bool, edit: impl FnOnce(&mut Table)) -> Configured<'_> {
        let before = self.configuration();
        let mut config: Table = before.parse().unwrap();
        edit(&mut config);
        self.reconfigure(&config.to_string(), restarts);
        Configured { bed: self, before, restarts }
    }

    /// Edits the daemon's configuration and has it reloaded, until what this returns is dropped.
    pub fn edited(&self, edit: impl FnOnce(&mut Table)) -> Configured<'_> {
        self.changed(false, edit)
    }

    /// Merges `toml` over the daemon's configuration, likewise.
    pub fn configured(&self, toml: &str) -> Configured<'_> {
        self.edited(|config| merge_config(config, toml.parse().unwrap()))
    }

    /// The same for what only the start of a daemon reads: it is killed now, and when what this returns is
    /// dropped. Only in a bed that `kills`.
    pub fn restarted(&self, toml: &str) -> Configured<'_> {
        self.changed(true, |config| merge_config(config, toml.parse().unwrap()))
    }

    /// The CID of a guest: 3 for a, 4 for b ...
    pub fn cid(&self, name: &str) -> u32 {
        let status = self.lab().status().unwrap();
        let guest = status.guests.iter().find(|g| g.name == name);
        guest.and_then(|g| g.cid).unwrap_or_else(|| panic!("guest {name} has no CID"))
    }

    pub fn daemon_pid(&self) -> Pid {
        let pid = self.lab().status().unwrap().daemon.and_then(|d| d.pid).expect("the daemon runs");
        Pid::from_raw(pid as i32).expect("a process id")
    }

    /// Kills the daemon and waits until the next one answers. Returns the next one's process id.
    pub fn kill_daemon(&self) -> Pid {
        let before = self.daemon_pid();
        kill_process(before, Signal::KILL).unwrap();
        self.wait_for_another_daemon(before)
    }

    /// Starts a daemon of `program` that is to take the place of the lab's. The lab's supervisor may be
    /// stopped.
    fn start_replacement(&self, program: &Path) -> Child {
        let lab = self.lab();
        let log = fs::File::options().append(true).open(lab.log("daemon")).unwrap();
        let mut command = Command::new(program);
        command.args(["daemon", "--replace", "--config"]).arg(lab.dir().join("daemon.toml"));
        command.arg("--runtime-dir").arg(lab.daemon_runtime_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Has a daemon of `program` take the place of the one that answers. The last one ends with
    /// [`Bed::end_replacements`].
    pub fn replace_daemon(&self, program: &Path) -> Process {
        let pid = vmlane_api::Client::connect(&self.lab().daemon_runtime_dir())
            .unwrap()
            .call(&call::Ping {})
            .unwrap()
            .pid;
        let before = Pid::from_raw(pid as i32).unwrap();
        let _halted = Halted::new(self.lab().status().unwrap().supervisor_pid);
        let next = Process(self.start_replacement(program));
        assert_eq!(self.wait_for_another_daemon(before), Pid::from_child(&next.0));
        next
    }

    /// Ends a daemon that took the place of the lab's; from then on the supervisor's own runs.
    pub fn end_replacements(&self, last: Process) {
        let before = Pid::from_child(&last.0);
        drop(last);
        self.wait_for_another_daemon(before);
    }

    /// Waits until a daemon answers that is not `before`.
    pub fn wait_for_another_daemon(&self, before: Pid) -> Pid {
        let mut now = before;
        wait_until("another daemon answers", || {
            let client = vmlane_api::Client::connect(&self.lab().daemon_runtime_dir());
            let pong = client.ok().and_then(|client| client.with_timeout(TIMEOUT).call(&call::Ping {}).ok());
            now = pong.and_then(|pong| Pid::from_raw(pong.pid as i32)).unwrap_or(before);
            now != before
        });
        now
    }

    /// Has the lab's daemon carry out a call.
    ///
    /// # Errors
    /// No daemon answers, or it refuses.
    pub fn call<M: vmlane_api::Method>(&self, call: &M) -> Result<M::Answer, vmlane_api::ClientError> {
        vmlane_api::Client::connect(&self.lab().daemon_runtime_dir())?.call(call)
    }

    /// Runs `vmlane WORDS... --runtime-dir DIR` against the lab's daemon.
    pub fn vmlane(&self, words: &[&str]) -> String {
        let output = Command::new(&self.vmlane)
            .args(words)
            .arg("--runtime-dir")
            .arg(self.lab().daemon_runtime_dir())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "vmlane {words:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The error of a `vmlane` command that must be refused.
    pub fn refused(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.vmlane);
        command.args(words).arg("--runtime-dir").arg(self.lab().daemon_runtime_dir());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "vmlane {words:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Starts `vmlane WORDS... --runtime-dir DIR` against the lab's daemon.
    pub fn start(&self, words: &[&str]) -> Child {
        let mut command = Command::new(&self.vmlane);
        command.args(words).arg("--runtime-dir").arg(self.lab().daemon_runtime_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    /// What `vmlane status` reports of a VM.
    pub fn vm(&self, name: &str) -> Value {
        let status: Value = serde_json::from_str(&self.vmlane(&["status", "--json"])).unwrap();
        let vms = status["vms"].as_array().expect("a list of VMs");
        vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("no VM {name}")).clone()
    }

    pub fn stats(&self) -> Value {
        serde_json::from_str(&self.vmlane(&["stats", "--json"])).unwrap()
    }

    /// A counter of one VM's device.
    pub fn counter(&self, guest: &str, name: &str) -> u64 {
        let stats = self.stats();
        let vms = stats["vms"].as_array().expect("a list of VMs");
        let vm = vms.iter().find(|vm| vm["name"] == guest).unwrap_or_else(|| panic!("no VM {guest}"));
        vm["vmci"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {vm}"))
    }

    /// No alarm in a guest's kernel log. Also called before a restart, which clears the log.
    pub fn check_kernel(&self, guest: &str) {
        let log = self.guest(guest).sh("dmesg").unwrap();
        for alarm in ALARMS {
            assert!(!log.contains(alarm), "{alarm} in the kernel log of guest {guest}:\n{log}");
        }
    }

    /// No notification was lost, no ring broken, no alarm in a guest's kernel log.
    pub fn check(&self) {
        let stats = self.stats();
        let workers = &stats["workers"];
        assert_eq!(workers["lost_notices"], 0, "notifications were lost: {stats}");
        if workers["still_senders"] != 0 {
            println!(
                "{} streams had unannounced bytes of a guest that was stopped",
                workers["still_senders"]
            );
        }
        for vm in stats["vms"].as_array().expect("a list of VMs") {
            // A VM without a VMCI device has no such counter.
            assert_eq!(vm["vmci"]["broken_rings"].as_u64().unwrap_or(0), 0, "rings are broken: {vm}");
        }
        for guest in self.lab().status().unwrap().guests.iter().filter(|g| g.state == "up") {
            self.check_kernel(&guest.name);
        }
    }

    /// Runs the checks; then the lab goes down and must leave nothing behind.
    pub fn finish(self) {
        self.check();
        self.lab_down();
    }

    /// [`Self::finish`] without the checks, for when the daemon is gone.
    pub fn lab_down(mut self) {
        let dir = self.lab().dir().to_owned();
        self.lab.take().expect("finished once").down().unwrap();
        assert!(!dir.exists(), "{} is left over", dir.display());
        wait_until("the lab's last process has ended", || processes_of(&dir).is_empty());
    }
}

impl Bed {
    /// All logs of a lab in which a test has failed, because its files are removed with it.
    pub fn print_logs(&self) {
        let Some(lab) = &self.lab else { return };
        eprintln!("{}", lab.logs());
        let mut stats = Command::new(&self.vmlane);
        stats.args(["stats", "--runtime-dir"]).arg(lab.daemon_runtime_dir());
        if let Ok(stats) = stats.output() {
            eprintln!("{}", String::from_utf8_lossy(&stats.stdout));
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// The processes whose command line contains the lab's directory.
fn processes_of(dir: &Path) -> Vec<String> {
    let needle = dir.display().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .filter(|line| line.contains(&needle))
        .collect()
}
