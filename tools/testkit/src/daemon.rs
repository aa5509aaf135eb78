//! A daemon of a test, with its configuration in a directory of its own.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Process, Ran, eventually, run};

/// Where a daemon reports that it is ready, as it does to systemd.
const READY: &str = "ready.sock";
/// Time between two checks whether one that is waited for has failed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long one may take to stop before it is killed.
const END: Duration = Duration::from_secs(20);

/// A directory with a configuration, and the daemon that runs in it, if one does. In the end that is stopped
/// as an operator stops it, so that its keeper goes, too.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    directory: TempDir,
    options: Vec<OsString>,
    ready: UnixDatagram,
    process: Mutex<Option<Process>>,
}

impl Daemon {
    /// The directory, for daemons of `program`: any user that they become gets through. None is started.
    pub fn new(program: impl Into<PathBuf>, config: &str) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        let ready = UnixDatagram::bind(directory.path().join(READY)).unwrap();
        ready.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        let (program, options, process) = (program.into(), Vec::new(), Mutex::default());
        let daemon = Daemon { program, directory, options, ready, process };
        daemon.configure(config);
        daemon
    }

    /// Each of its daemons is started with these words, too.
    pub fn with(mut self, options: &[&str]) -> Daemon {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    /// A path below the directory.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file below the directory.
    #[expect(clippy::disallowed_methods, reason = "below a directory of the test's own")]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file")).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub fn config(&self) -> PathBuf {
        self.path("etc/vmlane.toml")
    }

    /// A file that only its owner can write: what other files a daemon's helper believes less.
    pub fn configure(&self, text: &str) {
        fs::set_permissions(self.write("etc/vmlane.toml", text), Permissions::from_mode(0o644)).unwrap();
    }

    pub fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    /// A path below the runtime directory.
    pub fn run(&self, name: impl AsRef<Path>) -> PathBuf {
        self.runtime().join(name)
    }

    /// A socket of a VM's.
    pub fn socket(&self, vm: &str, name: &str) -> PathBuf {
        self.run("vm").join(vm).join(name)
    }

    /// What all its daemons have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// For a process beside the daemon that logs, too.
    pub fn log_file(&self) -> File {
        File::options().create(true).append(true).open(self.path("log")).unwrap()
    }

    /// A command that concerns the runtime directory.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--runtime-dir").arg(self.runtime());
        command.env_remove("VMLANE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command
    }

    /// A command that reads the configuration, too.
    pub fn configured(&self, words: &[&str]) -> Command {
        let mut command = self.command(words);
        command.arg("--config").arg(self.config());
        command
    }

    pub fn daemon_command(&self) -> Command {
        let mut command = self.configured(&["daemon"]);
        command.args(&self.options);
        command
    }

    /// Starts a daemon, and waits until it is ready.
    pub fn start(&self) {
        self.start_with(&[]);
    }

    /// The same, with more words. If it replaces one that runs, that has ended by then.
    pub fn start_with(&self, more: &[&str]) {
        let mut command = self.daemon_command();
        command.args(more).env("NOTIFY_SOCKET", self.path(READY));
        let mut process = self.spawn(command);
        eventually("a daemon is ready", || {
            let mut text = [0; 64];
            if let Ok(len) = self.ready.recv(&mut text) {
                return (&text[..len] == b"READY=1").then_some(());
            }
            let end = process.0.try_wait().unwrap();
            assert!(end.is_none(), "a daemon does not start: {end:?}\n{}", self.log());
            None
        });
        *self.process() = Some(process);
    }

    /// Starts a daemon, and does not wait for it.
    pub fn launch(&self) {
        *self.process() = Some(self.spawn(self.daemon_command()));
    }

    fn spawn(&self, mut command: Command) -> Process {
        Process(command.stdout(Stdio::null()).stderr(self.log_file()).spawn().unwrap())
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("a daemon").id()
    }

    pub fn signal(&self, signal: Signal) {
        self.process().as_ref().expect("a daemon").signal(signal);
    }

    /// Its keeper, or a helper: a process that was started with this word and its directory or its
    /// configuration.
    pub fn beside(&self, word: &str) -> Option<Pid> {
        let (runtime, config) = (self.runtime(), self.config());
        let is_it = |argument: &str| Path::new(argument) == runtime || Path::new(argument) == config;
        fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
            let words = fs::read_to_string(process.path().join("cmdline")).ok()?;
            let mut words = words.split('\0').skip_while(|argument| *argument != word);
            words.any(is_it).then(|| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))?
        })
    }

    /// Without a word to its keeper.
    pub fn kill(&self) {
        drop(self.process().take());
    }

    /// Its end, which must come by itself.
    pub fn wait(&self) -> ExitStatus {
        let mut process = self.process().take().expect("a daemon");
        process.wait()
    }

    pub fn stop(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Runs a command that asks the daemon.
    pub fn ask(&self, words: &[&str]) -> Ran {
        run(self.command(words))
    }

    /// A command that has to succeed, and what it printed.
    #[track_caller]
    pub fn must(&self, words: &[&str]) -> String {
        self.ask(words).good()
    }

    /// The same as JSON, with nothing printed beside.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let ran = self.ask(&[words, &["--json"]].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""), "{ran:?}");
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(value["version"], 1);
        value
    }

    /// A VM as `status` shows it; null where it shows none.
    #[track_caller]
    pub fn vm(&self, name: &str) -> Value {
        named(&self.json(&["status"])["vms"], name)
    }

    /// A VM's counters.
    #[track_caller]
    pub fn stats(&self, vm: &str) -> Value {
        named(&self.json(&["stats"])["vms"], vm)
    }
}

/// The one of a list that has this name.
fn named(list: &Value, name: &str) -> Value {
    let list = list.as_array().expect("a list");
    list.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of a daemon in {}:\n{}", self.directory.path().display(), self.log());
        }
        let Some(mut process) = self.process().take() else { return };
        let deadline = Instant::now() + END;
        if let Ok(None) = process.0.try_wait() {
            process.signal(Signal::TERM);
        }
        while let Ok(None) = process.0.try_wait()
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
