//! `kill -9` under traffic between two virtio NICs with packed rings: the next daemon goes on from what the
//! last one left in memory of the VMMs, and no chain is lost or comes back twice.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_guestsim::Ram;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_wire::vhost_user::InflightArea;
use vmlane_wire::virtio::{feature, net_feature};

const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: u16 = 64;
const HEADER: usize = 12;
const FRAME: usize = 60;
const BUFFER: usize = 2048;
const CONFIG: &str = "\
[[vm]]
name = \"a\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:01\" } ]
[[vm]]
name = \"b\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", packed = true, mac = \"52:54:00:00:00:02\" } ]
";

struct Daemon(Child);

impl Daemon {
    fn start(folder: &Path) -> Daemon {
        let child = Command::new(env!("CARGO_BIN_EXE_vmlane"))
            .arg("daemon")
            .arg("--config")
            .arg(folder.join("vmlane.toml"))
            .arg("--runtime-dir")
            .arg(folder.join("run"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Daemon(child.unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A VM's card from its driver's and its VMM's side.
struct Nic {
    rx: DriverRing,
    tx: DriverRing,
    features: u64,
    inflight: Option<(InflightArea, std::os::fd::OwnedFd)>,
    vmm: Option<(Front, [RingEvents; 2])>,
    /// Frames by descriptor.
    pages: Vec<u64>,
    sent: VecDeque<u16>,
}

impl Nic {
    fn new(packed: bool) -> Nic {
        let ram = Arc::new(Ram::new(4 << 20));
        let (rx, tx) = (DriverRing::new(&ram, SIZE, packed), DriverRing::new(&ram, SIZE, packed));
        let pages = (0..2 * SIZE).map(|_| tx.alloc(BUFFER)).collect();
        let features = feature::VERSION_1 | net_feature::MAC | if packed { feature::PACKED } else { 0 };
        let mut nic = Nic { rx, tx, features, inflight: None, vmm: None, pages, sent: VecDeque::new() };
        (0..SIZE).for_each(|at| nic.post(at));
        nic
    }

    fn post(&mut self, id: u16) {
        let addr = self.pages[usize::from(SIZE + id)];
        assert_eq!(self.rx.post(&[into(addr, BUFFER)]), id, "buffers come back in order");
    }

    /// Until there is a daemon that takes it. The positions said are those of a ring never used: the record
    /// knows better.
    fn attach(&mut self, socket: &Path) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_attach(socket) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn try_attach(&mut self, socket: &Path) -> std::io::Result<()> {
        self.vmm = None;
        let mut front = Front::connect(socket, self.features)?;
        front.set_memory(&self.rx.ram)?;
        if self.inflight.is_none() {
            self.inflight = Some(front.get_inflight(2, SIZE)?);
        }
        let (area, file) = self.inflight.as_ref().expect("just made");
        front.set_inflight(area, file)?;
        let events = [front.start(0, &self.rx.setup())?, front.start(1, &self.tx.setup())?];
        self.vmm = Some((front, events));
        Ok(())
    }

    fn send(&mut self, number: u64) -> bool {
        if self.sent.len() == usize::from(SIZE) {
            return false;
        }
        let slot = (number % u64::from(SIZE)) as usize;
        let mut frame = vec![0; HEADER + FRAME];
        frame[HEADER..HEADER + 6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 2]);
        frame[HEADER + 6..HEADER + 12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1]);
        frame[HEADER + 12..HEADER + 14].copy_from_slice(&[0x88, 0xb5]);
        frame[HEADER + 14..HEADER + 22].copy_from_slice(&number.to_le_bytes());
        self.tx.ram.write(self.pages[slot], &frame);
        let id = self.tx.post(&[out(self.pages[slot], frame.len())]);
        self.sent.push_back(id);
        if let Some((_, [_, tx])) = &self.vmm {
            let _ = rustix::io::write(&tx.kick, &1u64.to_ne_bytes());
        }
        true
    }

    /// Chains of sent frames that have come back.
    fn settle(&mut self) {
        while let Some((id, _)) = self.tx.take() {
            assert_eq!(Some(id), self.sent.pop_front(), "each chain comes back once, in order");
        }
    }

    /// The numbers of the frames that have come.
    fn receive(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((id, len)) = self.rx.take() {
            let mut bytes = vec![0; len as usize];
            self.rx.ram.read(self.pages[usize::from(SIZE + id)], &mut bytes);
            assert_eq!(bytes.len(), HEADER + FRAME);
            let number = bytes[HEADER + 14..HEADER + 22].first_chunk::<8>().expect("eight bytes");
            numbers.push(u64::from_le_bytes(*number));
            self.post(id);
        }
        numbers
    }
}

fn killed(packed: bool, kills: usize) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vmlane.toml"), CONFIG).unwrap();
    let socket = |vm: &str| folder.path().join("run/vm").join(vm).join("nic0.sock");
    let mut daemon = Daemon::start(folder.path());
    let (mut a, mut b) = (Nic::new(packed), Nic::new(packed));
    b.attach(&socket("b"));
    a.attach(&socket("a"));
    let (mut next, mut twice, mut last, mut total) = (0u64, 0u64, None::<u64>, 0u64);
    let mut lost = 0u64;
    let mut pauses = Vec::new();
    let mut turn = |a: &mut Nic, b: &mut Nic| {
        while a.send(next) {
            next += 1;
        }
        a.settle();
        let came = b.receive();
        for &number in &came {
            match last {
                Some(last) if number <= last => twice += 1,
                _ => {
                    lost += number - last.map_or(0, |last| last + 1);
                    last = Some(number);
                }
            }
        }
        total += came.len() as u64;
        came.len()
    };
    for kill in 0..=kills {
        // Some thousand frames, then another number of them, so that it dies elsewhere each time.
        let (mut moved, deadline) = (0, Instant::now() + PATIENCE);
        while moved < 2000 + 77 * kill {
            moved += turn(&mut a, &mut b);
            assert!(Instant::now() < deadline, "frames do not move: {moved}");
        }
        if kill == kills {
            break;
        }
        let start = Instant::now();
        drop(daemon);
        daemon = Daemon::start(folder.path());
        b.attach(&socket("b"));
        a.attach(&socket("a"));
        while turn(&mut a, &mut b) == 0 {
            assert!(start.elapsed() < PATIENCE, "frames do not move again");
        }
        pauses.push(start.elapsed());
    }
    // All that was sent comes back.
    let deadline = Instant::now() + PATIENCE;
    while !a.sent.is_empty() {
        a.settle();
        b.receive();
        assert!(Instant::now() < deadline, "{} chains do not come back", a.sent.len());
    }
    drop(daemon);
    // What was copied and not completed is sent again; nothing that was completed is.
    assert!(twice <= kills as u64 * 2 * u64::from(SIZE), "{twice} frames came twice");
    println!(
        "packed {packed}: {kills} kills, {total} frames, {twice} came twice, {lost} dropped; pauses {pauses:?}"
    );
    assert!(lost <= kills as u64 * 2 * u64::from(SIZE), "{lost} frames got lost");
}

#[test]
fn no_chain_is_lost_or_comes_back_twice() {
    killed(true, 8);
    killed(false, 8);
}
