//! The TOML as it stands in the file: every key known, every value with its place.
//!
//! Numbers are read wide and names loosely, so that the checks can report what is wrong with a value in
//! words of their own. No key is required here, for the same reason.

use serde::Deserialize;
use toml::Spanned;

use crate::shape::{Applied, Key, Shape, Shaped, tables};
pub use crate::values::{Count, Percent, Size};

tables! {
    pub struct RawConfig {
        /// How the daemon works, and its log.
        #[key(Daemon, "", "")]
        pub daemon: RawDaemon,
        /// What one VM may use at most: defaults for every VM.
        #[key(Reload, "", "")]
        pub limits: RawLimits,
        /// The VMs. Each has a name of its own, and sockets in `RUNTIME_DIR/vm/NAME/`.
        #[key(Reload, "", "")]
        pub vm: Vec<Spanned<RawVm>>,
        /// Switches beside the one called `default`; an entry of that name sets its policy.
        #[key(Reload, "", "")]
        pub switch: Vec<Spanned<RawSwitch>>,
        /// Settings that ports of a switch share. Each switch has a port group of its own name.
        #[key(Reload, "", "")]
        pub port_group: Vec<Spanned<RawPortGroup>>,
        /// Wires, each of which joins two cards, or a card and an uplink, as a cable does.
        #[key(Reload, "", "")]
        pub wire: Vec<Spanned<RawWire>>,
        /// Connections of a switch to the host's network or to another switch.
        #[key(Reload, "", "")]
        pub uplink: Vec<Spanned<RawUplink>>,
        /// Copies of what passes some ports.
        #[key(Reload, "", "at most 16")]
        pub mirror: Vec<Spanned<RawMirror>>,
        /// Uplinks that serve as one.
        #[key(Reload, "", "")]
        pub team: Vec<Spanned<RawTeam>>,
        /// Which host programs may talk to VMs, beside root's and the daemon's user's.
        #[key(Reload, "", "")]
        pub host: Vec<Spanned<RawHost>>,
        /// Who may ask the daemon, beside root and the daemon's user.
        #[key(Reload, "", "")]
        pub control: Vec<Spanned<RawControl>>,
        /// Streams between hosts: this host.
        #[key(Helper, "", "")]
        pub route: Option<Spanned<RawRoute>>,
        /// Streams between hosts: the other hosts.
        #[key(Helper, "", "")]
        pub peer: Vec<Spanned<RawPeer>>,
        /// Where the ports of cards with `ovn` are made; read by `vmlane ovn`.
        #[key(Reload, "", "")]
        pub ovn: Option<Spanned<RawOvn>>,
    }

    pub struct RawOvn {
        /// Socket of Open vSwitch's database, which only the helper opens.
        #[key(Reload, "'/run/openvswitch/db.sock'", "an absolute path")]
        pub database: Option<Spanned<String>>,
        /// OVN's integration bridge.
        #[key(Reload, "'br-int'", "")]
        pub bridge: Option<Spanned<String>>,
    }

    pub struct RawRoute {
        /// Name of this host, as in its certificate.
        #[key(Helper, "required", "")]
        pub name: Option<Spanned<String>>,
        /// CIDs that this host owns: those of its VMs are among them.
        #[key(Helper, "required", "CIDs and ranges such as '1000-1999'")]
        pub cids: Option<Vec<Spanned<toml::Value>>>,
        /// CID by which other hosts know this host's programs; without it, they reach none and none reaches
        /// them.
        #[key(Helper, "none", "3 to 2147483647")]
        pub cid: Option<Spanned<i64>>,
        /// User of the helper, beside root and the daemon's.
        #[key(Helper, "none", "'USER', 'USER:GROUP' or ':GROUP'")]
        pub owner: Option<Spanned<toml::Value>>,
        /// Where hosts connect whose names sort before this one's.
        #[key(Helper, "none", "'IP:PORT'")]
        pub listen: Option<Spanned<String>>,
        /// Certificate of this host, a PEM file.
        #[key(Helper, "required", "an absolute path")]
        pub certificate: Option<Spanned<String>>,
        /// Key of that certificate, a PEM file.
        #[key(Helper, "required", "an absolute path")]
        pub key: Option<Spanned<String>>,
        /// Certificates of the authorities of all hosts, a PEM file.
        #[key(Helper, "required", "an absolute path")]
        pub authority: Option<Spanned<String>>,
        /// Lists of revoked certificates, a PEM file.
        #[key(Helper, "none", "an absolute path")]
        pub crl: Option<Spanned<String>>,
        /// Seconds of silence after which a peer counts as gone.
        #[key(Helper, "10", "2 to 600")]
        pub dead_s: Option<Spanned<i64>>,
    }

    pub struct RawPeer {
        /// Name of the host, as in its certificate.
        #[key(Helper, "required", "")]
        pub name: Option<Spanned<String>>,
        /// Where it listens. Required if its name sorts behind this host's, which then connects to it;
        /// otherwise places are kept free for connections from there.
        #[key(Helper, "none", "'IP:PORT'")]
        pub address: Option<Spanned<String>>,
        /// CIDs that it owns. No CID is owned by two hosts.
        #[key(Helper, "required", "CIDs and ranges such as '2000-2999'")]
        pub cids: Option<Vec<Spanned<toml::Value>>>,
        /// Isolation groups that it may reach, and that may reach it.
        #[key(Helper, "required", "")]
        pub groups: Option<Vec<Spanned<String>>>,
        /// `true`: its statement that a VM is trusted counts.
        #[key(Helper, "false", "")]
        pub trusted: bool,
        /// Certificates that it may have.
        #[key(Helper, "any that proves its name", "SHA-256 digests")]
        pub fingerprints: Option<Vec<Spanned<String>>>,
    }

    pub struct RawControl {
        /// Number of the user. With `gid`: that user, in that group; one of the two is required.
        #[key(Reload, "any", "0 to 4294967294")]
        pub uid: Option<Spanned<i64>>,
        /// Number of the group.
        #[key(Reload, "any", "0 to 4294967294")]
        pub gid: Option<Spanned<i64>>,
        /// `"observe"`: see everything; `"own"`: see its own VMs; `"admin"`: everything.
        #[key(Reload, "required", "'observe', 'own' or 'admin'")]
        pub may: Option<Spanned<String>>,
    }

    pub struct RawHost {
        /// Number of the user.
        #[key(Reload, "any", "0 to 4294967294")]
        pub uid: Option<Spanned<i64>>,
        /// Number of the group, also a supplementary one.
        #[key(Reload, "any", "0 to 4294967294")]
        pub gid: Option<Spanned<i64>>,
        /// Isolation groups whose VMs it may talk to.
        #[key(Reload, "all", "")]
        pub groups: Option<Vec<Spanned<String>>>,
        /// It may connect to VMs.
        #[key(Reload, "true", "")]
        pub connect: Option<bool>,
        /// It may listen for connections of VMs.
        #[key(Reload, "true", "")]
        pub listen: Option<bool>,
        /// It may listen on ports below 1024.
        #[key(Reload, "false", "")]
        pub privileged: bool,
    }

    pub struct RawSwitch {
        /// Name of the switch.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// A guest in promiscuous mode receives all frames of the port group. The default of the switch's
        /// port groups.
        #[key(Reload, "false", "")]
        pub promiscuous: Option<bool>,
        /// A guest that changes its MAC address still receives frames. The default of the switch's port
        /// groups.
        #[key(Reload, "true", "")]
        pub mac_changes: Option<bool>,
        /// A guest may send frames with another source address than its card's. The default of the switch's
        /// port groups.
        #[key(Reload, "true", "")]
        pub forged_transmits: Option<bool>,
    }

    pub struct RawPortGroup {
        /// Name of the port group.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// Switch that it is on.
        #[key(Reload, "'default'", "")]
        pub switch: Option<Spanned<String>>,
        /// VLAN of its ports. 0: untagged frames; `"trunk"` or a list: the guest sends and receives tags
        /// itself.
        #[key(Reload, "0", "0 to 4094, 'trunk', or a list")]
        pub vlan: Option<Spanned<toml::Value>>,
        /// A guest in promiscuous mode receives all frames of the port group.
        #[key(Reload, "the switch's", "")]
        pub promiscuous: Option<bool>,
        /// A guest that changes its MAC address still receives frames.
        #[key(Reload, "the switch's", "")]
        pub mac_changes: Option<bool>,
        /// A guest may send frames with another source address than its card's.
        #[key(Reload, "the switch's", "")]
        pub forged_transmits: Option<bool>,
        /// Traffic shaping of each of its ports.
        #[key(Reload, "not limited", "")]
        pub shape: Option<RawShape>,
        /// Part of a full or shaped receiver's room that a sender gets beside others.
        #[key(Reload, "`100`", "1 to 10000")]
        pub shares: Option<Spanned<i64>>,
        /// Broadcast, multicast and unknown-address frames that each port may send in a second; 0: any
        /// number.
        #[key(Reload, "that of `[daemon]`", "0 to 100000000")]
        pub flood_limit: Option<Spanned<i64>>,
        /// `"snoop"`: multicast frames reach only ports that joined their group.
        #[key(Reload, "'flood'", "'flood' or 'snoop'")]
        pub multicast: Option<Spanned<String>>,
    }

    pub struct RawWire {
        /// Name of the wire.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// The two ends, one of which at least is a card.
        #[key(Reload, "required", "'VM/nicN', or an uplink")]
        pub ends: Vec<Spanned<String>>,
        /// What happens to frames on their way from the first end to the second.
        #[key(Reload, "nothing", "")]
        pub impair: Option<Spanned<RawImpair>>,
        /// The same, from the second end to the first.
        #[key(Reload, "as `impair`", "")]
        pub impair_back: Option<Spanned<RawImpair>>,
    }

    /// What happens to frames on a wire.
    pub struct RawImpair {
        /// Delay of a frame in microseconds.
        #[key(Reload, "0", "0 to 10000000")]
        pub delay_us: Option<Spanned<i64>>,
        /// How much the delay differs at most, spread evenly around `delay_us`, which it may not exceed.
        #[key(Reload, "0", "0 to 10000000")]
        pub jitter_us: Option<Spanned<i64>>,
        /// Percentage of frames that are lost.
        #[key(Reload, "0", "0 to 100")]
        pub loss: Option<Spanned<Percent>>,
        /// Frames that are lost in a row, in the mean; 0: each for itself.
        #[key(Reload, "0", "0 to 1000")]
        pub loss_burst: Option<Spanned<i64>>,
        /// Percentage of frames that are not delayed and so overtake others; needs `delay_us`.
        #[key(Reload, "0", "0 to 100")]
        pub reorder: Option<Spanned<Percent>>,
        /// Percentage of frames that arrive twice.
        #[key(Reload, "0", "0 to 100")]
        pub duplicate: Option<Spanned<Percent>>,
        /// Percentage of frames in which one bit behind the Ethernet header is changed.
        #[key(Reload, "0", "0 to 100")]
        pub corrupt: Option<Spanned<Percent>>,
        /// Bits in a second; 0: any number.
        #[key(Reload, "0", "1000 to 1000G, or 0")]
        pub rate: Option<Spanned<Size>>,
    }

    /// Traffic shaping of a port.
    pub struct RawShape {
        /// Rate from the VM into the switch (vSphere: ingress).
        #[key(Reload, "not limited", "")]
        pub r#in: Option<Spanned<RawRate>>,
        /// Rate from the switch to the VM (vSphere: egress).
        #[key(Reload, "not limited", "")]
        pub out: Option<Spanned<RawRate>>,
    }

    pub struct RawRate {
        /// Bits in a second, in the long run; letters are powers of 1000.
        #[key(Reload, "required", "1000 to 1000G")]
        pub average: Option<Spanned<Size>>,
        /// Bits in a second while a burst lasts.
        #[key(Reload, "as `average`", "1000 to 1000G")]
        pub peak: Option<Spanned<Size>>,
        /// Bytes that may pass faster than `average` after less has passed; letters are powers of 1024.
        #[key(Reload, "20 ms of `average`, at least 64 KiB", "1500 to 4G")]
        pub burst: Option<Spanned<Size>>,
    }

    pub struct RawUplink {
        /// Name of the uplink.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// TAP interface that it leads to; it is created if it does not exist. One of `tap`, `interface` and
        /// `vhost_user` is required.
        #[key(Reload, "none", "")]
        pub tap: Option<Spanned<String>>,
        /// Network card of the host that it leads to, by AF_XDP.
        #[key(Reload, "none", "")]
        pub interface: Option<Spanned<String>>,
        /// Socket of another switch's vhost-user port that it leads to.
        #[key(Reload, "none", "an absolute path")]
        pub vhost_user: Option<Spanned<String>>,
        /// With `vhost_user`: `"server"`: vmlane makes the socket; `"client"`: the other switch does.
        #[key(Reload, "'client'", "'client' or 'server'")]
        pub role: Option<Spanned<String>>,
        /// With `role = "server"`: who may connect, beside root and the daemon's user.
        #[key(Reload, "none", "'USER', 'USER:GROUP' or ':GROUP'")]
        pub owner: Option<Spanned<toml::Value>>,
        /// With `vhost_user`: the longest packet that the other switch carries.
        #[key(Reload, "1500", "1280 to 9190")]
        pub mtu: Option<Spanned<i64>>,
        /// Isolation group.
        #[key(Reload, "'default'", "")]
        pub group: Option<Spanned<String>>,
        /// Switch that it is on.
        #[key(Reload, "'default'", "")]
        pub switch: Option<Spanned<String>>,
        /// VLANs that it carries: all, tagged; those of a list; or one, untagged.
        #[key(Reload, "'trunk'", "0 to 4094, 'trunk', or a list")]
        pub vlan: Option<Spanned<toml::Value>>,
        /// Queues of the interface that are used.
        #[key(Reload, "1; with `interface`: all in use", "1 to 16")]
        pub queues: Option<Spanned<i64>>,
        /// Announce the VMs' addresses to the network behind it.
        #[key(Reload, "true", "")]
        pub notify: Option<bool>,
    }

    pub struct RawMirror {
        /// Name of the mirror.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// What is copied: cards (`VM/nicN`), uplinks, and port groups.
        #[key(Reload, "required", "")]
        pub from: Option<Spanned<Vec<String>>>,
        /// Card or uplink that receives the copies.
        #[key(Reload, "required", "")]
        pub to: Option<Spanned<String>>,
        /// `"in"`: what a source sends into the switch; `"out"`: what it gets from the switch.
        #[key(Reload, "'both'", "'in', 'out' or 'both'")]
        pub direction: Option<Spanned<String>>,
        /// Tag of all copies.
        #[key(Reload, "their own", "1 to 4094")]
        pub vlan: Option<Spanned<i64>>,
        /// Bytes of each frame that are copied.
        #[key(Reload, "all", "60 to 65600")]
        pub snap: Option<Spanned<Size>>,
    }

    pub struct RawTeam {
        /// Name of the team.
        #[key(Reload, "required", "")]
        pub name: Option<Spanned<String>>,
        /// The members, in the order of preference.
        #[key(Reload, "required", "at most 8, with those on standby")]
        pub uplinks: Vec<Spanned<String>>,
        /// Further members, each of which takes the place of one whose link is lost.
        #[key(Reload, "[]", "")]
        pub standby: Vec<Spanned<String>>,
        /// Which member a frame leaves through.
        #[key(Reload, "'port'", "'port', 'mac', 'ip-hash' or 'failover'")]
        pub policy: Option<Spanned<String>>,
        /// A member whose link is up again takes its place back.
        #[key(Reload, "true", "")]
        pub failback: Option<bool>,
        /// Announce addresses when they move to another member.
        #[key(Reload, "true", "")]
        pub notify: Option<bool>,
    }

    pub struct RawNic {
        /// Model of the card.
        #[key(Vm, "required", "'vmxnet3' or 'virtio-net'")]
        pub model: Option<Spanned<String>>,
        /// With `model = "vmxnet3"`: which revisions of the device it has.
        #[key(Vm, "'full'", "'vmxnet3', 'vmxnet2-class' or 'full'")]
        pub profile: Option<Spanned<String>>,
        /// Switch that it is on, if it names no port group.
        #[key(Reload, "'default'", "")]
        pub switch: Option<Spanned<String>>,
        /// Port group that it is in.
        #[key(Reload, "the one with the name of its switch", "")]
        pub port_group: Option<Spanned<String>>,
        /// MAC address.
        #[key(Vm, "derived from the VM's name", "")]
        pub mac: Option<Spanned<String>>,
        /// The longest packet that the port carries, whatever MTU the guest sets.
        #[key(Vm, "9190", "1280 to 9190")]
        pub mtu: Option<Spanned<i64>>,
        /// The most queues per direction.
        #[key(Vm, "8; 2 from the eleventh card on; 1 for virtio-net", "1 to 32")]
        pub queues: Option<Spanned<i64>>,
        /// Number of its PCI Express slot, in the output of `vmlane attach` for QEMU and libvirt.
        #[key(Reload, "placed by QEMU", "1 to 8191")]
        pub slot: Option<Spanned<i64>>,
        /// With `model = "vmxnet3"`: each doorbell and interrupt-mask write is sent as a message.
        #[key(Vm, "false", "")]
        pub trapped: bool,
        /// The guest forwards no frames that it receives, so checksums are not computed for it.
        #[key(Reload, "false", "")]
        pub endpoint: bool,
        /// With `model = "virtio-net"`: super-frames may reach the guest whole.
        #[key(Vm, "true", "")]
        pub lro: Option<bool>,
        /// With `model = "virtio-net"`: offer packed rings.
        #[key(Vm, "false", "")]
        pub packed: Option<bool>,
        /// With `model = "virtio-net"`: `"client"`: the VMM listens and the daemon connects.
        #[key(Vm, "'server'", "'server' or 'client'")]
        pub role: Option<Spanned<String>>,
        /// A guest in promiscuous mode receives all frames of the port group.
        #[key(Reload, "the port group's", "")]
        pub promiscuous: Option<bool>,
        /// A guest that changes its MAC address still receives frames.
        #[key(Reload, "the port group's", "")]
        pub mac_changes: Option<bool>,
        /// A guest may send frames with another source address than its card's.
        #[key(Reload, "the port group's", "")]
        pub forged_transmits: Option<bool>,
        /// Traffic shaping.
        #[key(Reload, "the port group's", "")]
        pub shape: Option<RawShape>,
        /// Part of a full or shaped receiver's room that it gets beside other senders.
        #[key(Reload, "the port group's", "1 to 10000")]
        pub shares: Option<Spanned<i64>>,
        /// Logical port of OVN that it is, instead of a port of a switch. Another name is applied by a
        /// reload.
        #[key(Vm, "none", "at most 200 bytes")]
        pub ovn: Option<Spanned<String>>,
    }

    pub struct RawDaemon {
        /// Threads that move stream data, and as many (at most 64 of each) for frames and for virtio-vsock.
        #[key(Daemon, "'auto'", "1 to 256, or 'auto'")]
        pub workers: Option<Spanned<Count>>,
        /// CPUs that the workers run on.
        #[key(Daemon, "any", "a list such as '2-5,8'")]
        pub cpus: Option<Spanned<String>>,
        /// Move cards to other workers where that helps.
        #[key(Daemon, "true", "")]
        pub balance: Option<bool>,
        /// `"poll"`: workers never sleep, which uses a core for each, for the lowest latency.
        #[key(Daemon, "'adaptive'", "'adaptive' or 'poll'")]
        pub mode: Option<Spanned<String>>,
        /// Microseconds for which a worker polls after the last byte or frame, at most.
        #[key(Daemon, "500", "0 to 1000000")]
        pub spin_us: Option<Spanned<i64>>,
        /// Broadcast, multicast and unknown-address frames that a card may send in a second; 0: any number.
        #[key(Daemon, "4000", "0 to 100000000")]
        pub flood_limit: Option<Spanned<i64>>,
        /// Merge TCP segments for cards with LRO.
        #[key(Reload, "true", "")]
        pub coalesce: Option<bool>,
        /// Bytes of VMs' memory that may be put into huge pages.
        #[key(Daemon, "0", "0 to 65536G")]
        pub huge_pages: Option<Spanned<Size>>,
        /// Seconds for which virtio-vsock devices wait for the next daemon, at most; 0: as long as it takes.
        #[key(Reload, "30", "0 to 86400")]
        pub hold: Option<Spanned<i64>>,
        /// Faults of a VM's devices within `fault_window_s` that put it in quarantine; 0: never.
        #[key(Daemon, "5", "0 to 1000000")]
        pub fault_limit: Option<Spanned<i64>>,
        /// Seconds within which faults are counted.
        #[key(Daemon, "60", "1 to 86400")]
        pub fault_window_s: Option<Spanned<i64>>,
        /// Allow faults on request, for tests (`vmlane-labdaemon` only).
        #[key(Daemon, "false", "")]
        pub fault_injection: Option<bool>,
        /// User that the daemon becomes when it is started as root.
        #[key(Daemon, "`vmlane`, or one without an account", "")]
        pub user: Option<Spanned<String>>,
        /// Filter of the log, as `--log`.
        #[key(Daemon, "`info`", "")]
        pub log: Option<String>,
        /// Format of the log's lines, as `--log-format`.
        #[key(Daemon, "'text'", "'text' or 'json'")]
        pub log_format: Option<Spanned<String>>,
    }

    pub struct RawLimits {
        /// VMCI queue pairs.
        #[key(Reload, "4096", "1 to 65536")]
        pub queue_pairs: Option<Spanned<Size>>,
        /// Bytes of all its VMCI queue pairs.
        #[key(Reload, "half of the VM's memory, 256M to 2G", "4k to 1024G")]
        pub queue_pair_bytes: Option<Spanned<Size>>,
        /// Connections opened by the VM that exist at the same time.
        #[key(Reload, "4096", "1 to 65536")]
        pub connections: Option<Spanned<Size>>,
        /// VMCI doorbells.
        #[key(Reload, "4096", "0 to 65536")]
        pub doorbells: Option<Spanned<Size>>,
        /// Bytes of VMCI datagrams that wait for the VM; one sender may fill half of it.
        #[key(Vm, "139264", "128k to 1G")]
        pub inbox_bytes: Option<Spanned<Size>>,
        /// Unread bytes of streams that the VM has closed.
        #[key(Vm, "'16M'", "0 to 1024G")]
        pub overflow_bytes: Option<Spanned<Size>>,
        /// Guest memory that each device of the VM may map.
        #[key(Reload, "as much as the host has", "1M to 49152G")]
        pub memory: Option<Spanned<Size>>,
    }

    pub struct RawVm {
        /// Name of the VM.
        #[key(Vm, "required", "")]
        pub name: Option<Spanned<String>>,
        /// Name or UUID of its libvirt domain.
        #[key(Reload, "the name", "")]
        pub domain: Option<Spanned<String>>,
        /// Who may open its sockets, beside root and the daemon's user: names or numbers.
        #[key(Reload, "none", "'USER', 'USER:GROUP' or ':GROUP'")]
        pub owner: Option<Spanned<toml::Value>>,
        /// Isolation group.
        #[key(Vm, "'default'", "")]
        pub group: Option<Spanned<String>>,
        /// Its address in vsock, of its own on the host; not with `vsock = "none"`.
        #[key(Vm, "required", "3 to 2147483647")]
        pub cid: Option<Spanned<i64>>,
        /// Device by which it has sockets. `"hybrid"`: the VMM's own; `"none"`: network cards only.
        #[key(Vm, "'vmci'", "'vmci', 'virtio', 'hybrid' or 'none'")]
        pub vsock: Option<Spanned<String>>,
        /// Where its connections to the host (CID 2) lead instead.
        #[key(Reload, "[]", "")]
        pub forward: Vec<Spanned<RawForward>>,
        /// With `vsock = "virtio"`: a second CID by which the guest reaches the host, as enclaves do.
        #[key(Reload, "none", "3 to 2147483647")]
        pub parent_cid: Option<Spanned<i64>>,
        /// With `vsock = "virtio"`: `"client"`: the VMM listens and the daemon connects.
        #[key(Vm, "'server'", "'server' or 'client'")]
        pub vsock_role: Option<Spanned<String>>,
        /// With `vsock = "hybrid"`: the VMM's socket.
        #[key(Vm, "in `RUNTIME_DIR/vm/NAME/hybrid/`", "an absolute path")]
        pub uds_path: Option<Spanned<String>>,
        /// VMCI and VMXNET3 devices for User Mode Linux (`vmlane-labdaemon` only).
        #[key(Vm, "false", "")]
        pub uml_pci: Option<Spanned<bool>>,
        /// It is moved between hosts while it runs: devices that QEMU cannot migrate are refused.
        #[key(Reload, "false", "")]
        pub movable: Option<Spanned<bool>>,
        /// It may only talk to trusted VMs of its group.
        #[key(Reload, "false", "")]
        pub restricted: bool,
        /// Restricted VMs of its group may talk to it.
        #[key(Reload, "false", "")]
        pub trusted: bool,
        /// What it may use at most.
        #[key(Reload, "those of `[limits]`", "")]
        pub limits: RawLimits,
        /// Network cards, in their order.
        #[key(Vm, "[]", "at most 64")]
        pub nic: Vec<Spanned<RawNic>>,
    }

    pub struct RawForward {
        /// Port of CID 2 that the VM connects to.
        #[key(Reload, "required", "0 to 4294967294")]
        pub port: Option<i64>,
        /// Where that leads.
        #[key(Reload, "required", "'VM:PORT', 'CID:PORT' of another host, or 'host'")]
        pub to: Option<String>,
    }
}

impl RawVm {
    /// How messages call it, the one at `index`.
    pub fn label(&self, index: usize) -> String {
        match &self.name {
            Some(name) => format!("vm {:?}", name.get_ref()),
            None => format!("vm number {}", index + 1),
        }
    }
}

/// What a file may have, as JSON Schema.
pub fn schema() -> serde_json::Value {
    let mut schema = RawConfig::shape().schema();
    if let Some(keys) = schema.as_object_mut() {
        keys.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        keys.insert("title".into(), "Configuration of vmlane".into());
    }
    schema
}
