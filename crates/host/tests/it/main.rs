//! What the host itself brings: its programs' sockets, and uplinks.

mod host_world;
mod namespace;

mod host_sockets;
mod hybrid;
mod left_rings;
mod preload;
mod routes;
mod tap;
mod vhost_user_uplink;
mod xdp;
