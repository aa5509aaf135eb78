//! Live migration of VMs with virtio NICs, from the lab's QEMUs and daemon to others on the same host.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use vmlane_lab::LabSpec;
use vmlane_tests::{Bed, PATIENCE, kept, wait_until};

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QEMU, controlled through its QMP socket.
struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    fn connect(path: &Path) -> Qmp {
        let mut stream = None;
        wait_until("QEMU's socket answers", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        lines.read_line(&mut String::new()).unwrap();
        let mut qmp = Qmp { stream, lines };
        qmp.call("qmp_capabilities", json!({}));
        qmp
    }

    fn call(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        self.stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "{command}: QEMU has ended");
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if let Some(result) = answer.get("return") {
                return result.clone();
            }
        }
    }
}

/// A guest's QEMU as the lab started it.
struct Source {
    words: Vec<String>,
    exe: PathBuf,
    qmp: PathBuf,
    console: PathBuf,
}

/// The value of `key=` in a comma list.
fn value(word: &str, key: &str) -> PathBuf {
    let found = word.split(',').find_map(|part| part.strip_prefix(key));
    found.unwrap_or_else(|| panic!("{key} in {word}")).into()
}

impl Source {
    fn of(lab: &str, guest: &str) -> Source {
        let name = format!("{lab}-{guest}");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(line) = fs::read_to_string(entry.path().join("cmdline")) else { continue };
            let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
            if !words.contains(&name) {
                continue;
            }
            let Ok(exe) = fs::read_link(entry.path().join("exe")) else { continue };
            let qmp = words.iter().find(|word| word.starts_with("unix:")).expect("a QMP socket");
            let console = words.iter().find(|word| word.contains("id=console")).expect("a console");
            let (qmp, console) = (value(qmp, "unix:"), value(console, "path="));
            return Source { words, exe, qmp, console };
        }
        panic!("no QEMU of {name}");
    }

    /// Another QEMU with the same arguments, which waits for the guest. Its sockets are in `folder`.
    fn twin(&self, guest: &str, from: &Path, to: &Path, folder: &Path) -> Twin {
        let place = |what: &str| folder.join(format!("{guest}.{what}"));
        let moves = [
            (from.to_path_buf(), to.to_path_buf()),
            (self.qmp.clone(), place("qmp")),
            (self.console.clone(), place("console")),
        ];
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let moved = self.words[1..].iter().map(|word| {
            moves.iter().fold(word.clone(), |word, (from, to)| word.replace(&text(from), &text(to)))
        });
        // The agent's port, which is no longer used.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let incoming = place("in");
        let child = Command::new(&self.exe)
            .args(moved)
            .args(["-incoming", &format!("unix:{}", text(&incoming))])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(File::create(place("log")).unwrap())
            .spawn()
            .unwrap();
        Twin {
            _process: Process(child),
            _agent: ours,
            qmp: place("qmp"),
            console: place("console"),
            incoming,
        }
    }
}

struct Twin {
    _process: Process,
    _agent: UnixStream,
    qmp: PathBuf,
    console: PathBuf,
    incoming: PathBuf,
}

/// The block counts that a console has printed.
fn blocks(console: &Path) -> Vec<u64> {
    let text = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
    assert!(!text.contains("DIFFERENT"), "{text}");
    let told = text.lines().filter_map(|line| line.trim().strip_prefix("blocks ")?.strip_suffix(" equal"));
    told.filter_map(|count| count.parse().ok()).collect()
}

#[test]
fn virtio_guests_migrate_under_traffic() {
    let name = format!("migrate-{}", std::process::id());
    let mut spec = LabSpec::new(&name).device("virtio-net").unwrap();
    (spec.guests, spec.boot_seconds, spec.mem_mib) = (2, 300, 256);
    let bed = Bed::up(&spec);
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (bed.lab().daemon_runtime_dir(), folder.path().join("run"));
    let config = bed.lab().status().unwrap().daemon.expect("a daemon").config;
    let mut daemon = Command::new(vmlane_lab::find_vmlane().unwrap());
    daemon.args(["daemon", "--config"]).arg(config).arg("--runtime-dir").arg(&to).stderr(Stdio::null());
    let daemon = Process(daemon.spawn().unwrap());
    wait_until("the other daemon listens", || to.join("vm/b/nic0.sock").exists());

    // Both programs stay in memory: the other QEMUs' disks do not have what was written meanwhile.
    let _serving = vmlane_tests::serve(&bed.guest("b"), "echoed serve 7000");
    let sending = bed.guest("a").spawn(["python3", "/t/echoed.py", "send", "10.77.0.2", "7000"]).unwrap();
    sending.wait_for("moving", PATIENCE).unwrap();
    let sources = ["b", "a"].map(|guest| (guest, Source::of(&name, guest)));
    let console = sources[1].1.console.clone();
    wait_until("blocks move", || blocks(&console).len() > 3);

    let mut twins = Vec::new();
    let mut told = Vec::new();
    for (guest, source) in &sources {
        let twin = source.twin(guest, &from, &to, folder.path());
        let mut there = Qmp::connect(&twin.qmp);
        let mut here = Qmp::connect(&source.qmp);
        here.call("migrate-set-parameters", json!({"max-bandwidth": 1_000_000_000, "downtime-limit": 2000}));
        here.call("migrate", json!({"uri": format!("unix:{}", twin.incoming.display())}));
        let mut state = Value::Null;
        wait_until("the guest has moved", || {
            state = here.call("query-migrate", json!({}));
            assert_ne!(state["status"], "failed", "guest {guest}: {state}");
            state["status"] == "completed"
        });
        wait_until("the guest runs in the other QEMU", || {
            there.call("query-status", json!({}))["status"] == "running"
        });
        let passes = state["ram"]["dirty-sync-count"].as_u64().unwrap();
        told.push(format!("{guest}: {passes} passes, down {} ms", state["downtime"]));
        twins.push(twin);
    }
    let last = *blocks(&console).last().unwrap();
    let there = twins[1].console.clone();
    wait_until("the stream continues", || blocks(&there).last().is_some_and(|count| *count > last + 100));
    kept(
        1,
        &format!(
            "two virtio guests migrated to other QEMUs and another daemon while one echoed the other's TCP stream: \
             {last} blocks there, {} here, all equal ({})",
            blocks(&there).last().unwrap(),
            told.join("; ")
        ),
    );
    drop((twins, daemon, sending));
    bed.lab_down();
}
