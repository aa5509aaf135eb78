//! The daemon: reads the configuration, serves each VM's device, answers the control socket.

pub mod config;
