//! The configuration: what its files may say, checked as a whole before any of it takes effect.
//!
//! `sources` knows the files, `merge` makes one document of them, which `raw` mirrors, with spans; `check` turns that into the
//! types here or into a list of everything that is wrong with it. Nothing else sees text from the files.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod added;
mod check;
mod control;
mod cpus;
mod domain;
pub mod files;
pub mod findings;
pub mod hybrid;
mod merge;
mod mirror;
mod movable;
mod mtu;
mod net;
pub mod ovn;
mod owner;
pub mod paths;
pub mod plan;
mod raw;
mod route;
mod shape;
pub mod sources;
mod team;
#[cfg(test)]
mod tests;
mod traffic;
pub mod trusted;
mod uplink;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use control::ControlRule;
pub use cpus::CpuList;
pub use mirror::MirrorConfig;
pub use net::nic_name;
pub use vmlane_access::Owner;
use vmlane_device::vmci;
pub use vmlane_device::vmxnet3::Profile;
pub use vmlane_switch::{Policy, Traffic};
pub use vmlane_vsock::Rule as HostRule;
use vmlane_vsock::{DEFAULT_CONNECTIONS, Forward, HOST};
use vmlane_wire::ethernet::Mac;

pub use self::ovn::{OvnConfig, OvnNic};
pub use self::route::{PeerConfig, RouteConfig};
pub use self::sources::Sources;
pub use self::team::TeamConfig;
pub use self::uplink::{Listens, UplinkConfig, UplinkKind};

/// Exit code of a process whose configuration is wrong: `EX_CONFIG` of sysexits.h. A service manager need not try again
/// (`RestartPreventExitStatus=` in packaging/systemd/vmlane.service).
pub const EXIT_CODE: u8 = 78;
/// Where the configuration is unless told otherwise.
pub const DEFAULT_PATH: &str = "/etc/vmlane/vmlane.toml";

/// A configuration without mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub daemon: DaemonConfig,
    /// In the order of the files; names and CIDs are unique.
    pub vms: Vec<VmConfig>,
    /// Names are unique; one named "default" is always there.
    pub port_groups: Vec<PortGroupConfig>,
    /// Those of the file, then those of NICs that are ports of OVN's, in the order of the VMs.
    pub uplinks: Vec<UplinkConfig>,
    /// Where OVN's integration bridge is.
    pub ovn: OvnConfig,
    /// Names are unique; no destination is a source.
    pub mirrors: Vec<MirrorConfig>,
    /// Names are unique, and each uplink is in one at most.
    pub teams: Vec<TeamConfig>,
    /// Which programs of the host may talk to VMs; root and the daemon's own user may anyway.
    pub hosts: Vec<HostRule>,
    /// Who may what at the control socket; root and the daemon's own user may everything.
    pub control: Vec<ControlRule>,
    /// Other hosts.
    pub route: Option<RouteConfig>,
    /// Where each VM is described, by its name.
    pub places: BTreeMap<String, VmPlace>,
    /// Where what warnings may be about is described, file and line: `daemon: user`, `uplink NAME`, `host N`, `control N`.
    pub marks: BTreeMap<String, (PathBuf, usize)>,
}

/// Where a VM is described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmPlace {
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// It was added at run time.
    pub added: bool,
}

impl fmt::Display for VmPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.path.display(), self.line)
    }
}

/// One `[[port_group]]`: what ports of the switch have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroupConfig {
    pub name: String,
    pub vlan: Vlan,
    pub policy: Policy,
    /// Of each of its ports.
    pub traffic: Traffic,
}

/// Which VLANs a port group carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// None: frames travel untagged (external switch tagging).
    Untagged,
    /// The switch tags (virtual switch tagging).
    Access(u16),
    /// The guest tags (virtual guest tagging), with one of these.
    Trunk(Vec<u16>),
    TrunkAll,
}

