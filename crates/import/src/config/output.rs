//! What is written: the configuration, and what is otherwise than it was.

use crate::machine::Note;
use crate::names::Names;

/// vmlane's own switch, and its port group.
const RESERVED: &str = "default";

/// What is written, and the names in it.
pub struct Output {
    pub toml: String,
    pub notes: Vec<Note>,
    /// Of everything but VMs and interfaces: vmlane has a port group for each switch, by its name.
    pub names: Names,
    pub interfaces: Names,
}

impl Output {
    pub fn new() -> Output {
        let (toml, notes, interfaces) = Default::default();
        Output { toml, notes, names: Names::without(RESERVED), interfaces }
    }

    pub fn note(&mut self, what: impl Into<String>, then: impl Into<String>) {
        self.notes.push(Note { what: what.into(), then: then.into() });
    }
}
