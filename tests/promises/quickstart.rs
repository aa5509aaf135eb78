//! README's quick start, all of it, as a new user of Debian 12 types it: the package is installed, a daemon
//! and two QEMUs of Debian's are started by that user, and bytes pass between programs in their guests. And
//! the lab, for who has no VMs.

mod disk;
mod terminal;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use terminal::{Terminal, as_user};
use vmlane_lab::setup::{Accel, Assets};
use vmlane_tests::alone::{printed, vmlane};
use vmlane_tests::{Process, kept, readme, wait_until};

use crate::package::container::{self, Container, Release};

vmlane_tests::tests! {
    long {
        the_lab_ends_with_bytes_between_two_guests,
        the_quick_start_ends_with_bytes_between_two_guests,
    }
}

const KERNEL: &str = "6.12";
const USER: &str = "alice";
const WORD: &str = "first byte";

/// The blocks of README's sections, after that of a release.
const INSTALL: usize = 1;
const START: usize = 2;
const IN_GUESTS: usize = 3;
const WHILE_IT_RUNS: usize = 4;
const LAB: usize = 5;

/// A Debian 12 with QEMU, a user, two disks and the package where `make package` puts it.
fn host(assets: &Assets) -> (Container, tempfile::TempDir) {
    let base = container::debian(Release::Bookworm, Some(("qemu", &["qemu-system-x86", "socat"])));
    let (folder, root) = container::copy(&base);
    let home = root.join("home").join(USER);
    fs::create_dir_all(home.join("out/package")).expect("a folder");
    let package = container::package("0.1.0-1");
    fs::copy(&package, home.join("out/package").join(package.file_name().expect("a name")))
        .expect("the package");
    for name in ["web", "db"] {
        let kernel = assets.kernel(KERNEL).expect("a kernel");
        disk::make(&home.join(format!("{name}.img")), name, assets, kernel, &base);
    }
    let container = Container::boot(&root);
    container.run(&format!("useradd --shell /bin/sh {USER} && chown -R {USER}: /home/{USER}"));
    container.run(&format!("install -d -m 700 -o {USER} /run/user/$(id -u {USER})"));
    if assets.accel == Accel::Kvm {
        container.run("mknod -m 666 /dev/kvm c 10 232");
    }
    (container, folder)
}

/// How many streams the user's daemon has.
fn streams(container: &Container) -> usize {
    let ports = container.run(&as_user(USER, "vmlane ports --json"));
    let ports: serde_json::Value = serde_json::from_str(&ports).expect("JSON");
    ports["connections"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|stream| stream["state"] == "established")
        .count()
}

/// One end of a stream as README has it typed; what is typed comes back. The terminal shows only that.
fn echoes(container: &Container, client: &mut Terminal, line: &str) {
    wait_until("no stream", || streams(container) == 0);
    client.type_in(&format!("{line}\n"));
    wait_until("a stream", || {
        // The other end was not there yet.
        if client.shows("$ ") {
            client.type_in(&format!("{line}\n"));
        }
        streams(container) > 0
    });
    client.type_in(&format!("{WORD}\n"));
    client.wait_for(WORD);
    client.type_in("\x03");
    client.wait_for("$ ");
}

