//! A QEMU without a guest: its processors never run, and accesses are made for whoever asks at a socket
//! (QEMU's `docs/devel/testing/qtest.rst`).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use vmlane_lab::setup::Qemu;
use vmlane_mem::{MapRequest, MemoryMap, memfd};
use vmlane_testkit::Process;

/// Bytes of memory.
const RAM: u64 = 64 << 20;
/// Where the device is on the root bus; the BIOS, which would choose its addresses, does not run.
pub const SLOT: u32 = 5;
const STARTS: Duration = Duration::from_secs(30);

/// A running QEMU with one vfio-user device. Ends when dropped.
pub struct Machine {
    /// The VM's memory, from address 0 on.
    pub memory: MemoryMap,
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    line: String,
    _process: Process,
}

impl Machine {
    /// Its device is behind `device`; it listens at `socket`, beside which its log is.
    pub fn start(qemu: &Qemu, socket: &Path, device: &Path) -> anyhow::Result<Machine> {
        let file = memfd("vm-ram", RAM)?;
        let log = socket.with_extension("log");
        let mut command = qemu.command();
        command.args(arguments(&file, socket, device)).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process(command.stderr(File::create(&log)?).spawn().context("starting QEMU")?);
        let requests = connect(socket, &mut process).with_context(|| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            format!("QEMU: {}", log.lines().last().unwrap_or("no output"))
        })?;
        let answers = BufReader::new(requests.try_clone()?);
        let request = MapRequest { guest: 0, len: RAM, offset: 0, fd: file, writable: true };
        let memory = MemoryMap::default().map(request)?;
        Ok(Machine { memory, requests, answers, line: String::new(), _process: process })
    }

    /// A command of the protocol, and the number in its answer; 0 if there is none.
    pub fn ask(&mut self, command: std::fmt::Arguments<'_>) -> anyhow::Result<u64> {
        self.line.clear();
        std::fmt::write(&mut self.line, command)?;
        self.line.push('\n');
        self.requests.write_all(self.line.as_bytes())?;
        self.line.clear();
        self.answers.read_line(&mut self.line)?;
        let Some(value) = self.line.trim_end().strip_prefix("OK") else {
            bail!("QEMU answers {command} with {:?}", self.line);
        };
        match value.trim_start().strip_prefix("0x") {
            Some(digits) => Ok(u64::from_str_radix(digits, 16)?),
            None => Ok(0),
        }
    }
}

fn arguments(memory: &OwnedFd, socket: &Path, device: &Path) -> Vec<String> {
    let memory = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let device = serde_json::json!({
        "driver": "vfio-user-pci",
        "addr": format!("{SLOT:02x}.0"),
        "socket": { "type": "unix", "path": device },
        "x-no-posted-writes": true,
    });
    let mut arguments: Vec<String> =
        "-nodefaults -no-user-config -display none -machine q35,memory-backend=ram -accel qtest -qtest-log none"
            .split(' ')
            .map(str::to_owned)
            .collect();
    arguments.extend([
        "-m".to_owned(),
        format!("{}M", RAM >> 20),
        "-object".to_owned(),
        format!("memory-backend-file,id=ram,size={RAM},share=on,mem-path={memory}"),
        "-qtest".to_owned(),
        format!("unix:{},server=on,wait=off", socket.display()),
        "-device".to_owned(),
        device.to_string(),
    ]);
    arguments
}

fn connect(socket: &Path, process: &mut Process) -> anyhow::Result<UnixStream> {
    let deadline = Instant::now() + STARTS;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
        if let Some(status) = process.0.try_wait()? {
            bail!("it ended ({status})");
        }
    }
}
