//! Configurations that tests and measurements of several crates have.

/// Two VMs, each with a VMCI device.
pub const TWO_VMCI: &str = "\
[[vm]]
name = \"a\"
cid = 3
[[vm]]
name = \"b\"
cid = 4
";

/// Two VMs, each with a virtio-vsock device.
pub const TWO_VSOCK: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
[[vm]]
name = \"b\"
cid = 4
vsock = \"virtio\"
";
