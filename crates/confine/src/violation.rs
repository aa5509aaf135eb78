//! What happens when a thread makes a system call that its filter does not let through: the call is not
//! carried out, one line reports it, and the process ends. No code of ours makes such a call, so the thread
//! runs foreign code; there is nothing to save in this process.
#![allow(unsafe_code)] // a signal handler

use std::io;
use std::mem::MaybeUninit;

/// Exit status of a daemon that ended so. The supervisor starts another one.
pub const EXIT_CODE: i32 = 71;

/// Installs the handler of SIGSYS. To be called before any filter is in force.
pub fn watch() -> io::Result<()> {
    // SAFETY: a zeroed sigaction is valid; the handler is async-signal-safe (write, prctl, _exit) and takes
    // the three arguments that SA_SIGINFO announces.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    /// The part of `siginfo_t` that SIGSYS fills in (sigaction(2)), behind three ints and padding.
    #[repr(C)]
    struct Sys {
        _head: [libc::c_int; 4],
        _address: usize,
        call: libc::c_int,
    }
    let mut name = [0u8; 16];
    // SAFETY: the kernel passes a valid siginfo_t, longer than `Sys`; PR_GET_NAME writes 16 bytes.
    let call = unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        (*info.cast::<Sys>()).call
    };
    let mut line = Line::default();
    line.push(b"ERROR confinement violated: thread ");
    line.push(name.split(|&byte| byte == 0).next().unwrap_or_default());
    line.push(b" attempted system call ");
    line.push_number(call.unsigned_abs());
    line.push(b"; it was not carried out, the daemon ends\n");
    // SAFETY: a buffer of this function, its length within it.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
        libc::_exit(EXIT_CODE);
    }
}

/// Text without allocation.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { bytes: [0; 160], len: 0 }
    }
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_end_in_time() {
        let mut line = Line::default();
        line.push(b"call ");
        [0, 7, 59, u32::MAX].into_iter().for_each(|number| {
            line.push_number(number);
            line.push(b" ");
        });
        assert_eq!(&line.bytes[..line.len], b"call 0 7 59 4294967295 ");
        line.push(&[b'x'; 500]);
        assert_eq!(line.len, line.bytes.len());
    }
}
