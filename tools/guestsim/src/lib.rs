//! Synthetic guests: small drivers that do what Linux does over shared memory, and the VMM's side of
//! vfio-user and vhost-user. For tests, fuzzing and benchmarks; nothing of it is in the product.
//!
//! | file | what |
//! | --- | --- |
//! | `ram.rs`, `lines.rs`, `registers.rs` | a guest's memory, its interrupts, how it reaches its device |
//! | `machine.rs` | one VM: the three of them around a device of this process |
//! | `driver.rs`, `receive.rs` | `vmw_vmci`: probe, calls, both datagram paths |
//! | `queues.rs` | a queue pair's memory from the guest's side |
//! | `notify.rs` | both notification protocols of stream sockets |
//! | `socket.rs`, `transport.rs` | `vmw_vsock_vmci_transport`: one socket's state, and all of a guest's around its driver |
//! | `dispatch.rs`, `handshake.rs` | packets of established connections, and of those that come to be |
//! | `guest.rs` | interrupts and waiting |
//! | `connect.rs`, `stream.rs` | sockets as a program uses them |
//! | `nic` | VMXNET3: rings, probe, activation |
//! | `virtio.rs`, `virtio_nic.rs` | virtqueues from the driver's side; a card with numbered frames |
//! | `vsock.rs` | virtio-vsock: packets by hand, and routes without their thread |
//! | `memory_port.rs`, `one_by_one.rs` | a frame port over plain memory, for the switch; bursts of one |
//! | `endless.rs` | one end of a stream that always has bytes to send |
//! | `vfio_user.rs`, `vhost_user.rs`, `attached.rs`, `events.rs`, `fds.rs` | a VMM that attaches a guest to a device of another process |
//! | `cloud_hypervisor.rs` | a VMM that does what Cloud Hypervisor's sources do |
//! | `vsock_vm.rs` | a VM with virtio-vsock that is attached to a daemon, with checked streams |
//! | `vhost_user_peer.rs` | the peer of an uplink that is a vhost-user front end |
//! | `restart.rs` | a daemon that is killed under its guests, and the next one |
//! | `pattern.rs` | streams of bytes that can be checked at any position |
//!
//! A waiter here checks again only when a packet that would wake it in Linux has come, so that a lost
//! notification hangs a test as it would hang a guest. Not for production use: it trusts the device.

pub mod attached;
pub mod cloud_hypervisor;
mod connect;
mod dispatch;
mod driver;
pub mod endless;
mod events;
mod fds;
mod guest;
mod handshake;
mod lines;
mod machine;
pub mod memory_port;
pub mod nic;
mod notify;
mod one_by_one;
mod pattern;
mod queues;
mod ram;
mod receive;
mod registers;
pub mod restart;
mod socket;
mod stream;
mod transport;
pub mod vfio_user;
pub mod vhost_user;
pub mod vhost_user_peer;
pub mod virtio;
pub mod virtio_nic;
pub mod vsock;
pub mod vsock_vm;

pub use connect::{Listener, Options};
pub use driver::{Driver, Path, ProbeError};
pub use events::{eventfd, signals};
pub use guest::Guest;
pub use lines::Lines;
pub use machine::{Machine, VmSpec, vm, vm_with};
pub use one_by_one::OneByOne;
pub use pattern::Pattern;
pub use queues::{PairSpec, Queues, alloc_call};
pub use ram::{Placement, Ram};
pub use receive::Datagram;
pub use registers::{Direct, Registers};
pub use socket::SocketError;
pub use stream::Stream;

/// How long anything may take before it counts as hung. Generous: machines are shared.
pub const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
