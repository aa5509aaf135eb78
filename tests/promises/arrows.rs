//! Which crate may depend on which. The manifests are compared with one table, so that a new arrow is a
//! decision and not an accident of an `use`.

use std::collections::{BTreeMap, BTreeSet};

use vmlane_tests::tree;

vmlane_tests::tests! {
    plain {
        crates_depend_on_each_other_as_in_the_table,
        the_product_has_no_synthetic_guest_in_it,
        dependencies_are_found_wherever_a_manifest_has_them,
        crates_that_read_foreign_bytes_are_linted_against_panics,
    }
}

/// Tools, what has no bytes of others to read, and `mem`, whose bounds are checked where it copies.
const MAY_PANIC: [&str; 10] =
    ["cli", "enginebench", "experiment", "guestsim", "lab", "mem", "preload", "runtests", "stats", "testkit"];

fn crates_that_read_foreign_bytes_are_linted_against_panics() {
    const LINTS: &str =
        "deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)";
    for (name, _) in ARROWS.iter().filter(|(name, _)| !MAY_PANIC.contains(name) && *name != "tests") {
        let folder = tree::crate_folder(name).unwrap_or_else(|| panic!("there is no crate {name}"));
        let sources = tree::files(&folder.join("src"), "rs");
        assert!(
            sources.iter().any(|path| tree::read(path).contains(LINTS)),
            "{name} reads foreign bytes: its lib.rs has to {LINTS}"
        );
    }
}

/// Every crate, and the crates of ours that it is built from. Dependencies of tests alone are not listed.
const ARROWS: &[(&str, &[&str])] = &[
    // They know nothing of ours.
    ("wire", &[]),
    ("mem", &[]),
    ("access", &[]),
    ("api", &[]),
    ("testkit", &[]),
    ("runtests", &[]),
    ("preload", &[]),
    // Counters lie in memory that may outlive a daemon.
    ("stats", &["mem"]),
    // The seams, and what outlives a daemon.
    ("port", &["mem", "stats", "wire"]),
    ("state", &["mem"]),
    // What a capture records: frames that ports show, and the memory that its client maps.
    ("capture", &["mem", "port", "wire"]),
    // The runtime of the threads that move bytes: it knows no port, only what a thread is for.
    ("worker", &["port"]),
    // The engines know ports, never devices.
    ("stream", &["mem", "port", "stats", "worker"]),
    ("switch", &["mem", "port", "stats", "wire", "worker"]),
    // The CID space knows ports and who a program is, never a device or a packet.
    ("vsock", &["access", "port"]),
    // Devices know ports and the CID space, never a socket. The rings of virtio-vsock have a worker of their
    // own.
    ("device", &["mem", "port", "state", "stats", "vsock", "wire", "worker"]),
    // How a VMM reaches a device; what the host itself brings.
    ("transport", &["access", "device", "mem", "port", "sock", "state", "stats", "wire"]),
    // An uplink is the other end of what `transport` serves, and raises event fds as it does.
    ("host", &["access", "mem", "port", "sock", "stats", "transport", "vsock", "wire"]),
    // A host program's half.
    ("sock", &["mem", "wire"]),
    // What a process gives up, by the roles of its threads.
    ("confine", &["access", "mem", "port"]),
    // What outlives a daemon: it asks the one that runs.
    ("keeper", &["access", "api", "confine", "state"]),
    // The configuration speaks of devices, ports and the CID space in their own types.
    ("config", &["access", "api", "device", "mem", "port", "switch", "vsock", "wire"]),
    // Words for VMMs: made of a configuration alone.
    ("attach", &["access", "config"]),
    // Only the daemon knows everything.
    (
        "daemon",
        &[
            "access",
            "api",
            "capture",
            "config",
            "confine",
            "device",
            "host",
            "keeper",
            "mem",
            "port",
            "state",
            "stats",
            "stream",
            "switch",
            "transport",
            "vsock",
            "wire",
            "worker",
        ],
    ),
    // The helper for streams between hosts: a program of the host, to the daemon.
    ("route", &["mem", "port", "sock", "wire", "worker"]),
    // The helper for ports of OVN's: it asks the daemon, and Open vSwitch's database.
    ("ovn", &["api"]),
    // Tools talk to the daemon; they link no device.
    ("bench", &["sock"]),
    ("lab", &["access", "api"]),
    // What the doctor asks the other machine goes over the bench's connections; on a host it asks the daemon,
    // and the guest agent's socket only if the VM's QEMU is behind it.
    ("doctor", &["access", "api", "bench"]),
    ("experiment", &["api", "bench", "lab"]),
    // Other systems' words for VMs: texts in, texts out.
    ("import", &["wire"]),
    (
        "cli",
        &[
            "access",
            "api",
            "attach",
            "bench",
            "capture",
            "config",
            "daemon",
            "doctor",
            "experiment",
            "import",
            "keeper",
            "lab",
            "ovn",
            "preload",
            "route",
            "sock",
        ],
    ),
    // The product, and what only laboratories need.
    ("faults", &["device", "mem", "port", "wire"]),
    ("labdaemon", &["api", "cli", "daemon", "device", "faults", "mem", "port", "transport", "wire"]),
    // Never in the product.
    ("guestsim", &["device", "mem", "port", "state", "stats", "stream", "testkit", "vsock", "wire"]),
    (
        "enginebench",
        &[
            "bench",
            "capture",
            "device",
            "experiment",
            "guestsim",
            "host",
            "lab",
            "mem",
            "port",
            "sock",
            "stream",
            "switch",
            "testkit",
            "transport",
            "vsock",
            "wire",
        ],
    ),
];

