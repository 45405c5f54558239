//! Text in HTML: what would be markup is written so that it is read as text.

use std::fmt;

/// Shows a text as itself, in text and in quoted attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => write!(f, "{other}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Escaped;

    #[test]
    fn markup_is_text() {
        assert_eq!(Escaped("<a b=\"c\">'&").to_string(), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;");
    }
}
