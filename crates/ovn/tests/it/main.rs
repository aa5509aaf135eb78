//! The helper for OVN's bridge, and both that it stands between.

mod server;

mod helper;
