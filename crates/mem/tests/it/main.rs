//! Guest memory, as a whole process has it.

// `sigbus_model.rs` compiles a file of the crate once more, which knows this by that name.
use sigbus_model::sync;

mod address_space;
mod cut_short;
mod many_regions;
mod sigbus_model;
