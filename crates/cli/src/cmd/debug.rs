//! `vmlane debug`: things that tests do to a running daemon.

use std::process::ExitCode;

use clap::Subcommand;
use vmlane_api::call;

use super::control::Where;

const EXAMPLES: &str = "Examples:
  vmlane debug panic web
  vmlane debug panic web --at nic0-port
  vmlane debug stall web --at nic0-port --milliseconds 3000
  vmlane debug move web --at nic0-port --worker 1
  vmlane debug impair web --loss 10 --reorder 20 --delay-us 500
  vmlane debug impair web

Parts (--at): vmci (the device's next register access), virtio (the virtio-vsock device's worker, at once; active devices
only), stream (the next time a worker serves one of the VM's streams), nicN (the next register access), nicN-port (the next
time the switch serves the port; active NICs only), control (this request itself).

All but `move` need vmlane-labdaemon in place of vmlane, and fault_injection = true in the table [daemon] of its configuration.";

/// Provokes faults, for tests
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a part that serves a VM panic; only that VM may notice
    #[command(after_help = EXAMPLES)]
    Panic {
        /// Name of the VM
        vm: String,
        /// Which part panics
        #[arg(long, value_name = "PART", default_value = "vmci")]
        at: String,
        #[command(flatten)]
        place: Where,
    },
    /// Make a part try a system call that it has no use for: a confined daemon ends, and says why
    #[command(after_help = EXAMPLES)]
    Trespass {
        /// Name of the VM
        vm: String,
        /// Which part
        #[arg(long, value_name = "PART", default_value = "vmci")]
        at: String,
        #[command(flatten)]
        place: Where,
    },
    /// Make a part do nothing for a while; the watchdog must notice
    #[command(after_help = EXAMPLES)]
    Stall {
        /// Name of the VM
        vm: String,
        /// Which part stalls
        #[arg(long, value_name = "PART", default_value = "vmci")]
        at: String,
        /// For how long, 60000 at most
        #[arg(long, default_value_t = 3000)]
        milliseconds: u32,
        #[command(flatten)]
        place: Where,
    },
    /// Have another worker of the switch move the frames of a NIC, as `balance` in the configuration does
    #[command(after_help = EXAMPLES)]
    Move {
        /// Name of the VM
        vm: String,
        /// Which NIC: nicN-port
        #[arg(long, value_name = "PART", default_value = "nic0-port")]
        at: String,
        /// The worker's number, as `vmlane ports` shows it
        #[arg(long, value_name = "NUMBER")]
        worker: u32,
        #[command(flatten)]
        place: Where,
    },
    /// Lose, reorder or delay frames on their way to a NIC, until it is called without numbers
    ///
    /// 64 frames are held at most; beyond, frames wait in the switch as for a guest without receive buffers. `vmlane
    /// stats` counts those that are lost (drop_impaired).
    #[command(after_help = EXAMPLES)]
    Impair {
        /// Name of the VM
        vm: String,
        /// Which NIC: nicN-port
        #[arg(long, value_name = "PART", default_value = "nic0-port")]
        at: String,
        /// Of 1000 frames, how many are lost
        #[arg(long, value_name = "FRAMES", default_value_t = 0)]
        loss: u16,
        /// Of 1000 frames, how many are overtaken by up to 8 later ones
        #[arg(long, value_name = "FRAMES", default_value_t = 0)]
        reorder: u16,
        /// How long each frame takes, 1000000 at most
        #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
        delay_us: u32,
        /// Lose frames of more bytes, as where segmentation offload is broken
        #[arg(long, value_name = "BYTES")]
        longest: Option<u32>,
        /// The same seed does the same to the same frames
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        place: Where,
    },
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Panic { vm, at, place } => place.connect()?.call(&call::DebugPanic { vm, at: Some(at) }),
            What::Trespass { vm, at, place } => place.connect()?.call(&call::DebugTrespass { vm, at }),
            What::Stall { vm, at, milliseconds, place } => {
                place.connect()?.call(&call::DebugStall { vm, at, milliseconds })
            }
            What::Move { vm, at, worker, place } => {
                place.connect()?.call(&call::DebugMove { vm, at, worker })
            }
            What::Impair { vm, at, loss, reorder, delay_us, longest, seed, place } => {
                let call = call::DebugImpair { vm, at, loss, reorder, delay_us, longest, seed };
                place.connect()?.call(&call)
            }
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
