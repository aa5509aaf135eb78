//! Switches with ports over plain memory: what passes between them, what does not, and what it costs.

mod common;

mod announce;
mod captured;
mod coalesce;
mod direct;
mod endpoint;
mod hostile;
mod impaired;
mod mirror;
mod offload;
mod policy;
mod separation;
mod share;
mod teams;
mod threads;
mod unicast;
mod wire;
mod workers;
