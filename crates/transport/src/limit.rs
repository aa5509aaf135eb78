//! The limit on log lines that a guest or a peer can cause.

pub(crate) use vmlane_port::LogLimit;
