//! Programs of the host and of VMs reach each other: by `vmlane connect` and `listen`, as unmodified programs
//! under `vmlane run`, linked with the library, and through hybrid Unix sockets.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use vmlane_lab::Running;
use vmlane_tests::alone::{output, printed};
use vmlane_tests::{
    Bed, TIMEOUT, PATIENT, Process, full, kept, python_on_host, spec, take, tree, trickle, wait_until, whole,
};

vmlane_tests::tests! {
    guests in VMCI {
        bytes_arrive_both_ways,
        sockets_of_unmodified_programs_behave_as_expected,
        the_host_measures_against_a_guest_and_back,
        hybrid_sockets_and_the_library_reach_a_guest,
    }
    guests in KILLS { host_connections_end_with_the_daemon_and_come_back_with_the_next }
    long { the_host_and_guests_of_other_kernels_reach_each_other }
}

const MIB: usize = 1 << 20;
/// Where guest a echoes.
const ECHO: &str = "6000";

/// `vmlane WORDS...`, for the lab's daemon.
fn vmlane(bed: &Bed, words: &[&str]) -> Command {
    let mut command = vmlane_tests::alone::vmlane();
    command.args(words).env("VMLANE_RUNTIME_DIR", bed.lab().daemon_runtime_dir());
    command
}

/// Starts a program whose lines a test reads.
pub(crate) fn lines_of(command: &mut Command) -> (Process, Lines<BufReader<ChildStdout>>) {
    let mut program = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    (program, lines)
}

/// Random bytes in a file, and their checksum.
fn bytes(folder: &Path, count: usize) -> (PathBuf, String) {
    let path = folder.join("bytes");
    let mut data = Vec::with_capacity(count);
    std::fs::File::open("/dev/urandom").unwrap().take(count as u64).read_to_end(&mut data).unwrap();
    std::fs::write(&path, data).unwrap();
    let sum = sum(&path);
    (path, sum)
}

fn sum(path: &Path) -> String {
    output(Command::new("sha256sum").arg(path)).split(' ').next().unwrap().to_owned()
}

/// Starts `script` in guest a.
fn start(bed: &Bed, script: &str) -> Running {
    bed.guest("a").spawn(["sh", "-c", script]).unwrap()
}

/// An echo server in guest a, listening.
fn echo(bed: &Bed) -> Running {
    // -t: what socat gives an answer to come, once its client has sent all. Half a second is too little where
    // many start at once.
    let listen = format!("VSOCK-LISTEN:{ECHO},fork,reuseaddr,backlog=256");
    let server = start(bed, &format!("exec socat -t 60 {listen} SYSTEM:cat"));
    wait_until("the echo server listens", || {
        vmlane(bed, &["connect", "-w", "30", "3", ECHO]).output().unwrap().status.success()
    });
    server
}

/// Runs a sender of `path` on the host until it finds its listener in the guest.
fn send(mut command: Command, path: &Path) {
    wait_until("the guest takes the bytes", || {
        let output = command.stdin(std::fs::File::open(path).unwrap()).output().unwrap();
        let early = printed(&output).contains("reset by peer");
        assert!(output.status.success() || early, "{command:?}: {}", printed(&output));
        output.status.success()
    });
}

/// `path` to the guest by `sender`, back by a guest's socat to `receiver`, which writes what it gets.
fn there_and_back(bed: &Bed, path: &Path, expected: &str, sender: Command, mut receiver: Command, port: u32) {
    let taking = start(bed, &format!("socat -u VSOCK-LISTEN:{port} CREATE:/tmp/in && sha256sum /tmp/in"));
    send(sender, path);
    let output = taking.wait().unwrap();
    assert!(output.stdout().contains(expected), "{}{}", output.stdout(), output.stderr());
    let received = path.with_extension("received");
    let file = std::fs::File::create(&received).unwrap();
    let mut receiving = Process(receiver.stdout(file).spawn().unwrap());
    bed.guest("a")
        .sh(&format!(
            "until socat -u FILE:/tmp/in VSOCK-CONNECT:2:{},{PATIENT}; do sleep 0.2; done",
            port + 1
        ))
        .unwrap();
    assert!(receiving.wait().success());
    assert_eq!(sum(&received), expected);
    bed.guest("a").sh("rm /tmp/in").unwrap();
}

/// How much goes each way.
fn size() -> usize {
    if full() { 64 * MIB } else { 16 * MIB }
}

