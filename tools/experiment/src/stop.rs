//! Ctrl-C as a flag: work ends at its next convenient moment; a second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Raised once a signal asks to end.
pub struct Stop {
    flag: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

/// From now on SIGINT, SIGTERM and SIGHUP raise the flag instead of ending the process.
pub fn on_signals() -> Result<Stop> {
    let stop = Stop { flag: Arc::default(), signal: Arc::default() };
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let code = 128 + signal;
        // In this order: the first signal finds the flag down and raises it, the second one exits.
        signal_hook::flag::register_conditional_shutdown(signal, code, stop.flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.flag.clone()))
            .and_then(|_| signal_hook::flag::register_usize(signal, stop.signal.clone(), signal as usize))
            .context("cannot watch for signals")?;
    }
    Ok(stop)
}

impl Stop {
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// The exit code after a signal, as a shell has it.
    pub fn exit_code(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Relaxed);
        (signal > 0).then_some(128 + signal as u8)
    }
}
