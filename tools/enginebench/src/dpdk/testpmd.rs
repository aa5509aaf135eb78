//! testpmd, controlled over its standard input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::{Load, MACS, Rig, window};

/// Rounds of 32 frames that each port sends first; as many circulate from then on.
pub const BURSTS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(30);
pub const STARTS: usize = 10;
pub const WARM_UP: Duration = Duration::from_millis(300);

/// A running testpmd with two ports. Ends when dropped.
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Testpmd {
    /// Starts it on the sockets of a back end that listens.
    pub fn start(rig: &Rig, sockets: &[PathBuf; 2], load: Load) -> anyhow::Result<Testpmd> {
        let [switch, driver] = rig.cpus;
        let mac = |port: usize| MACS[port].map(|byte| format!("{byte:02x}")).join(":");
        let port = |number: usize| {
            let path = sockets[number].display();
            let packed = u8::from(load.packed);
            let device = format!("net_virtio_user{number},path={path},queue_size=256,packed_vq={packed}");
            format!("--vdev={device},mac={}", mac(number))
        };
        let mut command = rig.dpdk.command("usr/bin/dpdk-testpmd");
        command
            // It would keep its lines until there are 4 KiB of them.
            .env("LD_PRELOAD", rig.dpdk.file("usr/libexec/coreutils/libstdbuf.so"))
            .env("_STDBUF_O", "L")
            .args(["--no-huge", "-m", "256", "--no-shconf", "--no-pci", "--no-telemetry", "-d"])
            .arg(rig.dpdk.drivers()?)
            .args(["-l", &format!("{switch},{driver}"), "--main-lcore", &switch.to_string()])
            .args([port(0), port(1), "--".into()])
            .args(["-i", "--forward-mode=mac", "--nb-cores=1", "--burst=32", "--rxd=256", "--txd=256"])
            .args(["--total-num-mbufs=16384", "--no-lsc-interrupt", &format!("--txpkts={}", load.bytes)])
            .args([format!("--eth-peer=0,{}", mac(1)), format!("--eth-peer=1,{}", mac(0))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("starting testpmd")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("testpmd without pipes");
        };
        let (sender, lines) = channel();
        std::thread::Builder::new().name("testpmd".into()).spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The receiver is gone: the end.
            lines.map(|line| sender.send(line)).find(Result::is_err)
        })?;
        let mut testpmd = Testpmd { child, input, lines };
        testpmd.expect("Press enter to exit", "Done")?;
        Ok(testpmd)
    }

    /// Frames per second that both ports received.
    pub fn measure(&mut self, length: Duration) -> anyhow::Result<f64> {
        self.set_off()?;
        let before = self.received()?;
        std::thread::sleep(window(length));
        let after = self.received()?;
        Ok(after.since(&before).iter().sum())
    }

    /// Sends the first frames, again until they go round both ways: a switch may lose those that come before
    /// it is ready.
    fn set_off(&mut self) -> anyhow::Result<()> {
        for _ in 0..STARTS {
            self.write_command(&format!("start tx_first {BURSTS}"))?;
            std::thread::sleep(WARM_UP);
            let before = self.received()?;
            std::thread::sleep(Duration::from_millis(50));
            if self.received()?.since(&before).iter().all(|&rate| rate > 0.0) {
                return Ok(());
            }
            self.write_command("stop")?;
            self.expect("Done.", "Done.")?;
        }
        bail!("testpmd's frames did not go round, {STARTS} times")
    }

    fn write_command(&mut self, command: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{command}").with_context(|| format!("sending testpmd the command {command}"))
    }

    fn received(&mut self) -> anyhow::Result<Count> {
        self.write_command("show port stats all")?;
        let first = self.number("RX-packets:")?;
        let at = Instant::now();
        Ok(Count { frames: [first, self.number("RX-packets:")?], at })
    }

    /// The number behind `label` in a line to come.
    fn number(&mut self, label: &str) -> anyhow::Result<u64> {
        let line = self.expect(label, label)?;
        let after = line.split(label).nth(1).and_then(|rest| rest.split_whitespace().next());
        after.and_then(|word| word.parse().ok()).with_context(|| format!("testpmd printed {line:?}"))
    }

    /// The next line with one of these.
    fn expect(&mut self, one: &str, other: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(one) || line.contains(other) => return Ok(line),
                Ok(line) => last = line,
                Err(RecvTimeoutError::Timeout) => bail!("testpmd did not print {one:?}; last {last:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("testpmd ended; its last line: {last:?}"),
            }
        }
    }
}

/// What each port has received.
struct Count {
    frames: [u64; 2],
    at: Instant,
}

impl Count {
    /// Frames per second of each port.
    fn since(&self, before: &Count) -> [f64; 2] {
        let seconds = (self.at - before.at).as_secs_f64();
        [0, 1].map(|port| self.frames[port].saturating_sub(before.frames[port]) as f64 / seconds)
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
