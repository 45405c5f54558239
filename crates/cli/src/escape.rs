//! Names, paths and attribute values, which can hold any byte: how they are printed, and how they
//! look in JSON.

use std::fmt::Write as _;

use serde::{Serialize, Serializer};

/// Printable text as it is; other characters, and bytes that are no text, as escapes.
pub(crate) fn escape(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_escaped(&mut text, character);
        }
        for byte in chunk.invalid() {
            push_byte(&mut text, *byte);
        }
    }
    text
}

/// A message, with escapes for what a terminal would obey.
pub(crate) fn escape_controls(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        push_escaped_control(&mut text, character);
    }
    text
}

fn push_escaped(text: &mut String, character: char) {
    match character {
        '\\' => text.push_str("\\\\"),
        c => push_escaped_control(text, c),
    }
}

fn push_escaped_control(text: &mut String, character: char) {
    match character {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        '\r' => text.push_str("\\r"),
        // Control characters, and those that change the direction or the look of what follows.
        c if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}') =>
        {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                push_byte(text, byte);
            }
        }
        c => text.push(c),
    }
}

fn push_byte(text: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    write!(text, "\\x{byte:02x}").unwrap_or_default();
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap_or_default();
    }
    text
}

/// A name in JSON: a string if it is UTF-8, else an object `{"hex": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonBytes(pub(crate) Vec<u8>);

impl From<&[u8]> for JsonBytes {
    fn from(name: &[u8]) -> Self {
        Self(name.to_vec())
    }
}

impl Serialize for JsonBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Hex {
            hex: String,
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Hex { hex: hex(&self.0) }.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        assert_eq!(escape("caf\u{e9} \u{1b}[1m\n".as_bytes()), "caf\u{e9} \\x1b[1m\\n");
        assert_eq!(escape(b"a\\b\xff"), "a\\\\b\\xff");
        assert_eq!(escape("\u{202e}".as_bytes()), "\\xe2\\x80\\xae");
    }

    #[test]
    fn json_names_are_text_or_hexadecimal() {
        let json = |name: &[u8]| serde_json::to_string(&JsonBytes::from(name)).unwrap();
        assert_eq!(json("\u{e9}\"".as_bytes()), "\"\u{e9}\\\"\"");
        assert_eq!(json(b"\xe9"), "{\"hex\":\"e9\"}");
    }
}
