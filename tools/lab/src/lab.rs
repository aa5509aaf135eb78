//! A running lab, for programs: tests, the demo, and the command line alike.

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::child::Handle;
use crate::client::{self, Output, Session, Signaller};
use crate::device::Device;
use crate::plan::{Plan, Reply, Report, Request, Status};
use crate::proto::Exec;
use crate::setup::{self, Progress};
use crate::spec::LabSpec;
use crate::supervisor::net;
use crate::test_host;
use crate::{dirs, qmp};

/// A lab. Dropped by the one who brought it up, it goes down, unless [`Lab::detach`]ed.
pub struct Lab {
    dir: PathBuf,
    owned: Option<Owned>,
}

/// The supervisor's end follows from ours: it stops when this pipe closes.
struct Owned {
    stdin: ChildStdin,
    supervisor: Child,
}

impl Lab {
    /// Boots a lab and returns when every guest answers.
    pub fn up(spec: &LabSpec) -> Result<Self> {
        Self::up_with(spec, &find_vmlane()?, &|line| eprintln!("lab: {line}"))
    }

    /// The same, with the `vmlane` to use and a listener for progress.
    pub fn up_with(spec: &LabSpec, vmlane: &Path, progress: &dyn Fn(&str)) -> Result<Self> {
        spec.check()?;
        let dir = dirs::lab(&spec.name)?;
        let mut assets = setup::ensure(&spec.kernels_used(), spec.qemu.as_deref(), &Progress(progress))?;
        if spec.devices.iter().any(|given| given.device == Device::VhostDeviceVsock) {
            assets.vhost_device_vsock = Some(setup::vhost_device_vsock::ensure(&Progress(progress))?);
        }
        match spec.accelerator.as_deref().filter(|_| spec.has_qemu()) {
            None => {}
            Some("kvm") => assets.accel = setup::Accel::Kvm,
            Some("tcg") => assets.accel = setup::Accel::Tcg,
            Some(other) => bail!("accelerator {other:?}: choose from kvm, tcg"),
        }
        make_dir(&dir, &spec.name)?;
        let plan = Plan { spec: spec.clone(), assets, vmlane: vmlane.to_owned(), dir: dir.clone() };
        let log = fs::File::create(dir.join("supervisor.log"))?;
        let mut supervisor = Command::new(vmlane)
            .args(["lab", "supervise"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", vmlane.display()))?;
        let (stdin, stdout) = (supervisor.stdin.take(), supervisor.stdout.take());
        let mut stdin = stdin.context("the supervisor has no standard input")?;
        let reports = BufReader::new(stdout.context("the supervisor has no standard output")?);
        let sent = writeln!(stdin, "{}", serde_json::to_string(&plan)?);
        let lab = Self { dir, owned: Some(Owned { stdin, supervisor }) };
        sent.context("the supervisor took no plan")?;
        progress(&format!("booting {} guests under {}", spec.guests, plan.assets.accel.name()));
        for line in reports.lines() {
            match serde_json::from_str(&line?)? {
                Report::Progress(line) => progress(&line),
                Report::Ready(status) => {
                    for guest in &status.guests {
                        for warning in &guest.warnings {
                            progress(&format!("guest {}: warning: {warning}", guest.name));
                        }
                    }
                    return Ok(lab);
                }
                Report::Failed(why) => bail!("lab {}: {why}", spec.name),
            }
        }
        bail!("lab {}: the supervisor ended early; run it again, or report what led here", spec.name)
    }

    /// A lab that another process brought up.
    pub fn open(name: &str) -> Result<Self> {
        let lab = Self::at(name)?;
        client::connect(&lab.dir)?;
        Ok(lab)
    }

    /// The same without asking whether it answers: one whose supervisor was killed can go down.
    pub fn at(name: &str) -> Result<Self> {
        Ok(Self { dir: dirs::lab(name)?, owned: None })
    }

    /// Lets the lab outlive this process; `vmlane lab down` ends it.
    pub fn detach(mut self) -> Result<()> {
        if let Some(mut owned) = self.owned.take() {
            owned.stdin.write_all(b"detach\n").context("the supervisor is gone")?;
        }
        Ok(())
    }

    pub fn status(&self) -> Result<Status> {
        match client::ask(&self.dir, &Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => bail!("the supervisor answered {other:?}"),
        }
    }

    /// A guest by its name: `a`, `b` ...
    pub fn guest(&self, name: &str) -> Guest {
        Guest { dir: self.dir.clone(), name: name.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A command on the lab's first test host: a process of this machine in the host's network namespace.
    pub fn host_command(&self, argv: &[String]) -> Result<Command> {
        self.host_command_on(0, argv)
    }

    /// The same on test host number `number`, from 0.
    pub fn host_command_on(&self, number: u32, argv: &[String]) -> Result<Command> {
        let name = self.status()?.name;
        let namespace = test_host::namespace(&name, number);
        ensure!(
            Path::new("/run/netns").join(&namespace).exists(),
            "lab {name:?} has no test host {:?}; bring it up with {}",
            test_host::name(number),
            if number == 0 { "--uplink" } else { "--uplinks 2 or more" }
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace]).args(argv);
        Ok(command)
    }

    pub fn daemon_runtime_dir(&self) -> PathBuf {
        self.dir.join("d")
    }

    /// The path of a log: a guest's console, or the `daemon`'s.
    pub fn log(&self, of: &str) -> PathBuf {
        match of {
            "daemon" => self.dir.join("daemon.log"),
            "supervisor" => self.dir.join("supervisor.log"),
            guest => self.dir.join(guest).join("console.log"),
        }
    }

    /// Everything the lab has logged, for the message of a failed test.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for guest in self.status().map(|s| s.guests).unwrap_or_default() {
            for path in [&guest.console_log, &guest.qemu_log] {
                add_log(&mut text, path);
            }
        }
        add_log(&mut text, &self.log("daemon"));
        add_log(&mut text, &self.log("supervisor"));
        text
    }

    /// Takes the lab down and waits until its last process has ended.
    pub fn down(mut self) -> Result<()> {
        match self.owned.take() {
            Some(owned) => {
                end(owned);
                Ok(())
            }
            None => down(&self.dir),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(owned) = self.owned.take() {
            end(owned);
        }
    }
}

fn end(owned: Owned) {
    let Owned { stdin, mut supervisor } = owned;
    drop(stdin);
    let _ = supervisor.wait();
}

/// Takes down the lab in `dir`, also when its supervisor was killed.
fn down(dir: &Path) -> Result<()> {
    if let Ok(stream) = client::connect(dir) {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let supervisor = Handle::open(peer.pid.as_raw_nonzero().get() as u32);
        drop(stream);
        client::ask(dir, &Request::Down)?;
        if let Ok(supervisor) = supervisor
            && !supervisor.wait(Duration::from_secs(30))
        {
            bail!("the supervisor {} did not end in 30 s", supervisor.pid);
        }
        return Ok(());
    }
    if is_alive(dir) {
        bail!("the lab is still coming up: Ctrl-C the one that brings it up, or wait");
    }
    if !dir.exists() {
        bail!("no such lab; vmlane lab list shows which there are");
    }
    net::remove(&dir.file_name().unwrap_or_default().to_string_lossy());
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Whether a supervisor holds the lock of the lab in `dir`.
fn is_alive(dir: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    fs::File::open(dir.join("lock"))
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// The labs of this user: name, and status when it answers.
pub fn list() -> Result<Vec<(String, Option<Status>)>> {
    let labs = names()?
        .into_iter()
        .map(|name| {
            let status = Lab::open(&name).and_then(|lab| lab.status()).ok();
            (name, status)
        })
        .collect();
    Ok(labs)
}

/// Names of the labs of this user, also of those that do not answer.
pub fn names() -> Result<Vec<String>> {
    if !dirs::has_runtime()? {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dirs::runtime()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| dirs::check_name(name).is_ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Makes the lab's directory; one whose supervisor is gone is stale and makes room.
fn make_dir(dir: &Path, name: &str) -> Result<()> {
    dirs::make_runtime()?;
    if dir.exists() {
        if is_alive(dir) {
            bail!("lab {name} is running already; vmlane lab down {name} ends it");
        }
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn add_log(text: &mut String, path: &Path) {
    if let Ok(bytes) = fs::read(path)
        && !bytes.is_empty()
    {
        text.push_str(&format!("==> {} <==\n{}\n", path.display(), String::from_utf8_lossy(&bytes)));
    }
}

/// `VMLANE_BIN`, this program if it is vmlane, or the newest build of this workspace.
pub fn find_vmlane() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("VMLANE_BIN") {
        return Ok(path.into());
    }
    let this = std::env::current_exe().context("cannot find this program")?;
    if this.file_name().is_some_and(|n| n == "vmlane") {
        return Ok(this);
    }
    // Tests run from target/<triple>/<profile>/deps/.
    let found = this
        .ancestors()
        .flat_map(|dir| ["release/vmlane", "debug/vmlane"].map(|p| dir.join(p)))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max();
    let (_, path) = found.context("no vmlane is built: cargo build --release, or set VMLANE_BIN")?;
    Ok(path)
}

/// One guest of a lab.
#[derive(Clone)]
pub struct Guest {
    dir: PathBuf,
    name: String,
}

impl Guest {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command to its end with nothing on its standard input.
    pub fn exec<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Output> {
        self.exec_with_stdin(argv, Vec::new())
    }

    /// Runs a command to its end with `input` on its standard input.
    pub fn exec_with_stdin<S: Into<String>>(
        &self,
        argv: impl IntoIterator<Item = S>,
        input: impl Into<Vec<u8>>,
    ) -> Result<Output> {
        let session = self.session(argv)?;
        session.feed(Cursor::new(input.into()));
        let mut output = Output::default();
        output.exit = session.finish(&mut output.stdout, &mut output.stderr)?;
        Ok(output)
    }

    /// Runs a shell line; an exit code other than 0 is an error that shows its output.
    pub fn sh(&self, script: &str) -> Result<String> {
        let output = self.exec(["sh", "-c", script])?;
        if !output.success() {
            bail!(
                "guest {}: {script:?} ended with {}: {}{}",
                self.name,
                output.exit.shell_code(),
                output.stdout(),
                output.stderr()
            );
        }
        Ok(output.stdout())
    }

    /// Starts a command and leaves it running beside others.
    pub fn spawn<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Running> {
        let session = self.session(argv)?;
        session.feed(std::io::empty());
        let signaller = session.signaller();
        let so_far = [Shared::default(), Shared::default()];
        let [mut stdout, mut stderr] = so_far.clone();
        let thread = std::thread::spawn(move || {
            let ended = session.finish(&mut stdout, &mut stderr);
            if let Err(error) = &ended {
                let _ = write!(stderr, "{error:#}");
            }
            ended
        });
        Ok(Running { so_far, signaller, thread: Some(thread) })
    }

    /// The command's session, for those who carry the streams themselves.
    pub fn session<S: Into<String>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Session> {
        let argv = argv.into_iter().map(Into::into).collect();
        Session::start(&self.dir, &self.name, Exec { argv, ..Exec::default() })
    }

    /// Copies a file or a directory into the guest. A destination that is a directory, or ends in
    /// '/', keeps the source's name.
    pub fn cp_to(&self, source: &Path, target: &str) -> Result<()> {
        let name = source.canonicalize().with_context(|| source.display().to_string())?;
        let base = name.file_name().context("a source without a name")?.to_string_lossy();
        if source.is_dir() {
            let tar = Command::new("tar")
                .arg("-C")
                .arg(&name)
                .args(["-cf", "-", "."])
                .output()
                .context("cannot run tar")?;
            let script = r#"t=$1; [ -d "$t" ] && t=$t/$2; mkdir -p "$t" && tar -C "$t" -xf -"#;
            return self.copy_script(script, target, &base, tar.stdout).map(drop);
        }
        use std::os::unix::fs::PermissionsExt;
        let data = fs::read(source).with_context(|| source.display().to_string())?;
        let mode = fs::metadata(source)?.permissions().mode() & 0o777;
        let script = format!(
            r#"t=$1; case $t in */) mkdir -p "$t";; esac; [ -d "$t" ] && t=$t/$2
               cat >"$t.part" && chmod {mode:o} "$t.part" && mv "$t.part" "$t""#
        );
        self.copy_script(&script, target, &base, data).map(drop)
    }

    /// Copies a file out of the guest.
    pub fn cp_from(&self, source: &str, target: &Path) -> Result<()> {
        let base = source.rsplit('/').next().unwrap_or(source);
        let target = if target.is_dir() { target.join(base) } else { target.to_owned() };
        let session = self.session(["sh", "-c", r#"exec cat "$1""#, "cp", source])?;
        session.feed(std::io::empty());
        let part = target.with_extension("vmlane-part");
        let mut file = fs::File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
        let mut stderr = Vec::new();
        let exit = session.finish(&mut file, &mut stderr);
        if !matches!(exit, Ok(exit) if exit.code == Some(0)) {
            let _ = fs::remove_file(&part);
            exit?;
            bail!("guest {}: {}", self.name, String::from_utf8_lossy(&stderr).trim());
        }
        fs::rename(&part, &target).with_context(|| format!("cannot write {}", target.display()))
    }

    fn copy_script(&self, script: &str, target: &str, base: &str, data: Vec<u8>) -> Result<Output> {
        let output = self.exec_with_stdin(["sh", "-c", script, "cp", target, base], data)?;
        if !output.success() {
            bail!("guest {}: {}", self.name, output.stderr().trim());
        }
        Ok(output)
    }

    /// SIGKILL to the guest's QEMU.
    pub fn kill(&self) -> Result<()> {
        self.ask(Request::Kill { guest: self.name.clone() })
    }

    /// A new QEMU for a guest that was killed or ended; returns when it answers.
    pub fn start(&self) -> Result<()> {
        self.start_by(false)
    }

    /// The same, but its firmware finds a kernel in the network: through PXE on its first NIC, which must
    /// be on vmlane's switch. A host there must answer DHCP and serve the files.
    pub fn start_from_network(&self) -> Result<()> {
        self.start_by(true)
    }

    fn start_by(&self, network: bool) -> Result<()> {
        self.ask(Request::Start { guest: self.name.clone(), network })?;
        self.ask(Request::WaitUp { guest: self.name.clone() })
    }

    /// Restarts from inside the guest, or with `hard` by the reset button; returns when it answers.
    pub fn reboot(&self, hard: bool) -> Result<()> {
        self.ask(Request::Reboot { guest: self.name.clone(), hard })
    }

    /// Runs a QMP command on the guest's QEMU.
    pub fn qmp(&self, command: &str, arguments: Option<Value>) -> Result<Value> {
        qmp::execute(&self.dir.join(&self.name).join("qmp.sock"), command, arguments)
    }

    fn ask(&self, request: Request) -> Result<()> {
        client::ask(&self.dir, &request).map(drop)
    }
}

/// A command that runs in a guest beside others. Dropped, it is ended.
pub struct Running {
    so_far: [Shared; 2],
    signaller: Signaller,
    thread: Option<JoinHandle<Result<crate::Exit>>>,
}

impl Running {
    /// What it has printed so far.
    pub fn stdout(&self) -> String {
        self.so_far[0].text()
    }

    pub fn stderr(&self) -> String {
        self.so_far[1].text()
    }

    /// Waits until its output has `needle` in it.
    pub fn wait_for(&self, needle: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            // Asked first: its last output is there once it has ended.
            let over = Instant::now() > deadline || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if self.stdout().contains(needle) || self.stderr().contains(needle) {
                return Ok(());
            }
            if over {
                bail!("no {needle:?} in its output: {}{}", self.stdout(), self.stderr());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, number: i32) {
        self.signaller.signal(number);
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<Output> {
        let thread = self.thread.take().context("waited for twice")?;
        let exit = thread.join().map_err(|_| anyhow::anyhow!("the session's thread panicked"))??;
        let [stdout, stderr] = self.so_far.clone().map(|s| s.take());
        Ok(Output { exit, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.signaller.hang_up();
        }
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Shared {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
