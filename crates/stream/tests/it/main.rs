//! Streams whose other ends are the tests'.

mod common;

mod deferred;
mod doorbells;
mod riding;
mod share;
