//! Our switch with two virtio NICs behind vhost-user sockets, as the daemon puts them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::baseline::Cpus;
use vmlane_device::virtio::net::{NetConfig, NetDevice};
use vmlane_port::Frames;
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode};
use vmlane_transport::{Listener, RingLines, Server, VhostEnd};
use vmlane_wire::ethernet::Mac;

use super::testpmd::Testpmd;
use super::{Load, MACS, Rig};

/// Frames per second through the switch.
pub fn frames(rig: &Rig, load: Load, length: Duration) -> anyhow::Result<f64> {
    let (switch, mut worker) = Switch::unstarted(Settings { poll: true, ..Settings::default() });
    let switch = Arc::new(switch);
    let sockets = rig.sockets();
    let cpus = Cpus::allowed();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            // Whatever happens, the worker's loop ends.
            let _end = Raise(&done);
            let serve = |number: usize| serve(&switch, &sockets[number], number, load.packed);
            let _servers = [serve(0)?, serve(1)?];
            let mut testpmd = Testpmd::start(rig, &sockets, load)?;
            testpmd.measure(length)
        });
        let _placed = cpus.pin(0);
        while !done.load(Ordering::Relaxed) {
            (0..64).for_each(|_| _ = worker.step());
        }
        measuring.join().expect("no panic")
    })
}

struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A port of the switch and the socket of its NIC.
fn serve(
    switch: &Arc<Switch>,
    socket: &std::path::Path,
    number: usize,
    packed: bool,
) -> anyhow::Result<Server> {
    let mac = Mac(MACS[number]);
    let port = switch.add_port(PortSpec {
        name: format!("testpmd-{number}"),
        group: "test".into(),
        switch: String::new(),
        mac,
        vlan: VlanMode::Untagged,
        policy: Policy::default(),
        traffic: Traffic::default(),
        uplink: false,
        direct: false,
        notify: false,
    })?;
    let frames: Arc<dyn Frames> = switch.clone();
    let lines = Arc::new(RingLines::new(2)?);
    let config = NetConfig { mac, mtu: 1500, queues: 1, lro: true, packed };
    let device = NetDevice::new(config, frames, port, lines.clone(), Arc::default());
    let listener = Listener::bind(socket)?;
    Ok(VhostEnd::Listens(listener).serve(
        &format!("testpmd-{number}"),
        Box::new(device),
        lines,
        Arc::default(),
    )?)
}
