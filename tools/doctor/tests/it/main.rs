//! Whole examinations: of captures, and of this machine.

mod scene;

mod captures;
mod loopback;
