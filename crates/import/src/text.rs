//! Text in the encoding that its file names. Bytes that are none of it are written as `\xC4`, each
//! by itself: names that differ in them stay different.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};

/// The encoding of a name that VMware or XML uses for one. None: it is not known, or UTF-16, which a file is
/// not whose own text has the name.
pub fn encoding(label: &str) -> Option<&'static Encoding> {
    // Windows' numbers of code pages, where the web has other names for them.
    let label = label.trim().to_ascii_lowercase();
    let label = match label.as_str() {
        "windows-932" | "cp932" => "shift_jis",
        "windows-936" | "cp936" => "gbk",
        "windows-950" | "cp950" => "big5",
        other => other,
    };
    let found = Encoding::for_label(label.as_bytes());
    found.filter(|found| ![encoding_rs::UTF_16LE, encoding_rs::UTF_16BE].contains(found))
}

/// Text of bytes in an encoding.
pub fn decoded<'a>(bytes: &'a [u8], encoding: &'static Encoding) -> Cow<'a, str> {
    let text = encoding.decode_without_bom_handling_and_without_replacement(bytes);
    text.unwrap_or_else(|| Cow::Owned(escaped(bytes)))
}

/// UTF-8, and all other bytes by their numbers.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")));
    }
    text
}

/// Has this text a byte by its number?
pub fn has_escapes(text: &str) -> bool {
    let mut parts = text.split("\\x").skip(1);
    parts.any(|rest| {
        let digits = rest.as_bytes().first_chunk::<2>();
        // Bytes of ASCII are never written so.
        digits.is_some_and(|[high, low]| b"89ABCDEF".contains(high) && low.is_ascii_hexdigit())
    })
}

/// A document of XML, in the encoding of its declaration.
pub fn xml(bytes: &[u8]) -> Cow<'_, str> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    decoded(bytes, declared(bytes).and_then(encoding).unwrap_or(UTF_8))
}

/// `<?xml version="1.0" encoding="GBK"?>`
fn declared(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().take(256).position(|byte| *byte == b'>')?;
    let declaration = std::str::from_utf8(bytes.get(..end)?).ok()?.strip_prefix("<?xml")?;
    let (_, rest) = declaration.split_once("encoding")?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let mark = rest.chars().next().filter(|mark| "\"'".contains(*mark))?;
    rest.get(1..)?.split(mark).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_in_the_encoding_of_its_file() {
        let document = b"<?xml version='1.0' encoding='GBK'?><a>\xcd\xf8\xc2\xe7\xd2\xbb</a>";
        assert!(xml(document).ends_with("<a>网络一</a>"));
        let not_so = "<?xml version=\"1.0\" encoding=\"UTF-16\"?><a/>";
        assert_eq!(xml(not_so.as_bytes()), not_so);
        for label in ["GBK", "windows-936", "Shift_JIS", "windows-1252", "UTF-8", "ISO-8859-1", "Big5"] {
            assert!(encoding(label).is_some(), "{label}");
        }
        assert!(encoding("klingon").is_none() && encoding("UTF-16").is_none());
    }

    #[test]
    fn bytes_of_no_encoding_stay_apart() {
        let [one, other] =
            [b"\xcd\xf8\xd2\xbb", b"\xcd\xf8\xb6\xfe"].map(|name| decoded(name, UTF_8).into_owned());
        assert_eq!(one, "\\xCD\\xF8һ");
        assert!(one != other && has_escapes(&one) && has_escapes(&other));
        assert!(!has_escapes("C:\\x\\xy") && !has_escapes("网络一"));
    }
}
