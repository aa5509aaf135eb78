//! An active NIC's rings as a `FramePort`: owned by a worker.
