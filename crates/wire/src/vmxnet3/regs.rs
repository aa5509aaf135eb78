//! Register offsets, command codes, revisions, event bits.