fn the_quick_start_ends_with_bytes_between_two_guests() {
    let progress = vmlane_lab::setup::Progress(&|_| ());
    let assets = vmlane_lab::setup::ensure(&[KERNEL.to_owned()], None, &progress).expect("the lab's files");
    let (container, folder) = host(&assets);
    let home = format!("/home/{USER}");
    let blocks = readme::quick_start("sh");
    assert_eq!(blocks.len(), LAB + 1, "a block more: test it, too");
    let user = |line: &str| as_user(USER, line);

    let install: Vec<&str> = blocks[INSTALL].lines().map(readme::command).collect();
    assert_eq!(install[0], "make package", "that was done, with this system's compiler");
    let first_command = Instant::now();
    for line in &install[1..] {
        let line = line.strip_prefix("sudo ").expect("the container has no sudo, and the test is root");
        container.run(&format!("cd {home} && {line}"));
    }
    let installed = first_command.elapsed();

    fs::write(container.path(&format!("{home}/vmlane.toml")), &readme::quick_start("toml")[0])
        .expect("the file");
    let (mut daemon, mut guests, mut questions) = (None, Vec::new(), Vec::new());
    for line in blocks[START].lines().map(readme::command) {
        if let Some(line) = line.strip_suffix('&') {
            daemon = Some(Terminal::open(&container, USER, &format!("exec {line}"), folder.path(), "daemon"));
            wait_until("the daemon answers", || !container.fails(&user("vmlane status")));
        } else if line.starts_with("eval ") {
            let line = if assets.accel == Accel::Kvm { line.to_owned() } else { readme::emulated(line) };
            let name = ["web", "db"][guests.len()];
            assert!(line.contains(&format!("{name}.img")), "{line}");
            guests.push(Terminal::open(&container, USER, &line, folder.path(), name));
        } else {
            questions.push(line);
        }
    }
    assert_eq!((daemon.is_some(), guests.len(), questions.len()), (true, 2, 2));
    let mut db = guests.pop().expect("two");
    let mut web = guests.pop().expect("two");
    db.wait_for("db$ ");
    web.wait_for("web$ ");
    let booted = first_command.elapsed();
    // Programs' terminals show what comes in, not what is typed.
    web.type_in("stty -echo\n");
    web.wait_for("web$ ");
    let mut first_byte = None;
    for line in blocks[IN_GUESTS].lines().map(readme::command) {
        if let Some(line) = line.strip_prefix("db$") {
            db.type_in(&format!("{}\n", line.trim()));
        } else {
            let line = line.strip_prefix("web$").expect("one of the two");
            echoes(&container, &mut web, line.trim());
            first_byte.get_or_insert_with(|| first_command.elapsed());
        }
    }
    let first_byte = first_byte.expect("a line of web's");

    for line in questions {
        container.run(&user(line));
    }
    let status = container.run(&user("vmlane status --json"));
    let status: serde_json::Value = serde_json::from_str(&status).expect("a status");
    for vm in status["vms"].as_array().expect("the VMs") {
        assert_eq!((&vm["attached"], &vm["ready"]), (&true.into(), &true.into()), "{vm}");
    }
    for line in blocks[WHILE_IT_RUNS].lines().map(readme::command) {
        container.run(&user(line));
    }
    assert!(container.run(&user("vmlane vm list")).contains("app"), "the VM that was added");
    kept(
        "guide",
        &format!(
            "README's quick start on a Debian 12 with its QEMU 7.2 ({}): the first byte between two guests {:.0} s \
             after the first command ({:.0} s of them installing, {:.0} s until both guests had booted)",
            assets.accel.name(),
            first_byte.as_secs_f64(),
            installed.as_secs_f64(),
            booted.as_secs_f64()
        ),
    );
}

fn the_lab_ends_with_bytes_between_two_guests() {
    let folder = tempfile::tempdir().expect("a folder");
    let programs = folder.path().join("bin");
    fs::create_dir(&programs).expect("a folder");
    let program = fs::canonicalize(vmlane().get_program()).expect("its path");
    std::os::unix::fs::symlink(program, programs.join("vmlane")).expect("a link");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a PATH"));
    let run = folder.path().join("run");
    fs::create_dir(&run).expect("a folder");
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", &path).env("XDG_RUNTIME_DIR", &run).stdin(Stdio::null());
        command
    };
    let begun = Instant::now();
    let blocks = readme::quick_start("sh");
    let lines: Vec<&str> = blocks[LAB].lines().map(readme::command).collect();
    let (mut servers, mut first_byte) = (Vec::new(), None);
    for line in &lines {
        if let Some(line) = line.strip_suffix('&') {
            let mut server = shell(&format!("exec {line}"));
            servers.push(Process(server.stdout(Stdio::null()).spawn().expect("sh")));
            continue;
        }
        wait_until(line, || {
            let output = shell(line).output().expect("sh");
            // A client may be there before its server.
            let done = output.status.success();
            assert!(done || !servers.is_empty(), "{line}: {}", printed(&output));
            done
        });
        if line.contains("bench stream") {
            first_byte = Some(begun.elapsed());
        }
    }
    for mut server in servers {
        server.wait();
    }
    let first_byte = first_byte.expect("a line with a stream").as_secs_f64();
    let summary = "README's lab: two guests up, measured and down; the result was there";
    kept("guide", &format!("{summary} {first_byte:.0} s after the first command"));
}
