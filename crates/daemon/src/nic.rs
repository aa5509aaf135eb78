//! One NIC of a served VM: its port of the switch, its device, its socket; and what the
//! configuration has, in the switch's types.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use vmlane_access::Owner;
use vmlane_api::{NicStats, NicStatus};
use vmlane_config::{Config, NicConfig, NicModel, UplinkConfig, VirtioNet, Vlan, VmConfig, nic_name, ovn};
use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_device::vmxnet3::{self, NicHandle, Vmxnet3Device};
use vmlane_port::{Frames, PortId, PortStats, VlanSet};
use vmlane_state::Found;
use vmlane_stats::Counters;
use vmlane_switch::{Policy, PortSpec, PortView, Switch, Traffic, VlanMode};
use vmlane_transport::{RingLines, Server, SessionStats};

use crate::counters;
use crate::host::Host;
use crate::serve::{Attachment, PciSocket, VmError, device_name, device_state, vhost_end};

/// What the store holds while the operator wants a NIC's link down.
const LINK_DOWN: &str = "down";

/// A NIC on offer.
pub struct ServedNic {
    name: String,
    config: NicConfig,
    port: PortId,
    server: Server,
    session: Arc<SessionStats>,
    counters: DeviceCounters,
    /// See [`crate::vm::ServedVm::since`].
    since: u64,
}

/// Where a model counts.
enum DeviceCounters {
    Vmxnet3(Arc<NicHandle>),
    Virtio(Arc<VirtioNetStats>),
}

impl ServedNic {
    /// Adds the port and opens the socket of NIC `number` of `vm`.
    pub fn offer(
        host: &Host,
        config: &Config,
        vm: &VmConfig,
        (number, nic): (usize, &NicConfig),
        found: &mut Found,
    ) -> Result<ServedNic, VmError> {
        let path = host.paths.nic(&vm.name, number);
        let path = path.map_err(|cause| VmError::Path { name: vm.name.clone(), cause })?;
        let switch = &host.switch;
        let stats: PortStats = counters::of_device(host, found, &scope(vm, number), "port");
        let since = stats.since();
        let port = switch.add_counted_port(port_spec(config, vm, (number, nic)), stats);
        let port =
            port.map_err(|full| VmError::Nic { name: vm.name.clone(), number, cause: full.to_string() })?;
        let down = found.take(&format!("{}/{LINK_DOWN}", scope(vm, number))).is_some();
        let served = ServedNic::serve(host, &path, vm, (number, nic), (port, since), (config, found));
        if let (Ok(nic), true) = (&served, down) {
            nic.apply_link(switch, false);
        }
        if served.is_err() {
            switch.remove_port(port);
        }
        served
    }

    fn serve(
        host: &Host,
        path: &Path,
        vm: &VmConfig,
        (number, config): (usize, &NicConfig),
        (port, mut since): (PortId, u64),
        (all, found): (&Config, &mut Found),
    ) -> Result<ServedNic, VmError> {
        let name = || vm.name.clone();
        let config = config.clone();
        let scope = scope(vm, number);
        let session = SessionStats::continuing(counters::of_device(host, found, &scope, "session"));
        since = since.max(session.counts.since());
        let session = Arc::new(session);
        session.memory.set_limit(all.memory_limit(vm));
        let device_name = nic_name(&vm.name, number);
        let mut frames: Arc<dyn Frames> = host.switch.clone();
        if let Some(faults) = &host.extras.faults {
            frames = faults.frames(&device_name, frames);
        }
        let bad = |cause: String| VmError::Nic { name: name(), number, cause };
        let (server, counters) = match config.model {
            NicModel::Vmxnet3 => {
                let attachment = Attachment::new(host, vm, &session)?;
                let stats: vmxnet3::NicStats = counters::of_device(host, found, &scope, "device");
                since = since.max(stats.since());
                let hardware = hardware(&config, stats);
                let handle = hardware.handle.clone();
                if config.ovn.is_none() {
                    let handle = handle.clone();
                    host.switch.follow_carrier(port, move |up| handle.set_carrier(up));
                }
                let device = Vmxnet3Device::new(hardware, frames, port, attachment.interrupts())
                    .map_err(|cause| bad(cause.to_string()))?;
                let socket = PciSocket { vm: &vm.name, path, scope: &scope, device: &device_name };
                let (server, _) =
                    attachment.serve(host, &socket, Box::new(device), session.clone(), found)?;
                (server, DeviceCounters::Vmxnet3(handle))
            }
            NicModel::VirtioNet(virtio) => {
                let lines = RingLines::new(2 * u16::from(config.queues) + 1);
                let lines = Arc::new(lines.map_err(|cause| bad(cause.to_string()))?);
                let stats: VirtioNetStats = counters::of_device(host, found, &scope, "device");
                since = since.max(stats.since());
                let stats = Arc::new(stats);
                let device =
                    NetDevice::new(virtio_net(&config, virtio), frames, port, lines.clone(), stats.clone());
                let device: Box<dyn VhostDevice> = Box::new(device);
                let end = vhost_end(virtio.role, path);
                let end = end.map_err(|cause| VmError::Listen { name: name(), cause })?;
                let server = end.serve(&device_name, device, lines, session.clone());
                let server = server.map_err(|cause| VmError::Threads { name: name(), cause })?;
                (server, DeviceCounters::Virtio(stats))
            }
        };
        Ok(ServedNic { name: format!("nic{number}"), config, port, server, session, counters, since })
    }

