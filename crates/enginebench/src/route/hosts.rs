//! Two hosts: a daemon and a helper each, with their defaults.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use vmlane_sock::{Host, Listener, Stream};
use vmlane_testkit::Process;

use super::work::{End, Link};
use crate::process::cpu_time;
use crate::vsock::vmlane;

/// The hosts; the first one connects.
pub const NAMES: [&str; 2] = ["alpha", "beta"];
const CIDS: [u32; 2] = [1000, 2000];
const PORT: u32 = 5000;
/// A busy machine takes so long to start four processes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where certificates and what the hosts write lie, and the program.
pub struct Directory {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Directory {
    pub fn new() -> anyhow::Result<Directory> {
        let directory = Directory { directory: tempfile::tempdir()?, program: vmlane()? };
        for name in NAMES {
            let mut command = Command::new(&directory.program);
            command.args(["route", "certificate", name, "--directory"]).arg(directory.path());
            let made = command.output().context("making certificates")?;
            ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        }
        Ok(directory)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Two hosts that are connected. They end when this is dropped.
pub struct Hosts {
    processes: Vec<Process>,
    hosts: [Host; 2],
    _files: tempfile::TempDir,
}

impl Hosts {
    pub fn start(directory: &Directory) -> anyhow::Result<Hosts> {
        let files = tempfile::tempdir_in(directory.path())?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut processes = Vec::new();
        for own in [1, 0] {
            let path = files.path().join(NAMES[own]);
            std::fs::create_dir(&path)?;
            std::fs::write(path.join("vmlane.toml"), config(directory.path(), own, port)?)?;
            for words in [&["daemon"][..], &["route", "run"]] {
                let log = std::fs::File::options().create(true).append(true).open(path.join("log"))?;
                let mut command = Command::new(&directory.program);
                command.args(words).arg("--config").arg(path.join("vmlane.toml"));
                command.arg("--runtime-dir").arg(path.join("run"));
                command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
                processes.push(Process(command.spawn().context("starting a host")?));
            }
        }
        let hosts = NAMES.map(|name| Host::at(&files.path().join(name).join("run")));
        let mut hosts = Hosts { processes, hosts, _files: files };
        let end = Instant::now() + PATIENCE;
        while let Err(error) = hosts.connect(false) {
            for Process(child) in &mut hosts.processes {
                if let Some(status) = child.try_wait()? {
                    bail!("a daemon or a helper has ended: {status}");
                }
            }
            ensure!(Instant::now() < end, "the hosts do not connect: {error:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(hosts)
    }
}

/// What the host `own` of [`NAMES`] is told; the second one listens at `port`.
fn config(certificates: &Path, own: usize, port: u16) -> anyhow::Result<String> {
    let (name, peer) = (NAMES[own], NAMES[1 - own]);
    let range = |host: usize| format!("{}-{}", CIDS[host], CIDS[host] + 999);
    let mut text = format!("[route]\nname = {name:?}\ncids = [{:?}]\ncid = {}\n", range(own), CIDS[own]);
    for (key, file) in [
        ("certificate", format!("{name}.pem")),
        ("key", format!("{name}.key")),
        ("authority", "authority.pem".into()),
    ] {
        writeln!(text, "{key} = {:?}", certificates.join(file))?;
    }
    let [listen, address] = ["listen", "address"].map(|key| format!("{key} = \"127.0.0.1:{port}\"\n"));
    let (listen, address) = if own == 1 { (listen, String::new()) } else { (String::new(), address) };
    write!(text, "{listen}[[peer]]\nname = {peer:?}\n{address}cids = [{:?}]\n", range(1 - own))?;
    text.push_str("groups = [\"default\"]\n");
    Ok(text)
}

impl Link for Hosts {
    fn connect(&mut self, spin: bool) -> anyhow::Result<[Box<dyn End>; 2]> {
        let [alpha, beta] = &self.hosts;
        let listener = Listener::bind_by(beta, PORT)?;
        let client = Stream::connect_by(alpha, CIDS[1], PORT, Duration::from_secs(5))?;
        listener.set_timeout(Some(PATIENCE))?;
        let (server, _) = listener.accept()?;
        if !spin {
            [&client, &server].iter().for_each(|end| end.set_spin(Duration::ZERO));
        }
        Ok([client, server].map(|end| Box::new(Program(end)) as Box<dyn End>))
    }

    fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| cpu_time(process.0.id())).sum()
    }
}

/// A program's end.
struct Program(Stream);

impl Read for Program {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        self.0.read(data)
    }
}

impl Write for Program {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for Program {
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.0.shutdown(Shutdown::Write)?)
    }
}
