//! What driver and device share in guest memory: DriverShared, queue descriptors, variable blocks.
