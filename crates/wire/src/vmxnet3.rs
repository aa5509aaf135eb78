//! VMXNET3 (15ad:07b0): registers and commands, the area shared with the driver, descriptors.
//!
//! Layouts as the Linux driver has them (`drivers/net/vmxnet3/{vmxnet3_defs.h,upt1_defs.h}`); the
//! project's own account is `docs/devices/vmxnet3.md`.

pub mod desc;
pub mod regs;
pub mod shared;
