//! Text in HTML: what would be markup is written so that it is read as text. Backticks around code are the one thing
//! that has a meaning, in [`Prose`].

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

/// Shows a text as itself, with what stands between backticks as code. A backtick without its second is itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prose<'a>(pub(super) &'a str);

impl fmt::Display for Prose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((before, code, after)) = first_code(rest) {
            write!(f, "{}<code>{}</code>", Escaped(before), Escaped(code))?;
            rest = after;
        }
        Escaped(rest).fmt(f)
    }
}

/// What is before the first pair of backticks, in it and after it.
fn first_code(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('`')?;
    let (code, after) = rest.split_once('`')?;
    Some((before, code, after))
}

#[cfg(test)]
mod tests {
    use super::{Escaped, Prose};

    #[test]
    fn what_stands_between_backticks_is_code() {
        assert_eq!(
            Prose("of `a < b` and `c`, not ` <d>").to_string(),
            "of <code>a &lt; b</code> and <code>c</code>, not ` &lt;d&gt;"
        );
        assert_eq!(Prose("plain & simple").to_string(), "plain &amp; simple");
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(Escaped("<a b=\"c\">'&").to_string(), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;");
    }
}
