//! The daemon: reads the configuration, serves each VM's device, answers the control socket.

pub mod config;
pub mod control;
pub mod log;
pub mod notify;
pub mod paths;
pub mod qemu;