/// One element of `nic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    pub model: NicModel,
    /// Of a VMXNET3 NIC.
    pub profile: Profile,
    pub port_group: String,
    pub mac: Mac,
    /// The most queues of each direction.
    pub queues: u8,
    /// The largest MTU of the guest that the port carries.
    pub mtu: u16,
    /// The number of its PCI Express slot, which guests name it after; None: QEMU places it.
    pub slot: Option<u16>,
    /// Doorbells are messages instead of stores into a shared page.
    pub trapped: bool,
    /// The port group's, with what the NIC says otherwise.
    pub policy: Policy,
    /// Likewise.
    pub traffic: Traffic,
    /// It is a port of OVN's, and not of the switch.
    pub ovn: Option<OvnNic>,
}

/// What a guest finds in its PCI slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicModel {
    /// By vfio-user.
    Vmxnet3,
    /// By vhost-user.
    VirtioNet(VirtioNet),
}

/// The daemon's end of a vhost-user socket. At the other end is a VMM; or the other switch of an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It listens, and the other end connects.
    #[default]
    Server,
    /// The other end listens, and the daemon connects, again whenever it has to.
    Client,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}

/// What is decided about a virtio NIC only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioNet {
    /// Super-frames may reach the guest whole.
    pub lro: bool,
    /// Packed rings are on offer.
    pub packed: bool,
    /// Who listens at the socket.
    pub role: Role,
    /// The configured MTU is announced to the guest.
    pub announces_mtu: bool,
}

/// The table `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    pub workers: u16,
    /// Where the workers run; None: anywhere.
    pub cpus: Option<CpuList>,
    /// NICs go to other workers where that helps.
    pub balance: bool,
    pub mode: Mode,
    /// How long streams and NICs are polled after the last byte or frame, at most.
    pub spin_us: u64,
    /// Frames to several that a NIC may send in a second; 0: any number.
    pub flood_limit: u32,
    /// TCP segments of a burst are merged for receivers with LRO.
    pub coalesce: bool,
    /// Bytes of VMs' memory that may be put into huge pages; 0: nothing is.
    pub huge_pages: u64,
    /// When a VM whose devices fail is taken out of service.
    pub fault_limit: FaultLimit,
    /// `vmlane debug panic` is allowed.
    pub fault_injection: bool,
    /// The user to become when started as root; None: `vmlane`, or else one without an account.
    pub user: Option<String>,
    /// Log filter.
    pub log: Option<String>,
    pub log_format: LogFormat,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        DaemonConfig {
            workers: 1,
            cpus: None,
            balance: true,
            mode: Mode::Adaptive,
            spin_us: 500,
            flood_limit: 4000,
            coalesce: true,
            huge_pages: 0,
            fault_limit: FaultLimit::default(),
            fault_injection: false,
            user: None,
            log: None,
            log_format: LogFormat::default(),
        }
    }
}

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line, for programs: `timestamp`, `level`, `target`, and `fields` with `message`.
    Json,
}

impl LogFormat {
    /// The format with a name of the configuration, `text` or `json`.
    pub fn of_name(name: &str) -> Option<LogFormat> {
        match name {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }
}

/// How many contained faults within how long put a VM into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultLimit {
    /// 0: never.
    pub faults: u32,
    pub within: Duration,
}

impl Default for FaultLimit {
    fn default() -> FaultLimit {
        FaultLimit { faults: 5, within: Duration::from_secs(60) }
    }
}

/// How workers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They sleep when nothing moves.
    Adaptive,
    /// They never sleep.
    Poll,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Adaptive => "adaptive",
            Mode::Poll => "poll",
        }
    }
}

/// What one VM may use at most: the table `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Stream connections at once, with either kind of device.
    pub connections: usize,
    /// What only a VMCI device has.
    pub vmci: vmci::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: DEFAULT_CONNECTIONS, vmci: vmci::Limits::default() }
    }
}

