//! Streams whose other ends are the tests'.

mod common;

mod bells;
mod riding;
mod share;
mod withheld;
