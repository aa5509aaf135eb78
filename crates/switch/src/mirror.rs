//! Mirrors (SPAN): copies of what passes some ports go to another port.
//!
//! The sources are wrapped as for a capture: a [`MirrorTap`] copies frames into the mirror's [`Ring`], where
//! it costs its sender nothing but the copy, and never a wait. The mirror itself is a port that sends what is
//! in its ring ([`MirrorPort`]) to its destination and to no other. It is an owner of its own, so copies are
//! paid for by the mirror: with a part of each round as large as its sources may have together. Copies for
//! which that is not enough, or for which the destination has no room at once, are dropped and counted at the
//! mirror.
//!
//! A copy never goes through ingress and the address table: nothing is learned from it, no policy of the
//! destination's port group concerns it, and isolation groups are crossed because the operator wrote so. A
//! destination is no source of any mirror, so copies are never copied. Without mirrors, nothing of this lies
//! in any frame's way.

mod copies;
mod list;
mod manage;
mod port;
mod ring;
mod spec;
mod tap;

pub use copies::send_copies;
pub use list::Mirrors;
pub use spec::{Copies, MirrorDirection, MirrorSpec, MirrorView};
