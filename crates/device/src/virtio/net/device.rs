//! The session's side: what is on offer, and which rings run.

use std::sync::Arc;

use vmlane_port::{Frames, PortId};
use vmlane_wire::virtio::{self, feature, net_feature};
use zerocopy::IntoBytes;

use super::config::{NetConfig, VirtioNetStats};
use super::control::Checkpoint;
use super::port::NetPort;
use crate::virtio::vhost::{Lines, Setup, VhostDevice};

/// A NIC as its vhost-user session drives it.
pub struct NetDevice {
    config: NetConfig,
    /// As the VMM set it.
    mtu: u16,
    frames: Arc<dyn Frames>,
    port: PortId,
    lines: Arc<dyn Lines>,
    stats: Arc<VirtioNetStats>,
    attached: bool,
    /// The driver's commands so far, while the rings do not run.
    checkpoint: Arc<Checkpoint>,
}

impl NetDevice {
    pub fn new(
        config: NetConfig,
        frames: Arc<dyn Frames>,
        port: PortId,
        lines: Arc<dyn Lines>,
        stats: Arc<VirtioNetStats>,
    ) -> NetDevice {
        NetDevice {
            config,
            mtu: config.mtu,
            frames,
            port,
            lines,
            stats,
            attached: false,
            checkpoint: Arc::default(),
        }
    }
}

impl VhostDevice for NetDevice {
    fn features(&self) -> u64 {
        use net_feature::*;
        let mut features =
            feature::VERSION_1 | feature::ANY_LAYOUT | feature::INDIRECT | feature::EVENT_INDEX;
        // What is in flight comes back in any order, but is completed in the ring's (`TxQueue::flush`).
        features |= feature::IN_ORDER;
        features |=
            CSUM | GUEST_CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO | MERGEABLE | STATUS | MTU | MAC;
        features |= CTRL_VQ | CTRL_RX | CTRL_RX_EXTRA | CTRL_VLAN | CTRL_MAC_ADDR | CTRL_GUEST_OFFLOADS;
        if self.config.lro {
            features |= GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
        }
        if self.config.queues > 1 {
            features |= MULTI_QUEUE;
        }
        if self.config.packed {
            features |= feature::PACKED;
        }
        features
    }

    fn queues(&self) -> u16 {
        // The control queue is the last one.
        2 * u16::from(self.config.queues) + 1
    }

    fn config(&self) -> Vec<u8> {
        let config = virtio::NetConfig {
            mac: self.config.mac.0,
            status: virtio::LINK_UP.into(),
            max_queue_pairs: u16::from(self.config.queues).into(),
            mtu: self.mtu.into(),
            speed: u32::MAX.into(),
            duplex: 1,
        };
        config.as_bytes().to_vec()
    }

    fn set_mtu(&mut self, mtu: u16) -> bool {
        const SMALLEST: u16 = 68;
        let fits = (SMALLEST..=self.config.mtu).contains(&mtu);
        if fits {
            self.mtu = mtu;
        }
        fits
    }

    fn announce(&mut self) {
        self.frames.announce(self.port);
    }

    fn run(&mut self, setup: Setup) {
        if setup.rings.iter().all(Option::is_none) {
            return;
        }
        let config = NetConfig { mtu: self.mtu, ..self.config };
        let (stats, counters) = (self.frames.stats(self.port), self.stats.clone());
        let port = NetPort::new(config, setup, self.lines.clone(), stats, counters, self.checkpoint.clone());
        self.stats.starts.inc();
        self.attached = true;
        self.frames.attach(self.port, Box::new(port));
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.attached) {
            self.stats.stops.inc();
            self.frames.detach(self.port);
        }
    }

    fn gone(&mut self) {
        *self.checkpoint.lock() = None;
    }
}

impl Drop for NetDevice {
    fn drop(&mut self) {
        self.stop();
    }
}
