//! What the daemon of a laboratory has beside the installed one's: faults on request, and a PCI bus for User
//! Mode Linux. Both are [`Extras`] of the daemon, which a configuration has to ask for (`fault_injection`,
//! `uml_pci`).
//!
//! | file | what |
//! | --- | --- |
//! | `faults.rs` | parts of the daemon go wrong, and lines to NICs are bad |
//! | `pci_over_virtio.rs`, `pci_over_virtio/` | a PCI function behind vhost-user |
//! | `main.rs` | the program |
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod faults;
pub mod pci_over_virtio;

use std::sync::Arc;

use vmlane_daemon::extras::Extras;

pub use pci_over_virtio::PciOverVirtio;

/// All that there is.
pub fn extras() -> Extras {
    let faults = Some(Arc::<faults::OnRequest>::default() as _);
    Extras { faults, bus: Some(Arc::new(pci_over_virtio::Bus)) }
}
