//! The control socket, and how much of a worker an honest pair of VMs keeps.

mod control;
mod neighbours;
