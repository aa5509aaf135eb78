//! Messages of JSON-RPC in a stream: objects one after the other, with nothing between them (RFC 7047,
//! section 4). The end of each is found before any of it is understood, so that its length and depth are
//! bounded however it comes in.

use serde_json::Value;

/// Bytes of the longest message: the first answer about a bridge with some 10,000 ports.
pub const MOST_BYTES: usize = 16 << 20;
/// Arrays and objects in each other; OVSDB needs eight.
pub const MOST_DEPTH: usize = 32;

/// Why a stream cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    TooLong,
    TooDeep,
    NoObject(u8),
    NoJson(String),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::TooLong => write!(out, "a message has more than {MOST_BYTES} bytes"),
            Broken::TooDeep => write!(out, "a message has more than {MOST_DEPTH} levels"),
            Broken::NoObject(byte) => {
                write!(out, "a message begins with byte {byte:#04x}, not with an object")
            }
            Broken::NoJson(why) => write!(out, "a message is not JSON: {why}"),
        }
    }
}

/// What of a stream has come and is no whole message yet.
#[derive(Debug, Default)]
pub struct Framing {
    bytes: Vec<u8>,
    /// How far the scan has come, and what it is in.
    scanned: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Framing {
    /// Adds what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if it has come.
    pub fn message(&mut self) -> Result<Option<Value>, Broken> {
        while let Some(&byte) = self.bytes.get(self.scanned) {
            self.scanned += 1;
            if self.scanned > MOST_BYTES {
                return Err(Broken::TooLong);
            }
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' | b'[' if self.depth > 0 || byte == b'{' => {
                    self.depth += 1;
                    if self.depth > MOST_DEPTH {
                        return Err(Broken::TooDeep);
                    }
                }
                b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    self.bytes.drain(..self.scanned);
                    self.scanned = 0;
                }
                _ if self.depth == 0 => return Err(Broken::NoObject(byte)),
                b'"' => self.in_text = true,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let rest = self.bytes.split_off(self.scanned);
                        let whole = std::mem::replace(&mut self.bytes, rest);
                        self.scanned = 0;
                        let message = serde_json::from_slice(&whole);
                        return message.map(Some).map_err(|error| Broken::NoJson(error.to_string()));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn all(text: &[u8]) -> Result<Vec<Value>, Broken> {
        let mut framing = Framing::default();
        framing.push(text);
        let mut messages = Vec::new();
        while let Some(message) = framing.message()? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[test]
    fn messages_are_found_whatever_is_in_their_texts() {
        let messages = [json!({"a": "}{\"\\"}), json!({"b": [[], {}, "]"]}), json!({})];
        let text: String = messages.iter().map(Value::to_string).collect::<Vec<_>>().join(" \n");
        assert_eq!(all(text.as_bytes()).unwrap(), messages);
        let mut framing = Framing::default();
        let mut found = Vec::new();
        for byte in text.bytes() {
            framing.push(&[byte]);
            found.extend(framing.message().unwrap());
        }
        assert_eq!(found, messages);
    }

    #[test]
    fn what_is_no_message_ends_the_stream() {
        assert_eq!(all(b"[1]"), Err(Broken::NoObject(b'[')));
        assert_eq!(all(b"  nul"), Err(Broken::NoObject(b'n')));
        assert!(matches!(all(b"{\"a\":}"), Err(Broken::NoJson(_))));
        assert!(matches!(all(b"{]"), Err(Broken::NoJson(_))));
        assert_eq!(all("{\"a\":[".repeat(20).as_bytes()), Err(Broken::TooDeep));
        let mut framing = Framing::default();
        framing.push(b"{\"a\":\"");
        let block = vec![b'x'; 1 << 20];
        let broken = (0..32).find_map(|_| {
            framing.push(&block);
            framing.message().err()
        });
        assert_eq!(broken, Some(Broken::TooLong));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "[\\[\\]{}\",:a1 \\\\]{0,60}") {
            let _ = all(&bytes);
            let _ = all(text.as_bytes());
        }
    }
}
