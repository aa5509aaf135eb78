//! What work costs, in bytes copied.

use vmlane_worker::Work;

/// Bytes that each piece a frame lies in costs, when turns are measured: a guest may scatter a frame over
/// hundreds.
pub const PIECE_COST: usize = 96;

/// Bytes that a delivery costs beside its own, when turns are measured.
pub const DELIVERY_COST: usize = 64;
/// The same for each copy of a frame that goes to several.
pub const COPY_COST: usize = 1024;
/// What it costs to make the tables anew, in bytes.
pub const REBUILD: usize = Work { bytes: 0, descriptors: 0, turns: 0, polls: 0, rebuilds: 1 }.cost();
