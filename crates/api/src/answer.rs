//! What the daemon answers.

use serde::{Deserialize, Serialize};

use crate::MAX_REQUEST;
use crate::counters::CounterList;
use crate::mirror::Mirror;
use crate::ovn::OvnStatus;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
}

impl Failure {
    pub fn internal(message: String) -> Failure {
        Failure { code: ErrorCode::Failed, message }
    }

    pub fn request_too_long() -> Failure {
        let message = format!("the request is longer than {MAX_REQUEST} bytes");
        Failure { code: ErrorCode::TooLong, message }
    }
}

/// Kinds of failures, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    BadRequest,
    TooLong,
    /// Too many clients at once.
    Busy,
    /// The configuration does not allow it.
    Forbidden,
    UnknownVm,
    /// It was tried and did not work.
    Failed,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 6] = [
        ErrorCode::BadRequest,
        ErrorCode::TooLong,
        ErrorCode::Busy,
        ErrorCode::Forbidden,
        ErrorCode::UnknownVm,
        ErrorCode::Failed,
    ];

    /// As it is on the wire.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// To requests that have nothing to report but that they were carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// To `ping`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pong {
    pub pid: u32,
    /// Version of the program.
    pub daemon: String,
    /// Layout of the state that it keeps for the next daemon, which must know the same.
    pub layout: u32,
}

/// To `link`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSet {
    /// `VM/nicN`, or an uplink's name.
    pub port: String,
    /// `up` or `down`.
    pub link: String,
    /// The guest of the NIC sees it. Otherwise frames stop, and the guest must find out by itself.
    pub guest_notified: bool,
}

/// To `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub daemon: String,
    /// As in [`Pong`].
    #[serde(default)]
    pub layout: Option<u32>,
    pub pid: u32,
    pub uptime_seconds: f64,
    pub config: String,
    pub runtime_dir: String,
    /// Of each kind: for streams, for frames, for virtio-vsock.
    pub workers: u16,
    /// Why so many, and where they run: `auto: 2 caches of 8 cores, CPUs 5-7,13-15`, `configured`.
    #[serde(default)]
    pub placement: String,
    /// `adaptive` or `poll`.
    pub mode: String,
    pub spin_us: u64,
    pub fault_injection: bool,
    pub vms: Vec<VmStatus>,
    /// What the daemon has given up: `no`, or a list.
    #[serde(default)]
    pub confined: String,
    /// The threads that move bytes and frames.
    #[serde(default)]
    pub watched: Vec<WorkerStatus>,
    /// Uplinks that serve as one.
    #[serde(default)]
    pub teams: Vec<TeamStatus>,
    /// Why the VMs' VMCI streams would not outlive the daemon; none: they would.
    #[serde(default)]
    pub survival_lost: Option<String>,
    #[serde(default)]
    pub uplinks: Vec<UplinkStatus>,
    /// Other hosts; the one without a name is the helper that carries streams to them.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
}

/// Another host in [`Status`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub name: String,
    /// `up`, `connecting`, `down`, or `no helper`; of the helper itself, `helper`.
    pub state: String,
    /// What is wrong, if anything.
    pub problem: String,
    /// Streams that have a place.
    pub streams: usize,
    /// What became of them, and of the connections.
    pub counters: CounterList,
}

/// One uplink in [`Status`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    pub name: String,
    /// What it leads to, as configured.
    pub to: String,
    /// The switch that it is on, or `wire:NAME`.
    #[serde(default)]
    pub switch: String,
    /// Its port has it. Otherwise the port waits.
    pub attached: bool,
    /// How frames pass; why not, if it is not attached.
    pub how: String,
    /// The operator set its link down: no frame passes.
    #[serde(default)]
    pub link_down: bool,
    /// As in [`VmStatus`].
    #[serde(default)]
    pub since: Option<u64>,
}

/// One worker in [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// `switch`, `worker-0` ...
    pub name: String,
    /// For how long it has got nothing done though it is awake; none: it is well.
    #[serde(default)]
    pub stuck_seconds: Option<f64>,
    /// Whose turn it was then.
    #[serde(default)]
    pub serving: Option<String>,
    /// For how long it has had work since it was started; with `uptime_seconds`, its load. Waiting is not
    /// counted.
    #[serde(default)]
    pub busy_seconds: f64,
    /// For how long it has polled in vain, at once again and again.
    #[serde(default)]
    pub spin_seconds: f64,
    /// The same with its core offered to other threads between.
    #[serde(default)]
    pub yield_seconds: f64,
    /// The same with a short pause by a timer between. What is left of `uptime_seconds` it slept, until it
    /// was notified.
    #[serde(default)]
    pub nap_seconds: f64,
}

