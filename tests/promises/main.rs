//! The promises of PROMISES.md, kept: real guests where a promise is about guests, and what holds for the
//! tree itself.
//!
//! `VMLANE_TESTS=guests` runs what `make test` runs, `full` what `make acceptance` runs; without it, nothing
//! boots.
#![expect(clippy::disallowed_methods, reason = "below directories of the tests' own")]

use std::process::ExitCode;

macro_rules! modules {
    ($($name:ident),+ $(,)?) => {
        $(mod $name;)+
        const MODULES: &[&[&[vmlane_tests::harness::Test]]] = &[$($name::TESTS),+];
    };
}

modules! {
    agreement,
    apparmor,
    arrows,
    between_hosts,
    bounds,
    captures,
    containment,
    daemon,
    damage,
    datagrams,
    docs,
    doctor,
    evpn,
    experiments,
    fleet,
    groups,
    host,
    hosts,
    imported,
    labs,
    libvirt,
    losses,
    many_cards,
    metrics,
    migrate,
    mixed,
    neighbour,
    netboot,
    nics,
    ovn,
    package,
    placement,
    quickstart,
    refusals,
    release,
    site,
    soak,
    sockets,
    streams,
    survival,
    switch,
    uml,
    uml_pci,
    units,
    upgrade,
    varlink,
    virtio,
    vmms,
    vsock_pairs,
    wires,
}

fn main() -> ExitCode {
    if fleet::was_other_hosts() {
        return ExitCode::SUCCESS;
    }
    vmlane_tests::harness::main(MODULES)
}
