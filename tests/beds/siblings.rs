//! Two guests with virtio devices under any VMM: checked traffic between them, and events that may disturb
//! it.

use vmlane_lab::{LabSpec, Machine, Running};

use crate::traffic::{address, whole_pings};
use crate::{
    Bed, Carrier, Mode, PATIENT, Route, Service, TIMEOUT, carry, flagged, give_tcp, lab, take_tcp, whole,
};

/// A lab of two guests with both virtio devices.
pub fn spec(what: &str, machine: Machine) -> LabSpec {
    LabSpec { machines: vec![machine], ..lab(what, &["virtio-net", "virtio-vsock"]) }
}

/// Boots the lab and checks that the guests are what was requested.
pub fn up(spec: &LabSpec) -> Bed {
    let bed = Bed::up(spec);
    as_requested(&bed);
    let version = bed.lab().status().unwrap().qemu_version;
    let asked = spec.qemu.as_ref();
    assert!(asked.is_none_or(|asked| version.starts_with(&format!("{asked}."))), "QEMU {version}");
    bed
}

/// Each guest has what its machine has, and nothing to warn of.
pub fn as_requested(bed: &Bed) {
    let status = bed.lab().status().unwrap();
    for guest in &status.guests {
        let (name, machine) = (&guest.name, guest.machine);
        assert!(guest.warnings.is_empty(), "guest {name}: {:?}", guest.warnings);
        // On virtio-mmio, a device has no PCI function above it.
        let path = bed.guest(name).sh("readlink -f /sys/class/net/eth0/device").unwrap();
        assert_eq!(path.contains("pci"), machine == Machine::Q35, "{path}");
        println!("guest {name}, QEMU {}, {machine}: eth0 is {}", status.qemu_version, path.trim());
    }
}

/// TCP streams both ways at once over the guests' card number `card` (from 0) while `meanwhile` runs; they
/// must arrive intact. Returns the rate of both together in Mbit/s, and the longest pause in seconds.
pub fn tcp(bed: &Bed, card: u32, meanwhile: impl FnOnce()) -> (f64, f64) {
    let _takers = ["a", "b"].map(|name| take_tcp(&bed.guest(name)));
    let streams = [("a", 2), ("b", 1)].map(|(from, to)| (from, give_tcp(bed, from, &address(card, to))));
    meanwhile();
    let (mut rate, mut pause) = (0.0, 0.0f64);
    for (from, stream) in streams {
        let report = whole(bed, from, stream);
        rate += report["bytes"].as_f64().unwrap() * 8e-6 / report["seconds"].as_f64().unwrap();
        pause = pause.max(report["pause"].as_f64().unwrap());
    }
    (rate, pause)
}

/// The same for so many seconds. Returns the rate.
pub fn tcp_over(bed: &Bed, card: u32, seconds: u64) -> f64 {
    tcp(bed, card, || std::thread::sleep(std::time::Duration::from_secs(seconds))).0
}

/// The same over the first card.
pub fn tcp_for(bed: &Bed, seconds: u64) -> f64 {
    tcp_over(bed, 0, seconds)
}

/// Does a guest reach others' CIDs with VMADDR_FLAG_TO_HOST only? VMCI guests of Linux 7.1 and later do.
fn wants_flag(bed: &Bed, guest: &str) -> bool {
    let guests = bed.lab().status().unwrap().guests;
    guests.iter().any(|known| known.name == guest && known.kernel == "7.2pci")
}

/// A file each way at once between the siblings, over vsock.
pub fn vsock(bed: &Bed, mib: u64) -> f64 {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let carrier = |name| if wants_flag(bed, name) { Carrier::Flagged } else { Carrier::Socat };
    let route = Route { cid: bed.cid("b"), port: 5000, listen: 5000 };
    let seconds = carry(&a, &b, carrier("a"), route, Mode::Both, mib << 20);
    let route = Route { cid: bed.cid("a"), port: 5000, listen: 5000 };
    carry(&b, &a, carrier("b"), route, Mode::Out, mib << 20);
    (2 * mib) as f64 * 8.388_608 / seconds
}

/// Traffic from a to b without end, over TCP and vsock.
pub struct Traffic {
    stream: Running,
    _running: (Running, Service, Running),
}

impl Traffic {
    /// Data flows when this returns.
    pub fn start(bed: &Bed) -> Traffic {
        let (a, b) = (bed.guest("a"), bed.guest("b"));
        let taker = take_tcp(&b);
        let tcp = give_tcp(bed, "a", "10.77.0.2");
        let listening = b.spawn(["socat", "-d", "-d", "-u", "VSOCK-LISTEN:6002", "OPEN:/dev/null"]).unwrap();
        listening.wait_for("listening on", TIMEOUT).unwrap();
        let cid = bed.cid("b");
        let address =
            if wants_flag(bed, "a") { flagged(cid, 6002) } else { format!("VSOCK-CONNECT:{cid}:6002") };
        let line = format!("socat -d -d -u OPEN:/dev/zero {address},{PATIENT} 2>&1; echo ended");
        let stream = a.spawn(["sh", "-c", &line]).unwrap();
        stream.wait_for("starting data transfer", TIMEOUT).unwrap();
        Traffic { stream, _running: (tcp, taker, listening) }
    }

    /// Waits until a has been notified that its vsock stream has ended.
    pub fn wait_for_the_end(&self) {
        self.stream.wait_for("ended", TIMEOUT).unwrap();
    }
}

/// b is killed under traffic: a is notified and keeps working, also with b after its restart.
pub fn a_killed_guest(bed: &Bed) {
    let traffic = Traffic::start(bed);
    bed.guest("b").kill().unwrap();
    traffic.wait_for_the_end();
    drop(traffic);
    bed.guest("a").sh("pkill -9 python3; ip neigh flush dev eth0; true").unwrap();
    bed.guest("b").start().unwrap();
    bed.equip("b");
    whole_pings(bed, 0, 1500);
}
