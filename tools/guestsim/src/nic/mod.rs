//! A VMXNET3 driver's half: rings in guest memory and what Linux does with them.
//!
//! | file | what |
//! | --- | --- |
//! | `tx_ring.rs` | posting packets, taking completions |
//! | `rx_ring.rs` | posting buffers, putting packets together, Linux's own checks |
//! | `rings.rs` | a NIC's rings made active without registers |
//! | `frames.rs` | a switch of one port that a test turns by hand |
//! | `machine.rs` | one VM with a NIC: memory, interrupts, registers |
//! | `registers.rs` | how a driver reaches its NIC |
//! | `session.rs` | a NIC that is open, frames to it |
//! | `driver.rs` | probe, activation, reconfiguration as Linux does them |

pub mod desc;
mod driver;
mod frames;
mod machine;
mod registers;
mod rings;
mod rx_ring;
pub mod session;
mod tx_ring;

use std::sync::Arc;

use vmlane_mem::Window;

use super::ram::{PAGE, Placement, Ram};

pub use driver::{DriverSpec, NicDriver};
pub use frames::InlineFrames;
pub use machine::{NicMachine, Remains};
pub use registers::NicRegisters;
pub use rings::{Rings, RingsSpec};
pub use rx_ring::{BODY, Received, RxRings, RxShape};
pub use tx_ring::{TxRequest, TxRing};

/// Zeroed contiguous memory of `bytes`, page by page. Address 0 if nothing is asked for.
fn alloc(ram: &Arc<Ram>, bytes: usize) -> u64 {
    ram.alloc(bytes.div_ceil(PAGE), Placement::Contiguous).first().copied().unwrap_or(0)
}

fn window(ram: &Arc<Ram>, addr: u64, bytes: usize) -> Window {
    ram.map().window(addr, bytes, true).expect("a window of this memory")
}
