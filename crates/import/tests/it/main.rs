//! Descriptions of VMs as other systems write them.

mod fixtures;
mod hosts;
mod strangers;
