//! The agent: what a guest of a lab runs, `vmlane lab agent`.
//!
//! One thread reads the port and never waits for a command: what a session may have under
//! way is bounded by its credit, so handing data to the session's own threads cannot block. One
//! thread writes the port, whole frames only.

mod network;
mod output;
mod session;

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::proto::{self, Frame, FrameKind, Hello, Setup, Up};
use output::send;
use session::Sessions;

/// Serves the port until it fails.
pub fn run() -> Result<()> {
    let path = find_port()?;
    let file = open_port(&path).with_context(|| format!("cannot open the lab's port {}", path.display()))?;
    let out = output::start_writer(file.try_clone()?);
    let line = rustix::termios::isatty(&file).then(|| out.clone());
    let mut port = BufReader::with_capacity(64 * 1024, Patient { file, line, taken: 0 });

    let hello = Hello { nonce: nonce(), release: release() };
    send(&out, proto::opening(&Frame::json(FrameKind::Hello, 0, &hello)));
    let setup = wait_for_setup(&mut port, hello.nonce)?;
    let mut warnings = Vec::new();
    network::apply(&setup, &mut warnings);
    let up = Up { release: hello.release, uptime: uptime(), warnings };
    send(&out, Frame::json(FrameKind::Up, 0, &up).encode());
    serve(&mut port, &out)
}

fn serve(port: &mut impl Read, out: &Sender<Vec<u8>>) -> Result<()> {
    let sessions = Sessions::default();
    while let Some(frame) = Frame::read(port).context("the lab's port")? {
        match frame.kind {
            FrameKind::Exec => session::start(&frame, out, &sessions),
            FrameKind::Reboot => reboot(),
            _ => {
                let mut open = sessions.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(session) = open.get_mut(&frame.session) {
                    session.handle(frame);
                }
            }
        }
    }
    bail!("the lab's port ended")
}

/// A port whose host side is away reads as an end of file; the host side comes back.
struct Patient {
    file: File,
    /// Of a serial line: reports to the lab what was taken from it.
    line: Option<Sender<Vec<u8>>>,
    taken: u32,
}

impl Patient {
    fn took(&mut self, bytes: usize) {
        let Some(out) = &self.line else { return };
        self.taken += bytes as u32;
        if self.taken >= proto::LINE_TAKEN {
            send(out, Frame::taken(std::mem::take(&mut self.taken)).encode());
        }
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.file.read(buffer) {
                Ok(0) => std::thread::sleep(Duration::from_millis(50)),
                Ok(bytes) => {
                    self.took(bytes);
                    return Ok(bytes);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

fn open_port(path: &Path) -> Result<File> {
    let no_tty_of_ours = rustix::fs::OFlags::NOCTTY.bits() as i32;
    let file = File::options().read(true).write(true).custom_flags(no_tty_of_ours).open(path)?;
    if rustix::termios::isatty(&file) {
        // Bytes are to pass as they are.
        let mut line = rustix::termios::tcgetattr(&file)?;
        line.make_raw();
        rustix::termios::tcsetattr(&file, rustix::termios::OptionalActions::Now, &line)?;
    }
    Ok(file)
}

fn find_port() -> Result<PathBuf> {
    let words = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    if let Some(line) = words.split_whitespace().find_map(|word| word.strip_prefix(proto::PORT_WORD)) {
        return Ok(line.into());
    }
    for _ in 0..200 {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == proto::PORT {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("no virtio-serial port named {} in 10 s: the agent runs in guests of a lab only", proto::PORT)
}

/// Skips whatever was meant for an agent before this one.
fn wait_for_setup(port: &mut impl Read, nonce: u64) -> Result<Setup> {
    while proto::hunt(port)? {
        if let Ok(Some(frame)) = Frame::read(port)
            && frame.kind == FrameKind::Setup
            && let Ok(setup) = frame.parse::<Setup>()
            && setup.nonce == nonce
        {
            return Ok(setup);
        }
    }
    bail!("the lab's port ended before the supervisor answered")
}

fn reboot() {
    eprintln!("vmlane agent: restarting as the lab asks");
    network::set_own_cards_down();
    rustix::fs::sync();
    if let Err(error) = rustix::system::reboot(rustix::system::RebootCommand::Restart) {
        eprintln!("vmlane agent: cannot restart: {error}");
    }
}

fn nonce() -> u64 {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap_or_else(|_| std::process::id().into())
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default()
}
