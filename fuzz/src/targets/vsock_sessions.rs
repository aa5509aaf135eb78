//! A daemon takes over virtio-vsock sessions whose state is forged, stale, or another session's: the mail,
//! records and descriptors of a session, what its device has to do, and the last transaction of its worker.

use crate::Input;
use crate::forged::vsock;

pub fn run(data: &[u8]) {
    if !data.is_empty() {
        vsock::take_over(&mut Input(data));
    }
}