/// Uplinks that serve as one, in [`Status`] and [`Ports`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamStatus {
    pub name: String,
    /// `port`, `mac`, `ip-hash` or `failover`.
    pub policy: String,
    /// An uplink whose link is up again takes its place back.
    pub failback: bool,
    /// The network is notified where addresses are now.
    pub notify: bool,
    /// In the order of preference.
    pub members: Vec<TeamMemberStatus>,
    /// What became of it.
    pub counters: CounterList,
}

/// One uplink of a team in [`TeamStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamMemberStatus {
    pub uplink: String,
    /// It takes the place of one that fails.
    pub standby: bool,
    /// Frames leave through it.
    pub active: bool,
    /// `active`, or why it is not.
    pub why: String,
}

/// One VM in [`Status`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    pub name: String,
    /// None for a VM without a device for sockets.
    #[serde(default)]
    pub cid: Option<u32>,
    pub group: String,
    /// That device: `vmci`, `virtio`, `hybrid` or `none`.
    #[serde(default)]
    pub vsock: String,
    /// A VMM is connected.
    pub attached: bool,
    /// The process that is connected as its VMM, as the daemon's PID namespace shows it; none if its devices
    /// are connected by several, and with a hybrid socket.
    #[serde(default)]
    pub vmm_pid: Option<u32>,
    /// A process that was turned away within the last minute because another one is connected as the VM's
    /// VMM.
    #[serde(default)]
    pub refused_vmm_pid: Option<u32>,
    /// The guest's driver has set that device up.
    pub ready: bool,
    /// That device: `absent` (no VMM is attached), `booting`, `stopped` (a driver has used it: the guest is
    /// paused or reboots, or the driver was unloaded), `no driver` (one of these two), `ready`, `lost` (the
    /// keeper has closed its session), or `none`.
    #[serde(default)]
    pub state: String,
    pub sockets: Vec<String>,
    pub queue_pairs: usize,
    pub queue_pair_bytes: u64,
    pub connections: usize,
    pub doorbells: usize,
    pub inbox_bytes: usize,
    /// Faults of ours contained while its devices were served.
    #[serde(default)]
    pub faults: u64,
    /// When its counters in [`Stats`] were 0, in seconds since 1970. They continue when another daemon takes
    /// over.
    #[serde(default)]
    pub since: Option<u64>,
    /// Its devices are out of service because they failed too often.
    #[serde(default)]
    pub quarantined: bool,
    #[serde(default)]
    pub nics: Vec<NicStatus>,
}

/// One NIC in [`VmStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicStatus {
    /// `nic0`, `nic1` ...
    pub name: String,
    pub mac: String,
    pub profile: String,
    /// The switch that it is on, or `wire:NAME`.
    #[serde(default)]
    pub switch: String,
    pub port_group: String,
    pub socket: String,
    /// A VMM is connected.
    pub attached: bool,
    /// The guest's driver has activated the device.
    pub active: bool,
    /// As in [`VmStatus`].
    #[serde(default)]
    pub state: String,
    /// The operator set its link down: no frame passes.
    #[serde(default)]
    pub link_down: bool,
    /// It is a port of OVN's, and not of the switch.
    #[serde(default)]
    pub ovn: Option<OvnStatus>,
}

/// To `stats`. Counters of VMs, of NICs and of uplinks' ports only grow, also when another daemon takes over;
/// all others begin with the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub uptime_seconds: f64,
    pub workers: CounterList,
    /// What the switch's worker did.
    #[serde(default)]
    pub switch: CounterList,
    /// What the worker of the virtio-vsock devices did.
    #[serde(default)]
    pub vsock: CounterList,
    #[serde(default)]
    pub uplinks: Vec<UplinkStats>,
    #[serde(default)]
    pub teams: Vec<TeamStats>,
    /// Mirrors of the switch.
    #[serde(default)]
    pub mirrors: Vec<Mirror>,
    /// What captures did, those under way included.
    #[serde(default)]
    pub captures: CounterList,
    /// What went wrong in the daemon itself, and what it did with VMs' memory.
    #[serde(default)]
    pub daemon: CounterList,
    pub vms: Vec<VmStats>,
}

/// One uplink in [`Stats`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UplinkStats {
    pub name: String,
    pub port: CounterList,
}

/// One team in [`Stats`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TeamStats {
    pub name: String,
    pub team: CounterList,
}

/// One VM in [`Stats`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStats {
    pub name: String,
    #[serde(default)]
    pub cid: Option<u32>,
    /// What the VMCI device did.
    pub vmci: CounterList,
    /// What the virtio-vsock device did.
    #[serde(default)]
    pub vsock: CounterList,
    /// What its connection to the VMM did.
    pub session: CounterList,
    #[serde(default)]
    pub nics: Vec<NicStats>,
    /// What it may use at most.
    #[serde(default)]
    pub bounds: Vec<Bound>,
}

