//! From places in the text to lines that a reader finds.

use super::Problem;

/// A syntax error, an unknown key or a value of the wrong type: the line says which.
pub fn not_understood(text: &str, error: &toml::de::Error) -> Problem {
    let message = error.message().trim().replace('\n', ", ");
    let Some(span) = error.span() else { return Problem { line: None, text: message } };
    let number = line_of(text, span.start);
    let source = text.lines().nth(number - 1).unwrap_or_default().trim();
    let text = if source.is_empty() { message } else { format!("{message}, in `{source}`") };
    Problem { line: Some(number), text }
}

pub fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