fn the_host_and_guests_of_other_kernels_reach_each_other() {
    for kernel in ["5.10", "6.1", "7.2"] {
        let bed = Bed::up(&spec("host", &[kernel]));
        both_ways(&bed, kernel);
        sockets(&bed, kernel);
        bed.finish();
    }
}

fn bytes_arrive_both_ways(bed: &Bed) {
    both_ways(bed, "6.12");
}

fn both_ways(bed: &Bed, kernel: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = bytes(folder.path(), size());
    let unmodified = |words: &[&str]| {
        let mut command = vmlane(bed, &["run", "--"]);
        command.args(words);
        command
    };
    let socat = format!("VSOCK-CONNECT:3:5010,{PATIENT}");
    for (sender, receiver, port) in [
        (vmlane(bed, &["connect", "-w", "30", "3", "5000"]), vmlane(bed, &["listen", "5001"]), 5000),
        (
            unmodified(&["socat", "-u", "STDIN", &socat]),
            unmodified(&["socat", "-u", "VSOCK-LISTEN:5011", "STDOUT"]),
            5010,
        ),
        (
            unmodified(&["ncat", "--vsock", "--send-only", "3", "5020"]),
            unmodified(&["ncat", "--vsock", "--recv-only", "-l", "5021"]),
            5020,
        ),
    ] {
        there_and_back(bed, &path, &expected, sender, receiver, port);
    }
    ssh(bed, folder.path(), &path, &expected);
    let mib = size() / MIB;
    kept(
        "host",
        &format!("{kernel}: {mib} MiB each way by connect and listen, socat, ncat, ssh: equal checksums"),
    );
}

/// ssh to the guest's own sshd, by three proxy commands.
fn ssh(bed: &Bed, folder: &Path, path: &Path, expected: &str) {
    let key = folder.join("key");
    output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    bed.guest("a")
        .sh(&format!(
            "mkdir -p /run/sshd /root/.ssh && chmod 700 /root /root/.ssh && echo '{}' > /root/.ssh/authorized_keys
             ssh-keygen -q -t ed25519 -N '' -f /run/sshd/key",
            public.trim()
        ))
        .unwrap();
    let options = "-o UsePAM=no -o StrictModes=no -o HostKey=/run/sshd/key";
    let listen =
        format!("exec socat VSOCK-LISTEN:22,fork 'EXEC:/usr/sbin/sshd -i -e -f /dev/null {options}'");
    let sshd = start(bed, &listen);
    let own = vmlane_lab::find_vmlane().unwrap();
    let uds = bed.lab().daemon_runtime_dir().join("vm/a/vsock.uds");
    let client = |mut command: Command, proxy: String, line: &str| {
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "BatchMode=yes",
            "ConnectTimeout=60",
            "LogLevel=ERROR",
        ] {
            command.args(["-o", option]);
        }
        command.arg("-i").arg(&key).arg("-o").arg(format!("ProxyCommand={proxy}")).args(["root@vm", line]);
        command.env("VMLANE_RUNTIME_DIR", bed.lab().daemon_runtime_dir()).stdin(Stdio::null());
        command
    };
    let connect = || format!("{} connect -w 30 3 22", own.display());
    wait_until("sshd answers", || {
        client(Command::new("ssh"), connect(), "true").output().unwrap().status.success()
    });
    let mut there = client(Command::new("ssh"), connect(), "cat > /tmp/by-ssh; sha256sum /tmp/by-ssh");
    assert!(output(there.stdin(std::fs::File::open(path).unwrap())).contains(expected));
    let mut wrapped = vmlane(bed, &["run", "--"]);
    wrapped.arg("ssh");
    let proxy = format!("socat - VSOCK-CONNECT:3:22,{PATIENT}");
    let received = path.with_extension("received");
    output(client(wrapped, proxy, "cat /tmp/by-ssh").stdout(std::fs::File::create(&received).unwrap()));
    assert_eq!(sum(&received), expected, "the bytes came back changed");
    // ssh skips lines before the server's greeting, so the hybrid socket's answer does no harm.
    let text = format!("sh -c '(echo CONNECT 22; cat) | socat - UNIX-CONNECT:{}'", uds.display());
    let hello = output(&mut client(Command::new("ssh"), text, "echo by the hybrid socket"));
    assert_eq!(hello, "by the hybrid socket\n");
    drop(sshd);
    bed.guest("a").sh("rm -r /tmp/by-ssh /run/sshd /root/.ssh").unwrap();
}

