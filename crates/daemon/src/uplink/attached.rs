//! Uplinks that are connected to their ports.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vmlane_config::UplinkKind;
use vmlane_host::uplink::xdp::{Xdp, XdpFacts, XdpHold};
use vmlane_host::uplink::{Tap, is_gone};
use vmlane_port::{FramePort, PortStats};

use super::connecting::Connecting;
use super::kind::{OpenError, Opened, Seen, tap_options, xdp_options};

/// An uplink that is connected to a port, as seen by the daemon.
pub enum Attached {
    Tap {
        /// One of its queues.
        watch: OwnedFd,
        queues: usize,
        /// The MTU that the port goes by.
        mtu: Arc<AtomicUsize>,
        /// Super-frames stay whole.
        whole: Arc<AtomicBool>,
    },
    Xdp {
        hold: XdpHold,
        mtu: Arc<AtomicUsize>,
        facts: XdpFacts,
        queues: usize,
    },
    /// Its thread sees to the port.
    VhostUser(Connecting),
}

impl Opened {
    /// Makes a port of it.
    pub fn connect(
        self,
        kind: &UplinkKind,
        stats: Arc<PortStats>,
    ) -> Result<(Box<dyn FramePort>, Attached), OpenError> {
        match (self, kind) {
            (Opened::Tap(files), kind) => {
                let queues = files.queues.len();
                let mut tap = Tap::new(&tap_options(kind.target(), None), files, stats)?;
                let whole = tap.whole();
                if kind.is_direct() {
                    // Until the helper reports that the bridge takes them.
                    whole.store(false, Ordering::Relaxed);
                    tap.refresh();
                }
                let attached = Attached::Tap { watch: tap.watch()?, mtu: tap.mtu(), whole, queues };
                Ok((Box::new(tap), attached))
            }
            (Opened::Xdp(files), kind) => {
                let (facts, queues) = (files.facts.clone(), files.queues.len());
                for advice in &facts.advice {
                    tracing::warn!(to = %kind, "{advice}");
                }
                let options = xdp_options(kind.target(), None);
                let (port, hold) = Xdp::new(&options, files, stats)?;
                let mtu = port.mtu();
                Ok((Box::new(port), Attached::Xdp { hold, mtu, facts, queues }))
            }
            // A thread of its own makes ports of the connections of the kind `vhost_user`.
            _ => Err(OpenError::Kind),
        }
    }
}

impl Attached {
    /// What it led to is gone for good.
    pub fn is_gone(&self) -> bool {
        match self {
            Attached::Tap { watch, .. } => is_gone(watch),
            Attached::Xdp { hold, .. } => hold.is_gone(),
            Attached::VhostUser(connecting) => connecting.is_gone(),
        }
    }

    /// What that means for the port, for the log.
    pub fn gone(&self) -> &'static str {
        match self {
            Attached::Tap { .. } | Attached::Xdp { .. } => {
                "the interface is gone; the port waits for one of this name"
            }
            Attached::VhostUser(_) => "its socket has been removed, and is made anew",
        }
    }

    /// Can the port carry packets of this length as it is?
    pub fn carries(&self, mtu: usize) -> bool {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => true,
            Attached::Xdp { facts, .. } => facts.carries(mtu),
        }
    }

    /// Is this the interface that the port has?
    pub fn is(&self, seen: &Seen) -> bool {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => true,
            Attached::Xdp { facts, .. } => seen.index == Some(facts.index),
        }
    }

    /// How frames pass, for an operator.
    pub fn how(&self) -> String {
        match self {
            Attached::Tap { queues, .. } => format!("read and write, {}", count(*queues, "queue")),
            Attached::VhostUser(connecting) => {
                let listens = if connecting.listens() { "listens; " } else { "" };
                format!("{listens}memory shared with the other switch, 1 queue")
            }
            Attached::Xdp { facts, queues, .. } => format!(
                "XDP {}, {}, {}",
                if facts.native { "in the driver" } else { "generic" },
                if facts.zero_copy { "zero-copy" } else { "copy" },
                count(*queues, "queue"),
            ),
        }
    }

    /// Frames that were lost in front of the port, by reason.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        match self {
            Attached::Tap { .. } | Attached::VhostUser(_) => Vec::new(),
            Attached::Xdp { hold, .. } => {
                let lost = hold.lost();
                vec![
                    ("xdp_rx_dropped", lost.dropped),
                    ("xdp_rx_ring_full", lost.ring_full),
                    ("xdp_rx_no_place", lost.no_place),
                ]
            }
        }
    }

    /// Whether super-frames stay whole, of an uplink where that depends.
    pub fn whole(&self) -> Option<&AtomicBool> {
        match self {
            Attached::Tap { whole, .. } => Some(whole),
            Attached::Xdp { .. } | Attached::VhostUser(_) => None,
        }
    }

    /// The MTU that the port goes by, to be changed when the interface has another one.
    pub fn mtu(&self) -> Option<&Arc<AtomicUsize>> {
        match self {
            Attached::Tap { mtu, .. } | Attached::Xdp { mtu, .. } => Some(mtu),
            Attached::VhostUser(_) => None,
        }
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
