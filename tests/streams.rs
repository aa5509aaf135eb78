//! Streams arrive complete between every pair of kernels: through unmodified socat, with a close right after the last
//! write, and many at once.

use vmlane_lab::{Forward, LabSpec};
use vmlane_tests::{Bed, Carrier, Mode, Route, carry, full, kept, python, serve, spec};

/// How much one pair of guests carries.
#[derive(Clone, Copy)]
struct Load {
    mib: u64,
    connections: u32,
    /// How much each connection echoes.
    echo_kib: u32,
    /// Further arguments of the echo client.
    words: &'static str,
}

impl Load {
    /// The long form with `VMLANE_TESTS=full`, else the short one.
    fn usual() -> Load {
        let (mib, connections) = if full() { (64, 200) } else { (16, 40) };
        Load { mib, connections, echo_kib: 1024, words: "" }
    }

    /// For guests before 5.18: every notification is a datagram through byte ports, which is slow under emulation.
    fn port_path() -> Load {
        let connections = if full() { 20 } else { 8 };
        Load { mib: 4, connections, echo_kib: 256, words: "small" }
    }
}

const PORT: u32 = 5000;
const ECHO: u32 = 7000;

/// Guest a connects to guest b: files three ways, then many connections at once.
fn pair(what: &str, kernels: [&str; 2], load: Load) {
    let bed = Bed::up(&spec(what, &kernels));
    let route = Route { cid: bed.cid("b"), port: PORT, listen: PORT };
    files(&bed, &kernels.join(" to "), Carrier::Socat, route, load);
    many(&bed, &kernels.join(" to "), bed.cid("b"), load);
    bed.finish();
}

fn files(bed: &Bed, pair: &str, carrier: Carrier, route: Route, load: Load) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let mut seconds = Vec::new();
    for mode in [Mode::Both, Mode::Out, Mode::Back] {
        seconds.push(format!("{mode:?} {:.1} s", carry(&a, &b, carrier, route, mode, load.mib << 20)));
    }
    let how = match (carrier, route.cid) {
        (Carrier::Socat, 2) => "socat to a forwarded port of CID 2",
        (Carrier::Socat, _) => "unmodified socat",
        (Carrier::Flagged, _) => "a program that sets the flag",
    };
    kept(1, &format!("{pair}: {} MiB each way, {how}, checksums equal ({})", load.mib, seconds.join(", ")));
}

fn many(bed: &Bed, pair: &str, cid: u32, load: Load) {
    let port = if cid == 2 { ECHO + 1 } else { ECHO };
    let server = serve(&bed.guest("b"), &format!("echo serve {ECHO}"));
    let Load { connections: count, echo_kib, words, .. } = load;
    let figures =
        python(&bed.guest("a"), &format!("echo burst {cid} {port} {count} {} {words}", echo_kib << 10));
    assert_eq!(figures["connections"], count, "{}", server.said());
    kept(
        1,
        &format!(
            "{pair}: {count} connections at once echoed {echo_kib} KiB each (open in {} s, done in {} s, {} retried)",
            figures["open_seconds"], figures["seconds"], figures["again"]
        ),
    );
}

#[test]
fn streams_arrive_between_two_guests_of_6_12() {
    pair("s612", ["6.12", "6.12"], Load::usual());
}

#[test]
fn streams_arrive_between_two_guests_of_6_1() {
    if full() {
        pair("s61", ["6.1", "6.1"], Load::usual());
    }
}

#[test]
fn streams_arrive_between_two_guests_of_5_10() {
    if full() {
        pair("s510", ["5.10", "5.10"], Load::port_path());
    }
}

#[test]
fn streams_arrive_from_an_old_guest_at_a_new_one() {
    pair("s510-612", ["5.10", "6.12"], Load::port_path());
}

/// A kernel from 7.1 on needs nothing to accept connections; only its own connects need a flag or a forward.
#[test]
fn streams_arrive_from_a_guest_of_6_12_at_one_of_7_2() {
    if full() {
        pair("s612-72", ["6.12", "7.2"], Load::usual());
    }
}

fn forwarding(spec: LabSpec) -> LabSpec {
    let forward = |port: u32, to_port: u32| Forward { from: "a".into(), port, to: "b".into(), to_port };
    // The echo server's port differs from the forwarded one, so that the forward must translate it.
    LabSpec { forwards: vec![forward(PORT, PORT), forward(ECHO + 1, ECHO)], ..spec }
}

/// With a program that sets the flag, and with unmodified socat by a forward.
#[test]
fn streams_arrive_between_two_guests_of_7_2() {
    let bed = Bed::up(&forwarding(spec("s72", &["7.2", "7.2"])));
    let load = Load::usual();
    let direct = Route { cid: bed.cid("b"), port: PORT, listen: PORT };
    let mapped = Route { cid: 2, ..direct };
    files(&bed, "7.2 to 7.2", Carrier::Socat, mapped, load);
    many(&bed, "7.2 to 7.2 by a forwarded port of CID 2", 2, load);
    if full() {
        files(&bed, "7.2 to 7.2", Carrier::Flagged, direct, load);
    }
    many(&bed, "7.2 to 7.2 with the flag", direct.cid, Load { words: "to-host", ..load });
    bed.finish();
}
