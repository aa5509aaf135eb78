//! The process that serves both guests' devices: our daemon, or vhost-device-vsock.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use vmlane_testkit::TWO_VSOCK;

use super::guest::Guest;
use super::traffic::{self, CIDS};

/// A running back end, in a folder of its own. Ends when dropped.
pub struct Backend {
    child: Child,
    dir: PathBuf,
    sockets: [PathBuf; 2],
}

/// `vmlane` that was built with this program.
pub fn vmlane() -> anyhow::Result<PathBuf> {
    let program = match std::env::var_os("VMLANE_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("vmlane"),
    };
    if !program.is_file() {
        bail!("no program {}: cargo build --release --locked -p vmlane-cli makes it", program.display());
    }
    Ok(program)
}

impl Backend {
    /// Our daemon, with its defaults.
    pub fn ours(program: &Path, dir: &Path) -> anyhow::Result<Backend> {
        let sockets = ["a", "b"].map(|name| dir.join("run/vm").join(name).join("vsock.sock"));
        Backend::of(program, dir, TWO_VSOCK, sockets)
    }

    /// Our daemon with a configuration; `sockets` are those of two of its VMs.
    pub fn of(
        program: &Path,
        dir: &Path,
        configuration: &str,
        sockets: [PathBuf; 2],
    ) -> anyhow::Result<Backend> {
        crate::folders::make(dir)?;
        let config = dir.join("vmlane.toml");
        std::fs::write(&config, configuration)?;
        let mut command = Command::new(program);
        command.arg("daemon").arg("--config").arg(config).arg("--runtime-dir").arg(dir.join("run"));
        command.env_remove("NOTIFY_SOCKET");
        Backend::start(command, dir, sockets)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// vhost-device-vsock with two siblings, with its defaults.
    pub fn theirs(program: &Path, dir: &Path) -> anyhow::Result<Backend> {
        crate::folders::make(dir)?;
        let sockets = ["a.sock", "b.sock"].map(|name| dir.join(name));
        let mut command = Command::new(program);
        for (cid, socket) in CIDS.iter().zip(&sockets) {
            let (socket, host) = (socket.display(), dir.join(format!("{cid}.uds")));
            let vm = format!("guest-cid={cid},socket={socket},uds-path={},groups=default", host.display());
            command.args(["--vm", &vm]);
        }
        Backend::start(command, dir, sockets)
    }

    fn start(mut command: Command, dir: &Path, sockets: [PathBuf; 2]) -> anyhow::Result<Backend> {
        let log = std::fs::File::create(dir.join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        Ok(Backend { child, dir: dir.to_owned(), sockets })
    }

    /// Two guests, attached.
    pub fn guests(&mut self) -> anyhow::Result<[Guest; 2]> {
        let sockets = self.sockets.clone();
        traffic::attach(&sockets, || self.is_alive())
    }

    /// Waits until `socket` is there, for a VMM that attaches by itself.
    pub fn await_socket(&mut self, socket: &Path) -> anyhow::Result<()> {
        while !socket.exists() {
            self.is_alive()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// An error: it has ended, and why.
    fn is_alive(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        bail!("the back end ended ({status}): {}", log.lines().last().unwrap_or("no output"))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Fails only if it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
