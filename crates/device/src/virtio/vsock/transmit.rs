//! The transmit ring of one VM's device: chains that are completed, and how far the first one is that is not.

use std::sync::{Arc, Weak};

use atomic_refcell::AtomicRefCell;

use crate::virtio::queue::{Queue, Taken};

use super::kept::{Kept, Part, Shown, Transaction, Words};

/// Shared by the rings' owner and the worker's transaction: all are on one thread.
pub type Outlet = AtomicRefCell<Transmit>;

pub struct Transmit {
    pub ring: Queue,
    /// Of the packet that waits for its receiver, if one does.
    pub part: Part,
    /// The driver wants to be called: packets of it are sent.
    calls: bool,
    added: bool,
    transaction: Arc<Transaction>,
    kept: Arc<Kept>,
    me: Weak<Outlet>,
}

impl Transmit {
    pub fn new(ring: Queue, transaction: Arc<Transaction>, kept: Arc<Kept>) -> Arc<Outlet> {
        let part = kept.part();
        Arc::new_cyclic(|me| {
            let me = me.clone();
            Outlet::new(Transmit { ring, part, calls: false, added: false, transaction, kept, me })
        })
    }

    /// The packet in this chain is delivered or dropped. Its driver sees it with the next commit.
    pub fn complete(&mut self, taken: &Taken) {
        self.ring.complete(taken.id(), taken.count(), 0);
        self.part = Part::default();
        self.add();
    }

    /// The packet that was read last waits for its receiver.
    pub fn keep(&mut self, part: Part) {
        self.part = part;
        self.add();
    }

    fn add(&mut self) {
        if !std::mem::replace(&mut self.added, true)
            && let Some(me) = self.me.upgrade()
        {
            self.transaction.add(me);
        }
    }

    pub fn set_transaction(&mut self, transaction: Arc<Transaction>) {
        self.transaction = transaction;
    }

    /// Is the driver to be called? Once.
    pub fn take_calls(&mut self) -> bool {
        std::mem::take(&mut self.calls)
    }
}

impl Shown for Transmit {
    fn note(&mut self, words: &mut Words) {
        words.note_ring(&self.kept, &self.ring);
        words.note_part(&self.kept, self.part);
    }

    fn show(&mut self) {
        self.added = false;
        self.calls |= self.ring.publish();
    }
}