    /// Ends the session, removes the socket and the port.
    pub fn withdraw(self, switch: &Switch) {
        self.server.stop();
        switch.remove_port(self.port);
    }

    /// See [`crate::vm::ServedVm::go`].
    pub fn go(&self) {
        self.server.go();
    }

    /// Bytes of guest memory that it may map from now on.
    pub fn limit_memory(&self, bytes: u64) {
        self.session.memory.set_limit(bytes);
    }

    /// Ends the session if its VMM has cut its guest's memory short.
    pub fn check_memory(&self) {
        self.server.check_memory();
    }

    /// See [`Server::set_owner`].
    pub fn set_owner(&self, owner: Option<Owner>) {
        self.server.set_owner(owner);
    }

    /// `nic0`, `nic1` ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Is it a virtio NIC?
    pub fn is_virtio(&self) -> bool {
        matches!(self.config.model, NicModel::VirtioNet(_))
    }

    /// Counters of its connection.
    pub fn session(&self) -> &SessionStats {
        &self.session
    }

    /// Contained faults: in its session, and at its port.
    pub fn faults(&self, switch: &Switch) -> u64 {
        self.session.panics() + switch.stats(self.port).panics.get()
    }

    /// See [`crate::vm::ServedVm::since`].
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Takes it out of service, or back into it.
    pub fn set_quarantined(&self, switch: &Switch, on: bool) {
        // In this order nothing can be attached that would not be shut off.
        if let DeviceCounters::Vmxnet3(handle) = &self.counters {
            handle.set_quarantined(on);
        }
        switch.shut_port(self.port, on);
    }

    /// Has another worker of the switch move its frames. False: it stays where it is.
    pub fn move_to(&self, switch: &Switch, worker: usize) -> bool {
        switch.move_port(self.port, worker)
    }

    /// Sets its link up or down, also for the next daemon. Returns whether its guest is notified: QEMU does
    /// not take that from the back end of a vhost-user NIC.
    pub fn set_link(&self, host: &Host, vm: &str, up: bool) -> bool {
        let name = format!("{vm}.{}/{LINK_DOWN}", self.name);
        if up {
            host.store.remove(&name);
        } else if let Err(error) =
            vmlane_mem::memfd(LINK_DOWN, 1).and_then(|file| host.store.put(&name, file.as_fd()))
        {
            tracing::warn!(device = device_name(vm, &self.name), %error, "the link will be up again after the daemon's end");
        }
        self.apply_link(&host.switch, up)
    }

    fn apply_link(&self, switch: &Switch, up: bool) -> bool {
        switch.set_link(self.port, up);
        match &self.counters {
            DeviceCounters::Vmxnet3(handle) => {
                handle.set_link(up);
                true
            }
            DeviceCounters::Virtio(_) => false,
        }
    }

    pub fn attached(&self) -> bool {
        self.server.connected()
    }

    pub fn refused_vmm_pid(&self) -> Option<u32> {
        self.server.turned_away()
    }

    pub fn vmm_pid(&self) -> Option<u32> {
        self.server.peer_pid()
    }

    /// The configuration changed in ways that a guest does not see.
    pub fn update(
        &mut self,
        switch: &Switch,
        config: &Config,
        vm: &VmConfig,
        (number, nic): (usize, &NicConfig),
    ) {
        self.config = nic.clone();
        switch.update_port(self.port, port_spec(config, vm, (number, nic)));
    }

