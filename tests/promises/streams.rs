//! Streams arrive complete between every pair of kernels: through unmodified socat, with a close right after
//! the last write, and many at once.

use vmlane_tests::{Bed, Carrier, Mode, Route, carry, full, kept, python, serve, spec};

vmlane_tests::tests! {
    guests in VMCI { streams_arrive_between_two_guests_of_6_12, streams_arrive_from_an_old_guest_at_a_new_one }
    guests in VMCI_FLAG { streams_arrive_between_two_guests_of_7_2 }
    long {
        streams_arrive_between_two_guests_of_6_1,
        streams_arrive_between_two_guests_of_5_10,
        streams_arrive_from_a_guest_of_6_12_at_one_of_7_2,
    }
}

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
        let (mib, connections) = if full() { (64, 200) } else { (8, 20) };
        Load { mib, connections, echo_kib: 1024, words: "" }
    }

    /// For guests before 5.18: every notification is a datagram through byte ports, which is slow under
    /// emulation.
    fn port_path() -> Load {
        let (mib, connections) = if full() { (4, 20) } else { (1, 4) };
        Load { mib, connections, echo_kib: 64, words: "small" }
    }
}

const PORT: u32 = 5000;
const ECHO: u32 = 7000;

/// In a lab of their own.
fn two_guests(what: &str, kernels: [&str; 2], load: Load) {
    let bed = Bed::up(&spec(what, &kernels));
    pair(&bed, &kernels.join(" to "), ("a", "b"), load);
    bed.finish();
}

/// The first guest connects to the second: files three ways, then many connections at once.
fn pair(bed: &Bed, kernels: &str, ends: (&str, &str), load: Load) {
    let cid = bed.cid(ends.1);
    files(bed, kernels, ends, Carrier::Socat, Route { cid, port: PORT, listen: PORT }, load);
    many(bed, kernels, ends, cid, load);
}

fn files(bed: &Bed, pair: &str, (from, to): (&str, &str), carrier: Carrier, route: Route, load: Load) {
    let (a, b) = (bed.guest(from), bed.guest(to));
    let mut seconds = Vec::new();
    for mode in [Mode::Both, Mode::Out, Mode::Back] {
        seconds.push(format!("{mode:?} {:.1} s", carry(&a, &b, carrier, route, mode, load.mib << 20)));
    }
    let how = match (carrier, route.cid) {
        (Carrier::Socat, 2) => "socat to a forwarded port of CID 2",
        (Carrier::Socat, _) => "unmodified socat",
        (Carrier::Flagged, _) => "a program that sets the flag",
    };
    kept(
        "streams",
        &format!("{pair}: {} MiB each way, {how}, checksums equal ({})", load.mib, seconds.join(", ")),
    );
}

fn many(bed: &Bed, pair: &str, (from, to): (&str, &str), cid: u32, load: Load) {
    let port = if cid == 2 { ECHO + 1 } else { ECHO };
    let server = serve(&bed.guest(to), &format!("echo serve {ECHO}"));
    let Load { connections: count, echo_kib, words, .. } = load;
    let figures =
        python(&bed.guest(from), &format!("echo burst {cid} {port} {count} {} {words}", echo_kib << 10));
    assert_eq!(figures["connections"], count, "{}", server.printed());
    kept(
        "streams",
        &format!(
            "{pair}: {count} connections at once echoed {echo_kib} KiB each (open in {} s, done in {} s, {} retried)",
            figures["open_seconds"], figures["seconds"], figures["again"]
        ),
    );
}

fn streams_arrive_between_two_guests_of_6_12(bed: &Bed) {
    pair(bed, "6.12 to 6.12", ("a", "b"), Load::usual());
}

fn streams_arrive_between_two_guests_of_6_1() {
    two_guests("s61", ["6.1", "6.1"], Load::usual());
}

fn streams_arrive_between_two_guests_of_5_10() {
    two_guests("s510", ["5.10", "5.10"], Load::port_path());
}

fn streams_arrive_from_an_old_guest_at_a_new_one(bed: &Bed) {
    pair(bed, "5.10 to 6.12", ("c", "a"), Load::port_path());
}

/// A kernel from 7.1 on needs nothing to accept connections; only its own connects need a flag or a forward.
fn streams_arrive_from_a_guest_of_6_12_at_one_of_7_2() {
    two_guests("s612-72", ["6.12", "7.2"], Load::usual());
}

/// With a program that sets the flag, and with unmodified socat by a forward.
fn streams_arrive_between_two_guests_of_7_2(bed: &Bed) {
    let (load, ends) = (Load::usual(), ("a", "b"));
    let direct = Route { cid: bed.cid("b"), port: PORT, listen: PORT };
    let mapped = Route { cid: 2, ..direct };
    files(bed, "7.2 to 7.2", ends, Carrier::Socat, mapped, load);
    many(bed, "7.2 to 7.2 by a forwarded port of CID 2", ends, 2, load);
    if full() {
        files(bed, "7.2 to 7.2", ends, Carrier::Flagged, direct, load);
    }
    many(bed, "7.2 to 7.2 with the flag", ends, direct.cid, Load { words: "to-host", ..load });
}