/// Runs `vmlane bench`. A run that a stall of the machine spoiled is repeated: a guest's kernel
/// gives each handshake one second, and an overloaded machine may stall for longer.
fn measured(what: &str, mut run: impl FnMut() -> Result<String, String>) {
    const STALLED: [&str; 5] =
        ["reset by peer", "timed out", "gave no answer", "closed the connection while", "nothing moved"];
    let mut last = String::new();
    for _ in 0..3 {
        last = match run() {
            Ok(output) => {
                let report: serde_json::Value = serde_json::from_str(&output).unwrap();
                let rate = |name: &str| report[name].as_f64().unwrap_or(0.0);
                if rate("throughput_bps") > 0.0 || rate("transactions_per_second") > 0.0 {
                    return;
                }
                output
            }
            Err(error) => {
                assert!(STALLED.iter().any(|why| error.contains(why)), "{what}: {error}");
                error
            }
        };
        println!("{what}, repeated: {last}");
    }
    panic!("{what}: {last}");
}

fn the_host_measures_against_a_guest_and_back(bed: &Bed) {
    let guest = bed.guest("a");
    let server = guest.spawn(["vmlane", "bench", "server", "--listen", "vsock:"]).unwrap();
    server.wait_for("listening", TIMEOUT).unwrap();
    let kinds = ["stream", "maerts", "bidir", "rr", "crr"].map(|kind| (kind, "vsock"));
    let kinds = kinds.into_iter().chain([("rr", "vsock-dgram"), ("maerts", "vsock-dgram")]);
    let words = |kind: &str, to: String| {
        format!("bench {kind} --to {to} -l 0.5 --warmup 0 --json")
            .split(' ')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for (kind, family) in kinds.clone() {
        measured(kind, || {
            let done = vmlane(bed, &[]).args(words(kind, format!("{family}:3"))).output().unwrap();
            if done.status.success() { Ok(String::from_utf8(done.stdout).unwrap()) } else { Err(printed(&done)) }
        });
    }
    let (_host, mut lines) = lines_of(&mut vmlane(bed, &["bench", "server", "--listen", "vsock:"]));
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("listening on vsock:"), "{line}");
    for (kind, family) in kinds {
        let line = format!("vmlane {}", words(kind, format!("{family}:2")).join(" "));
        measured(kind, || guest.sh(&line).map_err(|error| format!("{error:#}")));
    }
}

fn host_connections_end_with_the_daemon_and_come_back_with_the_next(bed: &Bed) {
    let _server = echo(bed);
    let taker = take(&bed.guest("b"));
    let between = trickle(bed, "a", "b");
    let (mut program, mut lines) =
        lines_of(&mut python_on_host(bed, &["host_survivor.py", "3", ECHO, "5100"]));
    // A connection opened by the guest that only waits for its end.
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    let held = start(bed, &format!("socat -u VSOCK-CONNECT:2:5100,{PATIENT} -; echo over"));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    bed.kill_daemon();
    assert_eq!(lines.next().unwrap().unwrap(), "ended");
    let guest_end = held.wait().unwrap();
    assert!(guest_end.stdout().contains("over"), "{}", guest_end.stderr());
    let call = format!("until printf again | socat -u - VSOCK-CONNECT:2:5100,{PATIENT}; do sleep 0.2; done");
    let calling = start(bed, &call);
    assert_eq!(lines.next().unwrap().unwrap(), "again");
    assert!(program.wait().success());
    assert!(calling.wait().unwrap().success());
    whole(bed, "a", between);
    drop(taker);
    kept(
        "host",
        "daemon killed: host connections ended at both ends, a VM-to-VM stream continued, new ones work",
    );
}

fn sockets_of_unmodified_programs_behave_as_expected(bed: &Bed) {
    sockets(bed, "6.12");
}

fn sockets(bed: &Bed, kernel: &str) {
    let _server = echo(bed);
    let (mut program, mut lines) =
        lines_of(&mut python_on_host(bed, &["host_semantics.py", "3", ECHO, "5100"]));
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    let call = format!("printf guest | socat -t 60 - VSOCK-CONNECT:2:5100,{PATIENT}");
    let answer = bed.guest("a").sh(&call).unwrap();
    assert_eq!(answer, "host");
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(program.wait().success());
    datagrams(bed);
    // Two hundred connections, all open before the first one is used.
    let many = "import vs
socks = [vs.connected(3, 6000) for _ in range(200)]
for n, s in enumerate(socks): s.sendall(b'%d' % n); s.shutdown(1)
for n, s in enumerate(socks): assert vs.recv_all(s) == b'%d' % n, n";
    output(&mut python_on_host(bed, &["-c", many]));
    kept("host", &format!("{kernel}: options, readiness, dup, fork, half-close, refusals; 200 connections"));
}

