//! A journal's file for tests: one whose writer is killed between any two stores of a word, or one of `loom`,
//! which tries every order in which another thread may see them.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};

/// Bytes in front of the halves, of which only the first are used.
const FRONT: usize = 4096;
const FRONT_WORDS: usize = 8;

/// What the writer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Right,
    /// It publishes a word before what was written ahead of it.
    WordFirst,
    /// It publishes a word without an order.
    WordRelaxed,
}

struct Words {
    words: Vec<AtomicU64>,
    writer: Writer,
}

thread_local! {
    /// Words that may still be stored; all others are those of a killed process.
    static STORES_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// One was not stored.
    static KILLED: Cell<bool> = const { Cell::new(false) };
    /// A killed copy had begun with its last word.
    static BACKWARDS: Cell<bool> = const { Cell::new(false) };
    /// What a writer that publishes too early has still to store.
    static LATE: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
    /// The file of the model that runs in this thread: all threads of a model do.
    static MODEL: RefCell<Option<Arc<Words>>> = const { RefCell::new(None) };
}

/// Has `act` run until it has stored `stores` words. Returns whether it was killed before it was done.
pub fn kill_after(stores: usize, backwards: bool, act: impl FnOnce()) -> bool {
    STORES_LEFT.set(Some(stores));
    BACKWARDS.set(backwards);
    KILLED.set(false);
    act();
    STORES_LEFT.set(None);
    KILLED.get()
}

/// Every file made from here on is this one, of halves of `half` bytes.
pub fn begin(half: usize, writer: Writer) {
    let words = (0..FRONT_WORDS + 2 * half / 8).map(|_| AtomicU64::new(0)).collect();
    LATE.take();
    MODEL.set(Some(Arc::new(Words { words, writer })));
}

/// As [`vmlane_mem::Window`], in as far as a journal uses it.
pub struct Window {
    file: vmlane_mem::Window,
    model: Option<Arc<Words>>,
}

/// The word of the model at `offset`.
fn place(offset: usize) -> usize {
    if offset < FRONT { offset / 8 } else { FRONT_WORDS + (offset - FRONT) / 8 }
}

impl Window {
    fn new(file: vmlane_mem::Window) -> Window {
        Window { file, model: MODEL.with_borrow(Option::clone) }
    }

    pub fn of_file(name: &str, len: u64) -> io::Result<(Window, OwnedFd)> {
        let (window, file) = vmlane_mem::Window::of_file(name, len)?;
        Ok((Window::new(window), file))
    }

    pub fn over_file(file: &OwnedFd, len: u64) -> io::Result<Window> {
        Ok(Window::new(vmlane_mem::Window::over_file(file, len)?))
    }

    /// One store more, unless the process is dead.
    pub fn may_store(&self) -> bool {
        match STORES_LEFT.get() {
            None => true,
            Some(0) => {
                KILLED.set(true);
                false
            }
            Some(left) => {
                STORES_LEFT.set(Some(left - 1));
                true
            }
        }
    }

    pub fn load_u64(&self, offset: usize) -> u64 {
        match &self.model {
            Some(model) => model.words[place(offset)].load(Ordering::Acquire),
            None => self.file.load_u64(offset),
        }
    }

    pub fn load_u32(&self, offset: usize) -> u32 {
        match &self.model {
            Some(_) => (self.load_u64(offset & !7) >> (8 * (offset & 4))) as u32,
            None => self.file.load_u32(offset),
        }
    }

    pub fn store_u64(&self, offset: usize, value: u64) {
        let Some(model) = &self.model else {
            if self.may_store() {
                self.file.store_u64(offset, value);
            }
            return;
        };
        let order = if model.writer == Writer::WordRelaxed { Ordering::Relaxed } else { Ordering::Release };
        model.words[place(offset)].store(value, order);
        for (at, word) in LATE.take() {
            model.words[at].store(word, Ordering::Relaxed);
        }
    }

    pub fn store_u32(&self, offset: usize, value: u32) {
        let Some(model) = &self.model else { return self.file.store_u32(offset, value) };
        // Only before the file has readers.
        let (word, shift) = (&model.words[place(offset)], 8 * (offset & 4));
        let rest = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        word.store(rest | u64::from(value) << shift, Ordering::Relaxed);
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let Some(model) = &self.model else { return self.file.read(offset, out) };
        for (index, bytes) in out.chunks_mut(8).enumerate() {
            let word = model.words[place(offset) + index].load(Ordering::Relaxed);
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Copies bytes in, a word at a time.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let Some(model) = &self.model else {
            let words = data.len().div_ceil(8);
            let order = |index| if BACKWARDS.get() { words - 1 - index } else { index };
            for at in (0..words).map(order).map(|word| 8 * word) {
                if self.may_store() {
                    self.file.write(offset + at, &data[at..data.len().min(at + 8)]);
                }
            }
            return;
        };
        for (index, bytes) in data.chunks_exact(8).enumerate() {
            let (at, word) = (place(offset) + index, u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            match model.writer {
                Writer::WordFirst => LATE.with_borrow_mut(|late| late.push((at, word))),
                _ => model.words[at].store(word, Ordering::Relaxed),
            }
        }
    }
}