/// The crates of ours in the tables of dependencies that a build has, those of single platforms included.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let of = |table: &toml::Table| -> Vec<String> {
        let tables =
            ["dependencies", "build-dependencies"].into_iter().filter_map(|name| table.get(name)?.as_table());
        let name = |(key, value): (&String, &toml::Value)| {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            renamed.unwrap_or(key).strip_prefix("vmlane-").map(str::to_owned)
        };
        tables.flat_map(|table| table.iter().filter_map(name).collect::<Vec<_>>()).collect()
    };
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    of(manifest).into_iter().chain(targets.flat_map(of)).collect()
}

fn manifests() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for folder in tree::crates() {
        let text = tree::read(folder.join("Cargo.toml"));
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let manifest = text.parse().unwrap_or_else(|error| panic!("{name}/Cargo.toml: {error}"));
        found.insert(name, dependencies(&manifest));
    }
    found
}

fn crates_depend_on_each_other_as_in_the_table() {
    let allowed: BTreeMap<&str, BTreeSet<String>> =
        ARROWS.iter().map(|(name, on)| (*name, on.iter().map(|on| (*on).to_owned()).collect())).collect();
    let mut wrong = Vec::new();
    let found = manifests();
    for (name, on) in &found {
        let Some(allowed) = allowed.get(name.as_str()) else {
            wrong.push(format!("{name} is new"));
            continue;
        };
        wrong.extend(on.difference(allowed).map(|to| format!("{name} -> {to} is new")));
        wrong.extend(allowed.difference(on).map(|to| format!("{name} -> {to} is gone")));
    }
    wrong.extend(
        allowed.keys().filter(|name| !found.contains_key(**name)).map(|name| format!("{name} is gone")),
    );
    assert!(
        wrong.is_empty(),
        "the crates' manifests and the table ARROWS of tests/promises/arrows.rs differ:\n  {}\n\
         A new crate or arrow is a change of the design: give the reason in docs/decisions/, then change the table, and the \
         map of crates in ARCHITECTURE.md. One that is gone only leaves the two lists.",
        wrong.join("\n  ")
    );
}

/// Every path from a crate of the product to what must stay out of it.
fn the_product_has_no_synthetic_guest_in_it() {
    let found = manifests();
    let mut reached = BTreeSet::from(["cli".to_owned()]);
    while let Some(next) = reached.iter().flat_map(|name| &found[name]).find(|name| !reached.contains(*name))
    {
        reached.insert(next.clone());
    }
    for kept_out in ["guestsim", "enginebench", "faults", "labdaemon", "runtests", "testkit"] {
        assert!(
            found.contains_key(kept_out) && !reached.contains(kept_out),
            "vmlane is built from {kept_out}"
        );
    }
    assert!(reached.contains("device") && reached.contains("switch"), "{reached:?}");
}

fn dependencies_are_found_wherever_a_manifest_has_them() {
    let text = "[dependencies]\nvmlane-mem.workspace = true\nserde = \"1\"\nother = { package = \"vmlane-port\", path = \"p\" }\n\
                [dev-dependencies]\nvmlane-guestsim.workspace = true\n\
                [build-dependencies]\nvmlane-wire = { path = \"w\" }\n\
                [target.'cfg(unix)'.dependencies]\nvmlane-sock.workspace = true\n";
    let found = dependencies(&text.parse().expect("a manifest"));
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["mem", "port", "sock", "wire"]);
}
