//! Dirty logging: a bit a page that the device has written, in memory that the VMM reads while it migrates
//! the guest (VHOST_F_LOG_ALL).

use std::sync::Arc;

use vmlane_mem::Window;

/// A page is 4096 bytes here, whatever the host's are (VHOST_LOG_PAGE).
const PAGE: u32 = 12;

/// A bitmap over the guest's addresses, page 0 first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DirtyLog(Arc<Window>);

impl DirtyLog {
    /// A window of whole 32-bit words.
    pub fn new(window: Arc<Window>) -> DirtyLog {
        DirtyLog(window)
    }

    /// The bytes `[addr, addr + len)` were written before. Pages beyond the bitmap are ignored.
    pub fn mark(&self, addr: u64, len: usize) {
        let Some(last) = len.checked_sub(1).and_then(|rest| addr.checked_add(rest as u64)) else { return };
        let pages = self.0.len() as u64 / 4 * 32;
        let (mut page, end) = (addr >> PAGE, (last >> PAGE).saturating_add(1).min(pages));
        while page < end {
            // A locked instruction even for bits that are set: the VMM may be fetching them.
            let word = page / 32;
            let upto = end.min((word + 1) * 32);
            let bits = (page..upto).fold(0, |bits, page| bits | 1 << (page % 32));
            self.0.set_bits_u32(word as usize * 4, bits);
            page = upto;
        }
    }

    pub fn poisoned(&self) -> bool {
        self.0.poisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_marked_and_nothing_beside_them() {
        let (window, _fd) = Window::of_file("log", 4096).unwrap();
        let window = Arc::new(window);
        let log = DirtyLog::new(window.clone());
        let set = || -> Vec<u64> {
            let bit = |page: &u64| window.load_u32(*page as usize / 32 * 4) >> (page % 32) & 1 != 0;
            (0..4096 * 8).filter(bit).collect()
        };
        log.mark(0x5000, 0);
        assert!(set().is_empty());
        log.mark(0x5fff, 2);
        assert_eq!(set(), [5, 6]);
        log.mark(30 << 12, 5 << 12);
        assert_eq!(set(), [5, 6, 30, 31, 32, 33, 34]);
        // Beyond the bitmap, across its end, around the end of all addresses.
        log.mark((4096 * 8) << 12, 4096);
        log.mark((4096 * 8 - 1) << 12, 1 << 20);
        log.mark(u64::MAX, 4096);
        log.mark(u64::MAX - 4095, 4096);
        assert_eq!(set(), [5, 6, 30, 31, 32, 33, 34, 4096 * 8 - 1]);
    }
}