    pub fn status(&self, ports: &[PortView]) -> NicStatus {
        let view = ports.iter().find(|view| view.id == self.port);
        let active = view.is_some_and(|view| view.attached);
        NicStatus {
            name: self.name.clone(),
            mac: self.config.mac.to_string(),
            profile: match self.config.model {
                NicModel::Vmxnet3 => self.config.profile.name().into(),
                NicModel::VirtioNet(_) => "virtio-net".into(),
            },
            switch: self.config.switch.clone(),
            port_group: self.config.port_group.clone(),
            socket: self.server.path().display().to_string(),
            attached: self.attached(),
            active,
            state: device_state(self.attached(), active, self.is_virtio().then(|| self.session.has_run()))
                .into(),
            link_down: view.is_some_and(|view| view.link_down),
            ovn: None,
        }
    }

    /// Is a VMM connected, and the link not set down? `down`: the ports whose link is.
    pub fn is_up(&self, down: &HashSet<PortId>) -> bool {
        self.attached() && !down.contains(&self.port)
    }

    /// Its logical port.
    pub fn ovn(&self) -> Option<&str> {
        self.config.ovn.as_ref().map(|ovn| ovn.port.as_str())
    }

    pub fn stats(&self, switch: &Switch) -> NicStats {
        NicStats {
            name: self.name.clone(),
            device: match &self.counters {
                DeviceCounters::Vmxnet3(handle) => handle.stats.snapshot().into_iter().collect(),
                DeviceCounters::Virtio(stats) => stats.snapshot().into_iter().collect(),
            },
            port: switch.stats(self.port).snapshot().into_iter().collect(),
            session: self.session.snapshot().into_iter().collect(),
            queues: match &self.counters {
                DeviceCounters::Vmxnet3(handle) => {
                    handle.queues().into_iter().map(|queue| queue.into_iter().collect()).collect()
                }
                DeviceCounters::Virtio(_) => Vec::new(),
            },
        }
    }
}

/// How the names of all begin that is held of NIC `number`.
fn scope(vm: &VmConfig, number: usize) -> String {
    format!("{}.nic{number}", vm.name)
}

fn hardware(config: &NicConfig, stats: vmxnet3::NicStats) -> vmxnet3::NicConfig {
    vmxnet3::NicConfig {
        profile: config.profile,
        max_queues: config.queues,
        mtu: config.mtu,
        trapped: config.trapped,
        handle: Arc::new(NicHandle::counting(stats)),
        ..vmxnet3::NicConfig::new(config.mac)
    }
}

fn virtio_net(config: &NicConfig, virtio: VirtioNet) -> NetConfig {
    let NicConfig { mac, mtu, queues, .. } = *config;
    NetConfig { mac, mtu, queues, lro: virtio.lro, packed: virtio.packed }
}

/// The port of NIC `number` of `vm`.
pub fn port_spec(config: &Config, vm: &VmConfig, (number, nic): (usize, &NicConfig)) -> PortSpec {
    let of_group = || config.port_group(&nic.port_group).map(|group| vlan_mode(&group.vlan));
    let direct = nic.ovn.is_some() || nic.wire().is_some();
    PortSpec {
        name: nic_name(&vm.name, number),
        group: if nic.ovn.is_some() { ovn::group(&vm.name, number) } else { vm.group.clone() },
        switch: nic.switch.clone(),
        mac: nic.mac,
        vlan: if direct { Some(vlan_mode(&Vlan::TrunkAll)) } else { of_group() }
            .unwrap_or(VlanMode::Untagged),
        policy: nic.policy,
        traffic: nic.traffic,
        uplink: false,
        direct,
        notify: false,
    }
}

/// The port of an uplink.
pub fn uplink_spec(uplink: &UplinkConfig) -> PortSpec {
    PortSpec {
        name: uplink.name.clone(),
        group: uplink.group.clone(),
        switch: uplink.switch.clone(),
        mac: Default::default(),
        vlan: vlan_mode(&uplink.vlan),
        policy: Policy { promiscuous: true, mac_changes: true, forged_transmits: true },
        traffic: Traffic::default(),
        uplink: true,
        direct: uplink.is_direct(),
        // A wire carries nothing but what its ends send.
        notify: uplink.notify && uplink.wire().is_none(),
    }
}

fn vlan_mode(vlan: &Vlan) -> VlanMode {
    match vlan {
        Vlan::Untagged => VlanMode::Untagged,
        Vlan::Access(vlan) => VlanMode::Access(*vlan),
        Vlan::TrunkAll => VlanMode::Trunk(VlanSet::all()),
        Vlan::Trunk(vlans) => {
            let mut set = VlanSet::none();
            vlans.iter().for_each(|&vlan| set.insert(vlan));
            VlanMode::Trunk(set)
        }
    }
}

#[cfg(test)]
mod imported;