/// One `[[vm]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    pub name: String,
    /// Name or UUID (in small letters) of its libvirt domain; None: the VM's name.
    pub domain: Option<String>,
    /// Who may open its sockets, beside root and the daemon's own user.
    pub owner: Option<Owner>,
    pub group: String,
    pub vsock: Vsock,
    /// 0 without an address.
    pub cid: u32,
    pub nics: Vec<NicConfig>,
    pub forwards: Vec<ForwardConfig>,
    /// The CID by which the guest knows the host, beside 2, as enclaves do.
    pub parent_cid: Option<u32>,
    /// Its PCI functions are for User Mode Linux, over virtio, and not by vfio-user.
    pub uml_pci: bool,
    /// It is to be moved between hosts while it runs.
    pub movable: bool,
    pub restricted: bool,
    pub trusted: bool,
    pub limits: Limits,
    /// Bytes of guest memory that each of its devices may map; None: see [`Config::memory_limit`].
    pub memory: Option<u64>,
}

/// By what a VM takes part in the CID space: the key `vsock`, with the keys that go with one of its values only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vsock {
    /// A VMCI device.
    Vmci,
    /// A virtio-vsock device. `role`: the daemon's, at its socket.
    Virtio { role: Role },
    /// Its VMM's own device, with a hybrid Unix socket.
    Hybrid(HybridConfig),
    /// By nothing.
    None,
}

impl Vsock {
    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            Vsock::Vmci => "vmci",
            Vsock::Virtio { .. } => "virtio",
            Vsock::Hybrid(_) => "hybrid",
            Vsock::None => "none",
        }
    }

    /// Is it a VMCI device?
    pub fn is_vmci(&self) -> bool {
        matches!(self, Vsock::Vmci)
    }

    /// The daemon's role at the socket of a virtio-vsock device.
    pub fn virtio(&self) -> Option<Role> {
        match self {
            Vsock::Virtio { role } => Some(*role),
            Vsock::Vmci | Vsock::Hybrid(_) | Vsock::None => None,
        }
    }

    pub fn hybrid(&self) -> Option<&HybridConfig> {
        match self {
            Vsock::Hybrid(hybrid) => Some(hybrid),
            Vsock::Vmci | Vsock::Virtio { .. } | Vsock::None => None,
        }
    }

    /// Is it a device of ours, which maps the guest's memory?
    pub fn is_device(&self) -> bool {
        match self {
            Vsock::Vmci | Vsock::Virtio { .. } => true,
            Vsock::Hybrid(_) | Vsock::None => false,
        }
    }
}

/// A hybrid Unix socket, which the VM's VMM makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridConfig {
    /// Where, by an absolute path; None: in the runtime directory.
    pub path: Option<PathBuf>,
}

impl VmConfig {
    /// Has it an address in the CID space?
    pub fn takes_connections(&self) -> bool {
        self.vsock != Vsock::None
    }

    /// How many devices map its memory.
    pub fn devices(&self) -> u64 {
        u64::from(self.vsock.is_device()) + self.nics.len() as u64
    }
}

/// One element of `forward`: connects of this VM to {CID 2, `port`} reach `to_port` of VM `to_vm`, which may be the CID of another
/// host's; None: of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    pub port: u32,
    pub to_vm: Option<String>,
    pub to_port: u32,
}

/// Bytes of the host's memory. A VM's memory file can be sparse and of any size; pages that the daemon is the first to touch are charged to
/// the daemon, so it maps no more than a VM can have.
pub fn host_memory() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(system.mem_unit.max(1).into())
}

