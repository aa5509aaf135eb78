//! Names that vmlane takes: up to 64 letters, digits, `.`, `_` and `-`, a letter or digit first; and strings
//! as its configuration has them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

const LONGEST: usize = 64;

/// Names in use, each once.
#[derive(Debug, Default)]
pub struct Names(BTreeSet<String>);

/// Would vmlane take this name?
pub fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= LONGEST
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

impl Names {
    /// Names, but for one that has a meaning already.
    pub fn without(reserved: &str) -> Names {
        Names(BTreeSet::from([reserved.to_owned()]))
    }

    /// A name that is like `name`, and that no other has.
    pub fn take(&mut self, name: &str, otherwise: &str) -> String {
        let good = tidy(name);
        let good = if good.is_empty() { otherwise.to_owned() } else { good };
        let mut chosen = good.clone();
        let mut number = 2;
        while !self.0.insert(chosen.clone()) {
            let tail = format!("-{number}");
            let kept = good.len().min(LONGEST - tail.len());
            chosen = format!("{}{tail}", good.get(..kept).unwrap_or_default());
            number += 1;
        }
        chosen
    }
}

/// Everything else becomes `-`. ASCII only.
fn tidy(name: &str) -> String {
    let mut good = String::new();
    for letter in name.chars() {
        let keep = letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let letter = if keep { letter } else { '-' };
        let doubled = letter == '-' && good.ends_with('-');
        let too_early = good.is_empty() && !letter.is_ascii_alphanumeric();
        if !doubled && !too_early {
            good.push(letter);
        }
    }
    good.truncate(LONGEST);
    good.truncate(good.trim_end_matches('-').len());
    good
}

/// A string as TOML has it: JSON's escapes are TOML's.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_fit_and_kept_apart() {
        let mut names = Names::default();
        for (name, taken) in [
            ("VM Network", "VM-Network"),
            ("VM/Network", "VM-Network-2"),
            ("--", "x"),
            ("Größe (alt)", "Gr-e-alt"),
            ("..a", "a"),
        ] {
            assert_eq!(names.take(name, "x"), taken);
        }
        assert!(is_name("a--b") && !is_name("VM Network") && !is_name("-a") && !is_name(""));
        assert_eq!(Names::without("default").take("default", "x"), "default-2");
        let long = "n".repeat(100);
        let both = [names.take(&long, "x"), names.take(&long, "x")];
        assert!(both.iter().all(|name| name.len() <= LONGEST) && both[0] != both[1]);
    }
}
