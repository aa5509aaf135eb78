//! Takes out of rows what names a machine or its user.

use serde_json::Value;

use crate::rows::Row;

/// Names that must not travel, and what stands in their place.
pub struct Private {
    names: Vec<(String, &'static str)>,
}

impl Private {
    pub fn of_this_machine() -> Private {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let users = ["USER", "LOGNAME", "SUDO_USER"].map(variable).into_iter().map(|user| (user, "<user>"));
        Private::of([(host, "<host>"), (short, "<host>")].into_iter().chain(users))
    }

    fn of(names: impl IntoIterator<Item = (String, &'static str)>) -> Private {
        // Root is everywhere, and tells nothing.
        let names = names.into_iter().filter(|(name, _)| !name.is_empty() && name != "root");
        Private { names: names.collect() }
    }

    /// Hides it in what a row has of others' words. The factors, which are the plan's, stay.
    pub fn hide(&self, row: &mut Row) {
        row.log = None;
        row.failed = row.failed.take().map(|text| self.text(&text));
        self.value(&mut row.report);
        // A checkout's own words may stand behind the kernel's version, as another host's name.
        row.setup.host_kernel = self.text(&row.setup.host_kernel);
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|value| self.value(value)),
            Value::Object(map) => map.values_mut().for_each(|value| self.value(value)),
            _ => {}
        }
    }

    /// Words are what stands between blanks, quotes and brackets.
    fn text(&self, text: &str) -> String {
        let is_edge = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;=".contains(c);
        text.split_inclusive(is_edge)
            .map(|part| {
                let edge = part.chars().next_back().filter(|c| is_edge(*c));
                let word = edge.map_or(part, |edge| &part[..part.len() - edge.len_utf8()]);
                self.word(word) + &edge.map(String::from).unwrap_or_default()
            })
            .collect()
    }

    fn word(&self, word: &str) -> String {
        // `unix:/run/x`, `/home/x:12:` and the like are paths, too; `1/s` is none.
        if word.starts_with('/') && word.len() > 1 || word.contains(":/") || word.starts_with("~/") {
            return "<path>".into();
        }
        if has_mac(word) {
            return "<mac>".into();
        }
        self.names.iter().fold(word.to_owned(), |text, (name, instead)| replace_whole(&text, name, instead))
    }
}

/// Six pairs of hexadecimal digits with colons or hyphens between.
fn has_mac(word: &str) -> bool {
    let is_mac = |bytes: &[u8]| {
        bytes.iter().enumerate().all(|(at, byte)| match at % 3 {
            2 => *byte == b':' || *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    word.as_bytes().windows(17).any(is_mac)
}

/// Replaces a name where no letter or digit stands beside it.
fn replace_whole(text: &str, name: &str, instead: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let alone = !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric);
        done += before;
        done += if alone { instead } else { name };
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_paths_and_addresses_are_hidden_and_the_rest_is_kept() {
        let private =
            Private::of([("hal.lab".into(), "<host>"), ("hal".into(), "<host>"), ("anna".into(), "<user>")]);
        for (text, hidden) in [
            ("cannot read /home/anna/x.toml: no", "cannot read <path> no"),
            ("(unix:/run/v.sock) at 12 1/s", "(<path>) at 12 1/s"),
            (
                "hal.lab: hal-2 said halt to anna, \"anna@hal\"",
                "<host>: <host>-2 said halt to <user>, \"<user>@<host>\"",
            ),
            ("eth0 52:54:00:aa:BB:cc is up", "eth0 <mac> is up"),
            ("no result in 92 s, guest b", "no result in 92 s, guest b"),
        ] {
            assert_eq!(private.text(text), hidden);
        }
        let mut row = Row { log: Some("secret".into()), tool: "hal".into(), ..Row::default() };
        row.report = serde_json::json!({ "local": ["hal", { "path": "~/x" }], "bytes": 5 });
        private.hide(&mut row);
        assert_eq!((row.log, row.tool.as_str()), (None, "hal"));
        assert_eq!(row.report, serde_json::json!({ "local": ["<host>", { "path": "<path>" }], "bytes": 5 }));
        assert_eq!(
            Private::of([(String::new(), "<user>"), ("root".into(), "<user>")]).text("root x"),
            "root x"
        );
    }
}
