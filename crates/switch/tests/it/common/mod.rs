//! Switches with ports over plain memory, and frames to send.

pub mod tcp;

use std::sync::Arc;
use std::time::Duration;

use vmlane_guestsim::memory_port::{Received, Wire};
use vmlane_port::{Frames, Offload, PortId, PortStats};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode, Worker};
use vmlane_wire::ethernet::Mac;

pub fn mac(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number])
}

/// A switch that moves only when told to.
pub struct Bench {
    pub switch: Arc<Switch>,
    pub workers: Vec<Worker>,
}

/// A port and its wire.
pub struct Guest {
    pub id: PortId,
    pub wire: Wire,
    pub stats: Arc<PortStats>,
}

/// Frames wait for as long as a test likes.
pub fn holding() -> Settings {
    Settings { hold: Duration::from_secs(3600), ..Settings::default() }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(holding())
    }

    pub fn with(settings: Settings) -> Bench {
        // So that any test can be tried with several: VMLANE_TEST_WORKERS=2.
        let workers = std::env::var("VMLANE_TEST_WORKERS").ok().and_then(|count| count.parse().ok());
        Bench::exactly(Settings { workers: workers.unwrap_or(settings.workers), ..settings })
    }

    /// With this number of workers even then: for what the ports of one worker share, for what a single one
    /// has done when it has had its round, and for ports of which each worker has known ones.
    pub fn exactly(settings: Settings) -> Bench {
        let (switch, workers) = Switch::unstarted_workers(settings);
        Bench { switch: Arc::new(switch), workers }
    }

    pub fn spec(number: u8) -> PortSpec {
        PortSpec {
            name: format!("port-{number}"),
            group: "default".into(),
            switch: String::new(),
            mac: mac(number),
            vlan: VlanMode::Untagged,
            policy: Policy::default(),
            traffic: Traffic::default(),
            uplink: false,
            direct: false,
            notify: false,
        }
    }

    /// A VM's port.
    pub fn guest(&mut self, number: u8) -> Guest {
        self.port(Bench::spec(number))
    }

    pub fn port(&mut self, spec: PortSpec) -> Guest {
        let (wire, end) = Wire::new(spec.mac);
        if spec.uplink {
            wire.change_filter(|filter| *filter = vmlane_port::Filter::open());
        }
        let id = self.switch.add_port(spec).unwrap();
        self.switch.attach(id, end);
        self.switch.refresh(id);
        self.step();
        // It takes some rounds until that is paid for.
        for _ in 0..3 {
            self.step();
        }
        Guest { id, wire, stats: self.switch.stats(id) }
    }

    pub fn step(&mut self) {
        self.workers.iter_mut().for_each(|worker| assert!(worker.step()));
    }

    /// Rounds until nothing moves.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            self.step();
            if !self.workers.iter().any(|worker| worker.moved()) {
                return;
            }
        }
        panic!("frames never come to rest");
    }

    /// The addresses that were learned, behind which ports.
    pub fn learned(&mut self) -> Vec<(PortId, Mac)> {
        let list = self.switch.list_learned();
        self.step();
        list.lock().iter().map(|one| (one.port, one.mac)).collect()
    }

    pub fn refresh(&mut self, guest: &Guest) {
        self.switch.refresh(guest.id);
        self.step();
    }
}

impl Guest {
    pub fn send(&self, frame: &[u8]) {
        self.wire.send(frame, Offload::None, None);
    }

    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.wire.received().into_iter().map(|received: Received| received.bytes).collect()
    }
}

/// A frame of an unknown protocol, `len` bytes, whose payload tells `number`.
pub fn frame(to: Mac, from: Mac, len: usize, number: u8) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend((frame.len()..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number)));
    frame
}
