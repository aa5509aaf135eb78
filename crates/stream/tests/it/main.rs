//! Streams whose other ends are the tests'.

mod common;

mod bells;
mod share;
mod withheld;
