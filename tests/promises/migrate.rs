//! Live migration of VMs with virtio devices, from the lab's QEMUs and daemon to others on the same host,
//! where the VMs have other CIDs.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vmlane_lab::LabSpec;
use vmlane_sock::{Host, Listener, Stream};
use vmlane_tests::alone::{printed, status, vmlane};
use vmlane_tests::moving::{Qemu, Qmp};
use vmlane_tests::{Bed, TIMEOUT, Process, kept, serve, wait_until};

vmlane_tests::tests! {
    long { virtio_guests_migrate_under_traffic }
}

/// Where vSockets listen.
const PORT: u32 = 7000;
/// What the daemon that VMs are moved to adds to their CIDs.
const FARTHER: i64 = 1000;

/// Takes the virtio-vsock device away from the guest.
fn unplug(qmp: &mut Qmp) {
    qmp.call("device_del", json!({"id": "vmlane-vsock"}));
    wait_until("the guest has let go of the device", || {
        let devices = qmp.call("qom-list", json!({"path": "/machine/peripheral"}));
        devices.as_array().unwrap().iter().all(|device| device["name"] != "vmlane-vsock")
    });
    // QEMU forgets the device itself a moment later.
    wait_until("its connection is free", || qmp.ask("chardev-remove", json!({"id": "vmlane-vsock"})).is_ok());
}

/// Gives the guest one that the daemon at `run` serves.
fn plug_in(qmp: &mut Qmp, run: &Path, guest: &str) {
    let path = run.join(format!("vm/{guest}/vsock.sock"));
    let socket = json!({"addr": {"type": "unix", "data": {"path": path}}, "server": false});
    let backend = json!({"type": "socket", "data": socket});
    qmp.call("chardev-add", json!({"id": "vmlane-vsock", "backend": backend}));
    let device = json!({
        "driver": "vhost-user-vsock-pci",
        "id": "vmlane-vsock",
        "chardev": "vmlane-vsock",
        "bus": "vmlane-vsock-port",
    });
    qmp.call("device_add", device);
}

/// What `vmlane qemu-args` prints for a VM, or its error.
fn qemu_args(config: &Path, run: &Path, vm: &str, incoming: bool) -> Result<Vec<String>, String> {
    let mut command = vmlane();
    command.args(["qemu-args", vm, "--mem", "256", "--qemu", "11.1", "--accel", "tcg", "--json", "--config"]);
    command.arg(config).arg("--runtime-dir").arg(run).args(incoming.then_some("--incoming"));
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(printed(&output));
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok(serde_json::from_value(report["args"].clone()).unwrap())
}

/// The lines of a console about vSockets.
fn vsockets(console: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
    text.lines().filter_map(|line| Some(line.trim().strip_prefix("vsock ")?.to_owned())).collect()
}

/// The block counts that a console has printed.
fn blocks(console: &Path) -> Vec<u64> {
    let text = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
    assert!(!text.contains("DIFFERENT"), "{text}");
    let counts = text.lines().filter_map(|line| line.trim().strip_prefix("blocks ")?.strip_suffix(" equal"));
    counts.filter_map(|count| count.parse().ok()).collect()
}

/// The lab's configuration with other CIDs; and a VM whose devices QEMU cannot migrate.
fn farther(config: &Path) -> String {
    let mut config: toml::Table = fs::read_to_string(config).unwrap().parse().unwrap();
    for vm in config["vm"].as_array_mut().unwrap() {
        let cid = vm["cid"].as_integer().unwrap();
        vm.as_table_mut().unwrap().insert("cid".into(), (cid + FARTHER).into());
    }
    let stays = "[[vm]]\nname = \"stays\"\ncid = 9\nnic = [{ model = \"vmxnet3\" }]\n";
    format!("{config}\n{stays}")
}

/// What this QEMU makes of a migration of a VM that has not been started. `folder` is for its socket.
fn alone(source: &Qemu, ours: &[String], folder: &Path) -> String {
    let qmp = folder.join("stays.qmp");
    // A loader may come first, with the program and its libraries.
    let program = source.words.iter().position(|word| word == "-nodefaults").expect("QEMU's first argument");
    let mut command = Command::new(&source.exe);
    command.args(&source.words[..program]);
    command.args("-S -nodefaults -no-user-config -display none -machine q35 -accel tcg".split(' '));
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display())).args(ours);
    let _process = Process(command.stdin(Stdio::null()).spawn().unwrap());
    let mut qmp = Qmp::connect(&qmp);
    if let Err(why) = qmp.ask("migrate", json!({"uri": "exec:cat >/dev/null"})) {
        return why;
    }
    let mut state = Value::Null;
    wait_until("the migration is over", || {
        state = qmp.call("query-migrate", json!({}));
        state["status"] == "completed" || state["status"] == "failed"
    });
    state["status"].to_string()
}

fn migration_refused(qmp: &mut Qmp) -> String {
    qmp.ask("migrate", json!({"uri": "exec:cat >/dev/null"})).expect_err("a migration that QEMU refuses")
}

