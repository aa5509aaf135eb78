//! What tests share: waiting for a condition, processes and directories that end with their test, and reasons
//! for what does not run.
//!
//! It knows nothing else of this workspace, so every crate can use it. A test waits with [`eventually`] or
//! [`wait_until`], starts programs as [`Process`]es or runs them with [`run`], has its [`Daemon`]s, is
//! another user as a [`Visitor`], has a process of its own by [`ran_alone`], and gets its thread's events in
//! [`with_subscriber`]. It returns with [`skipped`] what the machine at hand cannot do.

mod configurations;
mod daemon;
pub mod hybrid_vmm;
mod own_process;
mod process;
mod skipped;
mod subscriber;
mod visitor;
mod waiting;

pub use configurations::{TWO_VMCI, TWO_VSOCK};
pub use daemon::Daemon;
pub use own_process::{again, ran_alone, role};
pub use process::{Process, Ran, contains_all, run, write_program};
pub use skipped::skipped;
pub use subscriber::with_subscriber;
pub use visitor::{Visitor, visit};
pub use waiting::{LONGEST, eventually, wait_until};
