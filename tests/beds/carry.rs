//! Files through streams: socat on both ends, or a script where a program must set an address flag.

use std::time::Instant;

use vmlane_lab::Guest;

use crate::TIMEOUT;

/// A minute for a connect (SO_VM_SOCKETS_CONNECT_TIMEOUT), which is two seconds otherwise: an option
/// of a socat that connects, which applies it before it does, in spite of its name.
pub const PATIENT: &str = "setsockopt-listen=40:6:x3c000000000000000000000000000000";

/// What socat connects to with VMADDR_FLAG_TO_HOST: a `sockaddr_vm` behind its family, as bytes.
pub fn flagged(cid: u32, port: u32) -> String {
    const FAMILY: u32 = 40;
    const TO_HOST: u32 = 1;
    let words = [port, cid, TO_HOST].map(|word| format!("{:08x}", word.swap_bytes()));
    format!("SOCKET-CONNECT:{FAMILY}:0:x0000{}", words.concat())
}

/// The program that connects. The one that listens is socat, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Socat,
    /// `programs/carry.py`, which sets VMADDR_FLAG_TO_HOST.
    Flagged,
}

/// What travels over one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A file each way at once; each end closes its writing half when done.
    Both,
    /// From the connecting end, which closes right after the last write.
    Out,
    /// From the listening end, which closes right after the last write.
    Back,
}

/// Where the connecting end connects to, and where the other listens.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub cid: u32,
    pub port: u32,
    pub listen: u32,
}

impl Carrier {
    fn connecting(self, route: Route, mode: Mode) -> String {
        let Route { cid, port, .. } = route;
        match self {
            Carrier::Socat => {
                let address = format!("VSOCK-CONNECT:{cid}:{port},{PATIENT}");
                socat(&address, mode != Mode::Back, mode != Mode::Out)
            }
            Carrier::Flagged => {
                let (sends, takes) = match mode {
                    Mode::Both => ("/dev/shm/in", "/dev/shm/out"),
                    Mode::Out => ("/dev/shm/in", "-"),
                    Mode::Back => ("-", "/dev/shm/out"),
                };
                format!("exec python3 /t/carry.py {cid} {port} {sends} {takes}")
            }
        }
    }
}

/// An end that sends only closes at once (shut-close) instead of ending its writing half first.
fn socat(address: &str, sends: bool, takes: bool) -> String {
    let tool = "exec socat -d -d -t 100";
    match (sends, takes) {
        (true, true) => format!("{tool} 'OPEN:/dev/shm/in,rdonly!!CREATE:/dev/shm/out' {address}"),
        (true, false) => format!("{tool} -u OPEN:/dev/shm/in,rdonly {address},shut-close"),
        _ => format!("{tool} -u {address} CREATE:/dev/shm/out"),
    }
}

/// Carries files of `bytes` random bytes from `near`, which connects, to `far` and back as `mode`
/// requires. Returns the seconds it took, after all checksums were found equal.
pub fn carry(near: &Guest, far: &Guest, carrier: Carrier, route: Route, mode: Mode, bytes: u64) -> f64 {
    let fill = format!("rm -f /dev/shm/out; head -c {bytes} /dev/urandom >/dev/shm/in");
    near.sh(&fill).unwrap();
    far.sh(&fill).unwrap();
    let address = format!("VSOCK-LISTEN:{}", route.listen);
    let listening = far.spawn(["sh", "-c", &socat(&address, mode != Mode::Out, mode != Mode::Back)]).unwrap();
    listening.wait_for("listening on", TIMEOUT).unwrap();
    let start = Instant::now();
    let line = carrier.connecting(route, mode);
    loop {
        let Err(error) = near.sh(&line) else { break };
        let error = format!("{error:#}");
        // A listener's kernel gives each handshake one second. On a busy machine an emulated 5.10, which
        // names its rings' pages byte by byte, may need more, again and again.
        let late = error.contains(" E connect(") && error.contains("Connection reset by peer");
        assert!(late && start.elapsed() < TIMEOUT, "{error}\nthe listening end: {}", listening.stderr());
    }
    let output = listening.wait().unwrap();
    assert!(output.success(), "guest {}: socat: {}", far.name(), output.stderr());
    let seconds = start.elapsed().as_secs_f64();
    let sum = |guest: &Guest, file: &str| guest.sh(&format!("sha256sum </dev/shm/{file}")).unwrap();
    if mode != Mode::Back {
        assert_eq!(
            sum(near, "in"),
            sum(far, "out"),
            "{bytes} bytes {mode:?}, {near} to {far}",
            near = near.name(),
            far = far.name()
        );
    }
    if mode != Mode::Out {
        assert_eq!(
            sum(far, "in"),
            sum(near, "out"),
            "{bytes} bytes {mode:?}, {far} to {near}",
            near = near.name(),
            far = far.name()
        );
    }
    for guest in [near, far] {
        guest.sh("rm -f /dev/shm/in /dev/shm/out").unwrap();
    }
    seconds
}
