//! The stream rows with the guests in processes of their own: each attaches to the server's socket as a
//! VMM does, so registers travel by vfio-user and interrupts by eventfd.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::report::Sample;
use anyhow::{Context as _, bail};
use vmlane_device::vmci::{Hypervisor, VmciDevice};
use vmlane_guestsim::{Guest, Options, Placement, SocketError, vm};
use vmlane_stream::{Settings, Workers};
use vmlane_testkit::Process;
use vmlane_transport::{IrqSet, Listener, Server, SessionStats};
use vmlane_vsock::Router;
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

use crate::pair::{RING, SPIN};

const PORT: u32 = 5000;

/// One round: a daemon's pieces here, two guest processes, one stream.
pub fn stream(block: usize, length: Duration) -> anyhow::Result<Sample> {
    let folder = crate::folders::temporary().context("a folder for sockets")?;
    let workers = Arc::new(Workers::start(Settings::default()).context("starting a worker")?);
    let hypervisor = Hypervisor::new(Router::new(workers.clone()));
    let serve = |cid: u32| -> anyhow::Result<Server> {
        let vm = vm(cid);
        hypervisor.router().vms().add(vm.vm)?;
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let device = VmciDevice::new(hypervisor.clone(), (cid, vm.limits), irqs.clone())?;
        let listener = Listener::bind(folder.join(format!("{cid}.sock")))?;
        Ok(listener.serve(&format!("vm-{cid}"), Box::new(device), irqs, stats)?)
    };
    let servers = [serve(3)?, serve(4)?];
    let spawn = |index: usize, role: &str| -> anyhow::Result<Child> {
        Command::new(std::env::current_exe()?)
            .arg("--guest")
            .args([servers[index].path().as_os_str(), role.as_ref()])
            .args([block.to_string(), length.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a guest process")
    };
    let mut receiver = Process(spawn(1, "receiver")?);
    let mut lines = BufReader::new(receiver.0.stdout.take().context("no output of the receiver")?).lines();
    lines.next().context("the receiving guest ended before it listened")??;
    let mut sender = Process(spawn(0, "sender")?);
    let result = lines.next().context("the receiving guest ended without a result")??;
    sender.0.wait()?;
    receiver.0.wait()?;
    let _ = std::fs::remove_dir_all(&folder);
    let mut numbers = result.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(bytes)), Some(Ok(nanos))) = (numbers.next(), numbers.next()) else {
        bail!("the receiving guest reported {result:?}");
    };
    Ok(Sample::gbits(bytes, Duration::from_nanos(nanos)))
}

/// CPU time so far of all threads of a process.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let Some(ran) = line.split(' ').next() else { bail!("schedstat contains {line:?}") };
        total += Duration::from_nanos(ran.parse()?);
    }
    Ok(total)
}

/// A guest whose VMM is this process.
fn attach(socket: &str) -> anyhow::Result<Arc<Guest>> {
    let guest = Guest::new(vmlane_guestsim::attached::attach(socket.as_ref(), 64 << 20)?);
    guest.set_spin(SPIN);
    Ok(guest)
}

/// Runs as `--guest SOCKET ROLE BLOCK MILLIS`.
pub fn be_guest(arguments: &[String]) -> anyhow::Result<()> {
    let [socket, role, block, millis] = arguments else { bail!("--guest needs four values") };
    let (block, millis) = (block.parse()?, millis.parse()?);
    let guest = attach(socket)?;
    let outcome = match role.as_str() {
        "receiver" => receive(&guest, block),
        "sender" => send(&guest, block, Duration::from_millis(millis)),
        other => bail!("--guest: role {other:?}: it is sender or receiver"),
    };
    outcome.map_err(|error| anyhow::anyhow!("{role}: {error}"))
}

fn send(guest: &Arc<Guest>, block: usize, length: Duration) -> Result<(), SocketError> {
    let stream = guest.connect((4, PORT), Options { size: RING, ..Options::default() })?;
    let data = vec![0xa5; block];
    let start = Instant::now();
    while start.elapsed() < length {
        stream.send_all(&data)?;
    }
    stream.shutdown(SHUTDOWN_SEND);
    // Closing at once would be as good; waiting for the peer keeps the two processes' ends apart.
    while stream.recv(&mut [0; 1])? > 0 {}
    Ok(())
}

fn receive(guest: &Arc<Guest>, block: usize) -> Result<(), SocketError> {
    let listener = guest.listen(PORT, Placement::Scattered);
    println!("listening");
    let stream = listener.accept()?;
    let start = Instant::now();
    let mut buffer = vec![0; block];
    let mut total = 0;
    loop {
        match stream.recv(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    println!("{total} {}", start.elapsed().as_nanos());
    Ok(())
}
