//! VMs whose VMM has a hybrid Unix socket, as Firecracker and Cloud Hypervisor do: the VMM owns the
//! virtio-vsock device, and connections enter and leave it through Unix sockets. Such a VM is one more
//! endpoint of the CID space.
//!
//! The protocol, with PATH the socket that the VMM listens at (its `uds_path`):
//!
//! ```text
//! to the guest      connect to PATH, write "CONNECT 5000\n";  "OK 1073741824\n": connected;  end of file: refused
//! from the guest    it connects to {CID 2, 5000}: the VMM connects to PATH_5000, without a word
//! then              bytes, until one side closes
//! ```
//!
//! The VMM is as little trusted as a guest: its answer is bounded in length and time, it must be of the VM's
//! owner at both sockets, and what it can open is bounded.

use vmlane_stats::{Kept, counters};
use vmlane_vsock::{HOST, SocketAddress, Vm};

counters! {
    /// What became of one VM's connections.
    pub struct HybridCounts {
        /// Connections that the guest asked for, at the sockets of its forwards.
        connects,
        /// Of those, refused: by the other end, or because nothing answers for it.
        connects_refused,
        /// Connections of either end, because the VM had as many as it may, or there was no place.
        over_connections,
        /// Connections established, by either end.
        established,
        /// Bytes that the guest sent.
        bytes_sent,
        /// Bytes that it was given.
        bytes_received,
        /// Connections that others asked the VMM for.
        asked,
        /// Of those, ended by the VMM instead of an answer: no program listens on that port.
        refused_by_vmm,
        /// Of those, for which no VMM was there.
        absent,
        /// Of those, for which the VMM did not accept or answer in time.
        late,
        /// Of those, answered with something else than `OK`.
        malformed,
        /// Processes at either end of the VM's sockets that are not its owner's.
        not_owner,
    }
}

/// They may outlive the daemon.
pub type HybridStats = Kept<HybridCounts>;

/// Whom a connect of this VM to the host's `port` reaches: as its forwards have it, and no other.
pub fn target(vm: &Vm, port: u32) -> Option<SocketAddress> {
    vm.forward(port).map(|_| vm.target((HOST, port)))
}
