//! The states found so far, in the order of their distance from the first.

/// A set of packed states that remembers the order and from where each was reached first.
pub struct Seen {
    order: Vec<u64>,
    parents: Vec<u32>,
    /// Open addressing: positions in `order` plus one.
    table: Vec<u32>,
}

impl Seen {
    pub fn new(first: u64) -> Seen {
        let mut seen = Seen { order: Vec::new(), parents: Vec::new(), table: vec![0; 1 << 12] };
        seen.insert(first, 0);
        seen
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn get(&self, index: usize) -> Option<u64> {
        self.order.get(index).copied()
    }

    fn slot(&self, state: u64) -> usize {
        let mask = self.table.len() - 1;
        // The upper bits of the product depend on all bits of the state.
        let product = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (product >> (64 - self.table.len().trailing_zeros())) as usize;
        while self.table[slot] != 0 && self.order[self.table[slot] as usize - 1] != state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Adds a state unless it is known.
    pub fn insert(&mut self, state: u64, parent: usize) {
        let slot = self.slot(state);
        if self.table[slot] != 0 {
            return;
        }
        self.order.push(state);
        self.parents.push(parent as u32);
        self.table[slot] = self.order.len() as u32;
        if self.order.len() * 2 > self.table.len() {
            self.table = vec![0; self.table.len() * 2];
            for index in 0..self.order.len() {
                let slot = self.slot(self.order[index]);
                self.table[slot] = index as u32 + 1;
            }
        }
    }

    /// The states on a shortest way from the first to the one at `index`.
    pub fn way_to(&self, mut index: usize) -> Vec<u64> {
        let mut way = vec![self.order[index]];
        while index > 0 {
            index = self.parents[index] as usize;
            way.push(self.order[index]);
        }
        way.reverse();
        way
    }
}
