//! What `lab up` passes to its supervisor, and what can be asked about a lab: the shared types.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::proto::Exec;
use crate::setup::Assets;
use crate::spec::{LabSpec, Nic};

/// Everything a supervisor needs, decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub spec: LabSpec,
    pub assets: Assets,
    /// The program to run as daemon, as protected child, and in the guests.
    pub vmlane: PathBuf,
    pub dir: PathBuf,
}

impl Plan {
    pub fn guest_dir(&self, guest: &str) -> PathBuf {
        self.dir.join(guest)
    }

    /// Guests' console output.
    pub fn console(&self, guest: &str) -> PathBuf {
        self.guest_dir(guest).join("console.log")
    }

    /// The output of the QEMU process itself.
    pub fn qemu_log(&self, guest: &str) -> PathBuf {
        self.guest_dir(guest).join("qemu.log")
    }

    pub fn qmp(&self, guest: &str) -> PathBuf {
        self.guest_dir(guest).join("qmp.sock")
    }

    pub fn initrd(&self, kernel: &str) -> PathBuf {
        self.dir.join(format!("initrd-{kernel}.cpio"))
    }

    pub fn daemon_runtime(&self) -> PathBuf {
        self.dir.join("d")
    }

    /// Where vhost-device-vsock has its sockets.
    pub fn peer_runtime(&self) -> PathBuf {
        self.dir.join("p")
    }

    pub fn peer_log(&self) -> PathBuf {
        self.dir.join("vhost-device-vsock.log")
    }

    pub fn daemon_config(&self) -> PathBuf {
        self.dir.join("daemon.toml")
    }

    pub fn daemon_log(&self) -> PathBuf {
        self.dir.join("daemon.log")
    }
}

/// Lines of the supervisor's standard output while a lab comes up.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Progress(String),
    Ready(Status),
    Failed(String),
}

/// One line of the supervisor's socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Status,
    Down,
    /// SIGKILL to a guest's QEMU.
    Kill {
        guest: String,
    },
    /// A new QEMU for a guest that has none.
    Start {
        guest: String,
        /// From its first NIC, by PXE, instead of from a kernel that QEMU is given.
        #[serde(default)]
        network: bool,
    },
    /// Restart from inside the guest, or by the reset button.
    Reboot {
        guest: String,
        hard: bool,
    },
    /// Answers when the guest does.
    WaitUp {
        guest: String,
    },
    /// The connection carries frames from here on.
    Exec {
        guest: String,
        exec: Exec,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    Status(Box<Status>),
    Error(String),
}

/// A lab as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: u32,
    pub name: String,
    pub dir: PathBuf,
    pub supervisor_pid: u32,
    pub accelerator: String,
    /// Empty when no guest runs in QEMU.
    pub qemu_version: String,
    /// Guest a's.
    #[serde(default)]
    pub machine: Machine,
    pub guests: Vec<GuestStatus>,
    pub daemon: Option<DaemonStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestStatus {
    pub name: String,
    /// `off`, `booting` or `up`.
    pub state: String,
    pub cid: Option<u32>,
    pub group: Option<String>,
    #[serde(default)]
    pub machine: Machine,
    pub kernel: String,
    pub release: Option<String>,
    /// From the start of QEMU to a guest that answers.
    pub boot_seconds: Option<f64>,
    pub pid: Option<u32>,
    pub nics: Vec<Nic>,
    pub kernel_image: PathBuf,
    /// The first root that goes with it.
    pub initrd: PathBuf,
    pub console_log: PathBuf,
    pub qemu_log: PathBuf,
    pub qmp_socket: PathBuf,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub pid: Option<u32>,
    pub runtime_dir: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
}