/// A bound of one VM in [`VmStats`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// As in the configuration, where it is configurable.
    pub name: String,
    pub used: u64,
    pub limit: u64,
    /// How often more was asked for.
    pub refused: u64,
}

/// One NIC in [`VmStats`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicStats {
    pub name: String,
    /// What the device's registers did.
    pub device: CounterList,
    /// What went through its port of the switch.
    pub port: CounterList,
    /// What its connection to the VMM did.
    pub session: CounterList,
    /// What each pair of its queues did since the guest's driver activated it; nothing of models that do not
    /// count it.
    #[serde(default)]
    pub queues: Vec<CounterList>,
}

/// To `ports`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    pub connections: Vec<Connection>,
    /// Ports of the switch.
    #[serde(default)]
    pub switch: Vec<SwitchPort>,
    /// What joins two ports directly.
    #[serde(default)]
    pub wires: Vec<Wire>,
    /// Mirrors of the switch.
    #[serde(default)]
    pub mirrors: Vec<Mirror>,
    /// Its uplinks that serve as one.
    #[serde(default)]
    pub teams: Vec<TeamStatus>,
}

/// One port of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchPort {
    /// `VM/nic0`, or the uplink's name.
    pub name: String,
    /// `nic` or `uplink`.
    pub kind: String,
    pub group: String,
    /// The switch that it is on, or `wire:NAME`.
    #[serde(default)]
    pub switch: String,
    /// `untagged`, a number, `trunk` or a list.
    pub vlan: String,
    pub mac: String,
    /// Frames may flow: the guest's driver is active.
    pub active: bool,
    /// The operator set its link down: no frame passes.
    #[serde(default)]
    pub link_down: bool,
    /// The number of the switch's worker that moves its frames.
    #[serde(default)]
    pub worker: usize,
    pub tx_frames: u64,
    pub rx_frames: u64,
    pub dropped: u64,
    #[serde(default)]
    pub tx_bytes: u64,
    #[serde(default)]
    pub rx_bytes: u64,
    /// Why frames were dropped: counters that are not 0.
    #[serde(default)]
    pub drops: CounterList,
    /// The address that its guest uses, if its driver is active.
    #[serde(default)]
    pub mac_in_use: Option<String>,
    /// Addresses learned behind it that are not its own.
    #[serde(default)]
    pub learned: Vec<LearnedMac>,
}

/// What joins two ports directly, in [`Ports`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    pub name: String,
    /// The operator has cut it: no frame passes.
    #[serde(default)]
    pub cut: bool,
    /// Both ends are up: frames pass.
    pub carrier: bool,
    /// Two of them.
    pub ends: Vec<WireEnd>,
}

/// One end in [`Wire`], and what happens to frames on their way to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireEnd {
    /// `VM/nic0`, or the uplink's name.
    pub port: String,
    /// It is active, its link was not set down, and the interface behind an uplink has a carrier.
    pub up: bool,
    /// Frames that were sent to its port and not dropped, lost ones among them; also before it was an end of
    /// the wire.
    pub frames: u64,
    /// As configured or set; nothing if it is missing.
    #[serde(default)]
    pub impair: Option<WireImpairment>,
    /// Frames that are on their way.
    #[serde(default)]
    pub waiting: u32,
    /// Frames that were lost on request, so far.
    #[serde(default)]
    pub lost: u64,
    /// Likewise, those that overtook others,
    #[serde(default)]
    pub reordered: u64,
    /// that arrived twice,
    #[serde(default)]
    pub duplicated: u64,
    /// and of which a bit was changed.
    #[serde(default)]
    pub corrupted: u64,
    /// Frames that were dropped because as many as may be were on their way.
    #[serde(default)]
    pub full: u64,
}

/// What happens to frames on their way to a [`WireEnd`], by the names of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireImpairment {
    pub delay_us: u64,
    pub jitter_us: u64,
    /// Percent, as all that follow but two.
    pub loss: f64,
    /// Frames.
    pub loss_burst: u32,
    pub reorder: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// Bits in a second; 0: any number.
    pub rate: u64,
}

/// An address in [`SwitchPort`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedMac {
    pub mac: String,
    /// 0: untagged.
    pub vlan: u16,
    /// Seconds since its last frame.
    pub seconds: u32,
}

/// One stream connection between two VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub client_vm: String,
    pub client_cid: u32,
    pub client_port: u32,
    pub server_vm: String,
    pub server_cid: u32,
    pub server_port: u32,
    pub state: String,
}

/// To `reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What is in force now.
    pub applied: Vec<String>,
    /// What was asked for and is not, with the reason and the way out.
    pub refused: Vec<String>,
}
