//! Open vSwitch with DPDK: one bridge that learns addresses, two vhost-user ports, one polling thread. The
//! sockets are its own, or, of ports of the kind `dpdkvhostuserclient`, those of another program.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::testpmd::Testpmd;
use super::{Load, Rig};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Frames per second through the bridge.
pub fn frames(rig: &Rig, load: Load, length: Duration) -> anyhow::Result<f64> {
    let ovs = Ovs::start(rig)?;
    Testpmd::start(rig, &ovs.sockets(), load)?.measure(length)
}

/// Its two daemons. They end when dropped.
pub struct Ovs<'a> {
    rig: &'a Rig,
    dir: PathBuf,
    /// In the order in which they end.
    children: Vec<Child>,
}

impl Drop for Ovs<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl<'a> Ovs<'a> {
    /// The sockets of its two ports.
    pub fn sockets(&self) -> [PathBuf; 2] {
        ["vh0", "vh1"].map(|name| self.dir.join(name))
    }

    pub fn start(rig: &'a Rig) -> anyhow::Result<Ovs<'a>> {
        let dir = rig.dir.join("ovs");
        crate::folders::make(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let mut ovs = Ovs { rig, dir, children: Vec::new() };
        let (database, schema) =
            (ovs.dir.join("conf.db"), rig.dpdk.file("usr/share/openvswitch/vswitch.ovsschema"));
        run(ovs.command("usr/bin/ovsdb-tool").arg("create").args([&database, &schema]))?;
        let remote = format!("--remote=punix:{}", ovs.socket().display());
        let mut server = ovs.command("usr/sbin/ovsdb-server");
        ovs.spawn(server.arg(remote).arg(&database))?;
        ovs.until_there(&ovs.socket())?;
        ovs.vsctl(&["--no-wait", "init"])?;
        let mask = format!("{:#x}", 1u64 << rig.cpus[0]);
        let drivers = rig.dpdk.drivers()?;
        // Its pool of 262,144 buffers does not fit 1024 MiB: then no frame gets through.
        // Without the quotes Open vSwitch would split paths at commas; spaces it cannot have at all.
        let extra = format!(
            "other_config:dpdk-extra=\"--no-huge --legacy-mem -m 2048 --no-pci --no-telemetry -d {}\"",
            drivers.display()
        );
        let set = ["--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true", &extra];
        ovs.vsctl(&set)?;
        let lcores = format!("other_config:dpdk-lcore-mask={mask}");
        let polling = format!("other_config:pmd-cpu-mask={mask}");
        ovs.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", &lcores, &polling])?;
        let mut switch = ovs.command("usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk");
        let socket = format!("unix:{}", ovs.socket().display());
        ovs.spawn(switch.arg(socket).arg("--pidfile").arg(format!("--log-file={}", ovs.log().display())))?;
        // Waits until the switch has done so.
        ovs.vsctl(&["--timeout=20", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])
            .with_context(|| ovs.last_words())?;
        for port in ["vh0", "vh1"] {
            let add = ["--timeout=20", "add-port", "br0", port, "--", "set", "Interface", port];
            ovs.vsctl(&[&add[..], &["type=dpdkvhostuser"]].concat())?;
            ovs.until_there(&ovs.dir.join(port))?;
        }
        Ok(ovs)
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("db.sock")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("vswitchd.log")
    }

    /// A program that keeps to our folder.
    fn command(&self, path: &str) -> Command {
        let mut command = self.rig.dpdk.command(path);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, &self.dir);
        }
        command
    }

    fn spawn(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        self.children.insert(0, child);
        Ok(())
    }

    fn vsctl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = self.command("usr/bin/ovs-vsctl");
        run(command.arg(format!("--db=unix:{}", self.socket().display())).args(arguments))
    }

    fn until_there(&self, path: &std::path::Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !path.exists() {
            if Instant::now() > deadline {
                bail!("Open vSwitch did not make {}; {}", path.display(), self.last_words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        format!("Open vSwitch's log ends: {}", last.join(" | "))
    }
}

/// Runs a command to its end and reports its errors.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("running {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
