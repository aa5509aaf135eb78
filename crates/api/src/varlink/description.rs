//! The description of the interface: what each call takes, and what it gives, found from the types in the
//! table of [calls](crate::calls) by [`trace`](crate::trace).

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::INTERFACE;
use crate::answer::ErrorCode;
use crate::calls::CALLS;
use crate::trace::{Members, Types, Untraceable};

/// The description of [`INTERFACE`] in Varlink's language.
pub fn description() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| write().unwrap_or_else(|error| format!("# {error}\n")));
    &TEXT
}

pub(super) fn write() -> Result<String, Untraceable> {
    let mut types = Types::new();
    let mut methods = String::new();
    for row in CALLS {
        // In this order: some calls are named as their answers.
        let takes = (row.takes)(&mut types)?;
        let takes: Vec<String> = takes.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
        let gives = members(&(row.gives)(&mut types)?);
        let (name, what, needs, takes) = (row.name, row.what(), row.needs.name(), takes.join(", "));
        let _ = write!(methods, "\n# {what} Needs \"{needs}\".\nmethod {name}({takes}) -> {gives}\n");
    }
    let mut text = format!(
        "# The daemon's control socket. A process may call what [[control]] of the configuration grants to it; root and the\n\
         # daemon's user may call everything.\ninterface {INTERFACE}\n"
    );
    for (name, fields) in &types {
        let _ = write!(text, "\ntype {name} {}\n", members(fields));
    }
    text += &methods;
    text.push('\n');
    for code in ErrorCode::ALL {
        let _ = writeln!(text, "error {} (message: string)", code.name());
    }
    Ok(text)
}

fn members(fields: &Members) -> String {
    if fields.is_empty() {
        return "()".into();
    }
    let lines: Vec<String> = fields.iter().map(|(name, kind)| format!("  {name}: {kind}")).collect();
    format!("(\n{}\n)", lines.join(",\n"))
}