/// A program of the host and one of the guest, both python3, exchange datagrams of every size.
fn datagrams(bed: &Bed) {
    let echo = "import socket
s = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
s.bind((socket.VMADDR_CID_ANY, 6100))
print('bound', flush=True)
while True:
    data, peer = s.recvfrom(70000)
    s.sendto(data, peer)";
    let server = bed.guest("a").spawn(["python3", "-u", "-c", echo]).unwrap();
    server.wait_for("bound", TIMEOUT).unwrap();
    let ask = "import socket
s = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
s.settimeout(60)
for size in (1, 1000, 5000, 69608):
    data = bytes(i % 251 for i in range(size))
    s.sendto(data, (3, 6100))
    assert s.recvfrom(70000) == (data, (3, 6100)), size
print(s.getsockname()[0])";
    assert_eq!(output(&mut python_on_host(bed, &["-c", ask])), "2\n");
    drop(server);
}

fn hybrid_sockets_and_the_library_reach_a_guest(bed: &Bed) {
    let _server = echo(bed);
    let uds = bed.lab().daemon_runtime_dir().join("vm/a/vsock.uds");
    // As a client of Firecracker does.
    let mut hybrid = UnixStream::connect(&uds).unwrap();
    hybrid.write_all(format!("CONNECT {ECHO}\n").as_bytes()).unwrap();
    let mut reader = BufReader::new(hybrid.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("OK ") && line.trim_end()[3..].parse::<u32>().is_ok(), "{line:?}");
    hybrid.write_all(b"through the hybrid socket").unwrap();
    hybrid.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    reader.read_to_string(&mut all).unwrap();
    assert_eq!(all, "through the hybrid socket");
    let mut beside = uds.into_os_string();
    beside.push("_5200");
    let listener = UnixListener::bind(&beside).unwrap();
    // The daemon no longer runs as the user that started it.
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o666)).unwrap();
    let calling = start(bed, &format!("echo from the guest | socat -u - VSOCK-CONNECT:2:5200,{PATIENT}"));
    let mut all = String::new();
    listener.accept().unwrap().0.read_to_string(&mut all).unwrap();
    assert_eq!(all, "from the guest\n");
    assert!(calling.wait().unwrap().success());
    std::fs::remove_file(&beside).unwrap();
    // A C program linked with the library, compiled against its header alone, and Python.
    let folder = tempfile::tempdir().unwrap();
    output(vmlane(bed, &["run", "--write-library"]).arg(folder.path()));
    let examples = tree::root().join("crates/preload/examples");
    let built = folder.path().join("echo");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Wall", "-Werror", "-I"])
        .arg(folder.path())
        .arg(examples.join("echo.c"))
        .arg("-o")
        .arg(&built);
    output(compiler.arg("-L").arg(folder.path()).arg("-lvmlane_vsock"));
    let dir = bed.lab().daemon_runtime_dir();
    let mut linked = Command::new(&built);
    linked.args(["3", ECHO, "from C"]).env("LD_LIBRARY_PATH", folder.path()).env("VMLANE_RUNTIME_DIR", &dir);
    assert_eq!(output(&mut linked), "from C");
    let mut python = vmlane(bed, &["run", "--", "python3"]);
    python.arg(examples.join("echo.py")).args(["3", ECHO, "from Python"]);
    assert_eq!(output(&mut python), "from Python");
    // Cargo builds it with all tests: `cargo test --workspace`, or `cargo build -p vmlane-sock --example
    // echo`.
    let mut rust =
        Command::new(std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples/echo"));
    rust.args(["3", ECHO, "from Rust"]).env("VMLANE_RUNTIME_DIR", &dir);
    assert_eq!(output(&mut rust), "from Rust");
    // A program that cannot be served is refused with a message.
    let refused = vmlane(bed, &["run", "--"]).arg(vmlane_lab::find_vmlane().unwrap()).output().unwrap();
    assert!(!refused.status.success());
    assert!(printed(&refused).contains("statically linked"));
}
