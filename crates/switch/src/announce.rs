//! The network is notified of where addresses are: by a reverse ARP request out of an uplink, from which
//! switches outside learn.
//!
//! An address is announced when its port gets an uplink or an uplink gets its port (something is attached, a
//! link comes up, the configuration changes), when the VMM asks for it, as it does once a VM has moved to
//! this host, and when another member of a team serves it. The worker of the uplink sends. Nothing is
//! announced through a team whose `notify` is off.
//!
//! | file | what |
//! | --- | --- |
//! | `queue.rs` | what is to be announced, and how often |
//! | `send.rs` | what a worker does about it in a round |
//! | `rarp.rs` | the frame |

mod queue;
mod rarp;
mod send;

pub use queue::{Announcement, Announcements};
pub use send::vlans;
