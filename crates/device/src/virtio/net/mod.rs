//! The virtio NIC (virtio 1.2, section 5.1).
//!
//! | file | what |
//! | --- | --- |
//! | `config.rs` | the NIC as its operator wants it |
//! | `device.rs` | features, configuration space, which rings run |
//! | `port.rs` | the running rings as a `FramePort` |
//! | `tx.rs`, `rx.rs` | the guest's frames described; others' frames copied into its buffers |
//! | `control.rs` | the control queue: receive modes, addresses, VLANs, pairs in use, offloads |
//! | `steering.rs` | the receive queue of a flow |

mod config;
mod control;
mod device;
mod port;
mod rx;
mod steering;
mod tx;

pub use config::{NetConfig, VirtioNetStats};
pub use device::NetDevice;