fn virtio_guests_migrate_under_traffic() {
    let name = format!("migrate-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let movable = folder.path().join("movable.toml");
    fs::write(&movable, "[[vm]]\nname = \"a\"\nmovable = true\n[[vm]]\nname = \"b\"\nmovable = true\n")
        .unwrap();
    let mut spec = LabSpec::new(&name).device("virtio-net").unwrap().device("virtio-vsock").unwrap();
    (spec.guests, spec.boot_seconds, spec.mem_mib) = (2, 300, 256);
    spec.daemon_config = Some(movable);
    let bed = Bed::up(&spec);
    let (from, to) = (bed.lab().daemon_runtime_dir(), folder.path().join("run"));
    let before = bed.lab().status().unwrap().daemon.expect("a daemon").config;
    let config = folder.path().join("farther.toml");
    fs::write(&config, farther(&before)).unwrap();
    let mut daemon = vmlane();
    daemon.args(["daemon", "--config"]).arg(&config).arg("--runtime-dir").arg(&to).stderr(Stdio::null());
    let daemon = Process(daemon.spawn().unwrap());
    wait_until("the other daemon listens", || to.join("vm/b/nic0.sock").exists());

    // All programs stay in memory: the other QEMUs' disks do not have what was written meanwhile.
    let _serving = serve(&bed.guest("b"), "echoed serve 7000");
    let sending = bed.guest("a").spawn(["python3", "/t/echoed.py", "send", "10.77.0.2", "7000"]).unwrap();
    sending.wait_for("moving", TIMEOUT).unwrap();
    let _listening = serve(&bed.guest("b"), &format!("moved listen {PORT}"));
    let [here, there] = [&from, &to].map(|run| Listener::bind_by(&Host::at(run), PORT).unwrap());
    let far = bed.cid("b").to_string();
    let port = PORT.to_string();
    let holding = bed.guest("a").spawn(["python3", "/t/moved.py", "hold", &far, &port]).unwrap();
    holding.wait_for("held", TIMEOUT).unwrap();
    [&here, &there].iter().for_each(|listener| listener.set_timeout(Some(TIMEOUT)).unwrap());
    let (mut program, _) = here.accept().unwrap();
    program.set_read_timeout(Some(TIMEOUT)).unwrap();
    let sources = ["a", "b"].map(|guest| (guest, Qemu::of_lab(&name, guest)));
    let consoles = [&sources[0].1, &sources[1].1].map(|source| source.console.clone());
    wait_until("blocks move", || blocks(&consoles[0]).len() > 3);

    let mut twins = Vec::new();
    let mut measured = Vec::new();
    for (guest, source) in &sources {
        // Its own devices come last.
        let count = source.words.iter().position(|word| word == "-object").expect("the daemon's devices");
        let devices = qemu_args(&config, &to, guest, true).unwrap();
        let twin = source.twin(count, &[], &devices, &folder.path().join(guest));
        let (mut here, mut there) = (Qmp::connect(&source.qmp), Qmp::connect(&twin.qemu.qmp));
        let why = migration_refused(&mut here);
        assert!(why.contains("non-migratable") && why.contains("vhost-user-vsock"), "{why}");
        unplug(&mut here);
        let state = here.migrate(&mut there, &twin.incoming, 2000);
        plug_in(&mut there, &to, guest);
        let passes = state["ram"]["dirty-sync-count"].as_u64().unwrap();
        measured.push(format!("{guest}: {passes} passes, down {} ms", state["downtime"]));
        twins.push(twin);
    }
    let last = *blocks(&consoles[0]).last().unwrap();
    let now = twins[0].qemu.console.clone();
    wait_until("the stream continues", || blocks(&now).last().is_some_and(|count| *count > last + 100));

    // vSockets ended at each end, and the guest is another one to programs of the new host. Linux says
    // ECONNRESET to who waits in a call, and ENOTCONN to who calls later; and to a virtio guest whose peer
    // resets, an end.
    let printed = vsockets(&consoles[0]);
    assert!(
        printed == ["client ECONNRESET", "program ENOTCONN"]
            || printed == ["client ECONNRESET", "program ECONNRESET"],
        "{printed:?}"
    );
    assert_eq!(vsockets(&consoles[1]), ["server said b''"]);
    assert_eq!(program.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (mut stream, peer) = there.accept().unwrap();
    let mut cid = [0; 4];
    stream.read_exact(&mut cid).unwrap();
    let expected = bed.cid("a") + FARTHER as u32;
    assert_eq!((u32::from_le_bytes(cid), peer.cid), (expected, expected));
    stream.write_all(b"welcome").unwrap();
    drop(stream);
    wait_until("the guest is notified", || vsockets(&now) == ["answer welcome"]);
    // What listened before still does, once the driver has the device that was plugged in.
    let is_ready = |vm: &Value| vm["name"] == "b" && vm["ready"] == true;
    let ready = || status(&to)["vms"].as_array().is_some_and(|vms| vms.iter().any(is_ready));
    wait_until("the guest has its device", ready);
    let cid = bed.cid("b") + FARTHER as u32;
    drop(Stream::connect_by(&Host::at(&to), cid, PORT, TIMEOUT).unwrap());

    // Devices that QEMU cannot take along, and does not refuse (11.1): vmlane does, before.
    let alone = alone(&sources[0].1, &qemu_args(&config, &to, "stays", false).unwrap(), folder.path());
    let early = qemu_args(&config, &to, "stays", true).unwrap_err();
    assert!(early.contains("QEMU cannot migrate its VMCI device"), "{early}");
    kept(
        "migration",
        &format!(
            "two virtio guests migrated to other QEMUs and another daemon while one echoed the other's TCP stream: \
             {last} blocks there, {} here, all equal ({}); vSockets were reset at both ends, and the guest had CID {expected}; \
             QEMU's word on one with VMCI and VMXNET3: {alone}",
            blocks(&now).last().unwrap(),
            measured.join("; ")
        ),
    );
    drop((twins, daemon, sending, holding));
    bed.lab_down();
}
