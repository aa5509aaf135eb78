//! Who listens at a vhost-user socket.

use toml::Spanned;

use crate::notes::Notes;

/// The daemon's end of a vhost-user socket. At the other end is a VMM; or the other switch of an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It listens, and the other end connects.
    #[default]
    Server,
    /// The other end listens, and the daemon connects, again whenever it has to.
    Client,
}

impl Role {
    fn of_name(name: &str) -> Option<Role> {
        [Role::Server, Role::Client].into_iter().find(|role| role.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}

/// The daemon's role; `peer` is who has the other one.
pub fn judge(
    table: &str,
    key: &str,
    raw: &Option<Spanned<String>>,
    peer: &str,
    notes: &mut Notes<'_>,
) -> Option<Role> {
    let way_out = format!("\"server\" (the daemon listens) or \"client\" ({peer} does)");
    notes.word(table, key, raw, Role::of_name, &way_out)
}