impl Config {
    /// Reads and checks a file, and those of `conf.d` beside it.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::check(&Sources::read(path)?)
    }

    /// Checks the text of a single file; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        Config::check(&Sources::of(path, text))
    }

    /// What a file may have, as JSON Schema.
    pub fn schema() -> serde_json::Value {
        raw::schema()
    }

    /// Checks files that were read.
    pub fn check(sources: &Sources) -> Result<Config, ConfigError> {
        check::check(sources, true).map_err(|problems| ConfigError::Invalid { problems })
    }

    /// The same of files that may lack VMs to which they refer.
    pub fn check_without_added(sources: &Sources) -> Result<Config, ConfigError> {
        check::check(sources, false).map_err(|problems| ConfigError::Invalid { problems })
    }

    /// Checks what files say of uplinks, whatever else they say.
    pub fn uplinks(sources: &Sources) -> Result<Vec<UplinkConfig>, ConfigError> {
        check::check_uplinks(sources).map_err(|problems| ConfigError::Invalid { problems })
    }

    /// Bytes of address space that are shared out: while a VMM replaces the memory of a device, both the old
    /// one and the new one are mapped.
    pub const SHARED_OUT: u64 = vmlane_mem::ADDRESS_SPACE / 2;

    /// Bytes of guest memory that each device of a VM may map: what the configuration says, or as much as the host
    /// has, as far as the address space goes.
    pub fn memory_limit(&self, vm: &VmConfig) -> u64 {
        vm.memory.unwrap_or_else(|| self.address_space(vm).min(host_memory()))
    }

    /// Bytes of address space for each device of a VM: its limit, or an equal share of what is left.
    fn address_space(&self, vm: &VmConfig) -> u64 {
        let settled = self.vms.iter().filter_map(|vm| Some(vm.memory?.saturating_mul(vm.devices())));
        let rest = settled.fold(Config::SHARED_OUT, u64::saturating_sub);
        let others: u64 = self.vms.iter().filter(|vm| vm.memory.is_none()).map(VmConfig::devices).sum();
        vm.memory.unwrap_or(rest / others.max(1))
    }

    /// A VM's forwards with the CIDs of their targets. Targets that the configuration lacks lead nowhere; a checked one has none.
    pub fn forwards(&self, vm: &VmConfig) -> Vec<Forward> {
        let forward = |forward: &ForwardConfig| {
            let to_cid = match &forward.to_vm {
                Some(to_vm) => match self.vm(to_vm) {
                    Some(target) => Some(target.cid).filter(|&cid| cid != 0)?,
                    // The CID of another host.
                    None => to_vm.parse().ok().filter(|_| self.route.is_some())?,
                },
                None => HOST,
            };
            Some(Forward { port: forward.port, to_cid, to_port: forward.to_port })
        };
        vm.forwards.iter().filter_map(forward).collect()
    }

    /// Directories outside the runtime directory in which VMMs make hybrid sockets.
    pub fn hybrid_directories(&self) -> Vec<PathBuf> {
        let paths = self.vms.iter().filter_map(|vm| vm.vsock.hybrid()?.path.as_ref()?.parent());
        paths.map(Path::to_owned).collect()
    }

    pub fn vm(&self, name: &str) -> Option<&VmConfig> {
        self.vms.iter().find(|vm| vm.name == name)
    }

    pub fn port_group(&self, name: &str) -> Option<&PortGroupConfig> {
        self.port_groups.iter().find(|group| group.name == name)
    }

    /// The names of all VMs, for messages.
    pub fn names(&self) -> String {
        if self.vms.is_empty() {
            return "none".into();
        }
        self.vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: PathBuf,
    /// Counted from 1; none if the mistake has no place.
    pub line: Option<usize>,
    /// Key, value, what is wrong and the way out.
    pub text: String,
}

impl Problem {
    fn at(sources: &Sources, place: usize, text: String) -> Problem {
        let (file, line) = sources.line(place).unwrap_or_default();
        let path = sources.0.get(file).map(|source| source.path.clone()).unwrap_or_default();
        Problem { path, line: Some(line), text }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
        }
        write!(out, ": {}", self.text)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "configuration {path}: {cause}; create it, or name another file with --config \
         (one VM takes three lines: [[vm]], name = \"a\", cid = 3)"
    )]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("configuration {path}: {cause}; make it readable, or remove it")]
    File { path: PathBuf, cause: io::Error },
    #[error("configuration {path}: there are more than {most} files in it; put several into one", most = sources::MOST_FILES)]
    TooManyFiles { path: PathBuf },
    #[error("{}", lines(problems))]
    Invalid { problems: Vec<Problem> },
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
