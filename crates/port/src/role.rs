//! What a thread is for. A program that confines its threads sets a hook; others never notice.

use std::sync::OnceLock;

/// A kind of thread that serves guests: what it may ask of the kernel follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves one VMM's connection.
    Session,
    /// Accepts VMMs' connections.
    Acceptor,
    /// Moves bytes between mapped pages.
    Worker,
    /// Moves frames between mapped pages, and to and from uplinks' files.
    Switch,
    /// Moves virtio-vsock packets between mapped pages.
    Vsock,
    /// Gets the connections of an uplink to another switch, and watches them.
    Uplink,
    /// Serves programs of the host: their sockets, and rings shared with them.
    Host,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 7] =
        [Role::Session, Role::Acceptor, Role::Worker, Role::Switch, Role::Vsock, Role::Uplink, Role::Host];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Session => "session",
            Role::Acceptor => "acceptor",
            Role::Worker => "worker",
            Role::Switch => "switch",
            Role::Vsock => "vsock",
            Role::Uplink => "uplink",
            Role::Host => "host",
        }
    }
}

static HOOK: OnceLock<fn(Role)> = OnceLock::new();

/// Has every thread call `hook` that enters a role from now on. The first call counts.
pub fn on_enter(hook: fn(Role)) {
    let _ = HOOK.set(hook);
}

/// The calling thread does nothing but `role` from here on.
pub fn enter(role: Role) {
    if let Some(hook) = HOOK.get() {
        hook(role);
    }
}
