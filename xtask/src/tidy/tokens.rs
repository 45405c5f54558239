//! What checks need to know of a file's tokens: punctuation, and which items are compiled for tests and models
//! only. Called by `circle` and `type_names`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

pub(super) fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// The index behind the attribute that begins at `at`, and behind its item if that is compiled for tests or models only.
pub(super) fn after_attribute(tokens: &[TokenTree], at: usize) -> usize {
    match tokens.get(at + 1) {
        Some(TokenTree::Group(group)) if names_tests(&group.stream()) => after_item(tokens, at + 2),
        _ => at + 2,
    }
}

/// Whether an attribute's content is a `cfg` of tests or models.
fn names_tests(attribute: &TokenStream) -> bool {
    let text = attribute.to_string().replace(' ', "");
    text.starts_with("cfg(")
        && !text.contains("not(")
        && (text.contains("test") || text.contains("loom"))
}

/// The index behind the item that begins at `at`: its `;`, or its block. A field or variant ends with its comma.
fn after_item(tokens: &[TokenTree], at: usize) -> usize {
    if is_field(&tokens[at..]) {
        return after_field(tokens, at);
    }
    let ends = |token: &TokenTree| {
        is_punct(token, ';')
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
    };
    let is_use = tokens[at..]
        .iter()
        .take(4)
        .any(|token| matches!(token, TokenTree::Ident(word) if word == "use"));
    (at..tokens.len())
        .find(|&index| if is_use { is_punct(&tokens[index], ';') } else { ends(&tokens[index]) })
        .map_or(tokens.len(), |index| index + 1)
}

/// Whether a field, or a variant of an enum, begins here: more attributes, a visibility, and a name before one
/// colon, a comma, or its own fields and a comma.
fn is_field(mut tokens: &[TokenTree]) -> bool {
    loop {
        tokens = match tokens {
            [hash, TokenTree::Group(_), rest @ ..] if is_punct(hash, '#') => rest,
            [TokenTree::Ident(word), TokenTree::Group(_), rest @ ..] if word == "pub" => rest,
            [TokenTree::Ident(word), rest @ ..] if word == "pub" => rest,
            [TokenTree::Ident(_), TokenTree::Group(_), end, ..] => return is_punct(end, ','),
            [TokenTree::Ident(_), colon, next, ..] if is_punct(colon, ':') => {
                return !is_punct(next, ':');
            }
            [TokenTree::Ident(_), end, ..] => return is_punct(end, ',') || is_punct(end, '='),
            _ => return false,
        }
    }
}

/// The index behind the comma that ends a field, or behind the end of an assignment; commas between angle brackets belong to
/// its type.
fn after_field(tokens: &[TokenTree], at: usize) -> usize {
    let mut depth = 0_usize;
    for index in at..tokens.len() {
        let token = &tokens[index];
        let is_arrow = index > at && is_punct(&tokens[index - 1], '-');
        if is_punct(token, '<') {
            depth += 1;
        } else if is_punct(token, '>') && !is_arrow {
            depth = depth.saturating_sub(1);
        } else if (is_punct(token, ',') || is_punct(token, ';')) && depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use proc_macro2::{TokenStream, TokenTree};

    use super::after_attribute;

    /// The tokens that are left behind the attribute at the start.
    fn left(text: &str) -> String {
        let tokens: Vec<TokenTree> = text.parse::<TokenStream>().unwrap().into_iter().collect();
        let at = after_attribute(&tokens, 0);
        tokens[at..].iter().cloned().collect::<TokenStream>().to_string()
    }

    #[test]
    fn only_what_the_attribute_is_about_is_passed_over() {
        let cases = [
            ("#[cfg(test)] a: u8, b: A", "b : A"),
            ("#[cfg(test)] pub(crate) a: Map<u8, fn() -> u8>, b: A", "b : A"),
            ("#[cfg(loom)] #[allow(dead_code)] pub a: u8, b: A", "b : A"),
            ("#[cfg(test)] a: u8", ""),
            ("#[cfg(test)] a, b: A", "b : A"),
            ("#[cfg(test)] A, B { b: C }, D;", "B { b : C } , D ;"),
            ("#[cfg(test)] A(u8), B { b: C }", "B { b : C }"),
            ("#[cfg(test)] A { a: u8 }, B { b: C }", "B { b : C }"),
            ("#[cfg(test)] A = 1, B { b: C }", "B { b : C }"),
            ("#[cfg(test)] a = 1; struct C;", "struct C ;"),
            ("#[cfg(test)] A", ""),
            ("#[cfg(test)] a! { b } struct C;", "struct C ;"),
            ("#[cfg(test)] fn f<A, B>(a: A) -> B {} struct C;", "struct C ;"),
            ("#[cfg(test)] use a::{b, c}; struct C;", "struct C ;"),
            ("#[cfg(unix)] a: u8, b: A", "a : u8 , b : A"),
        ];
        for (text, expected) in cases {
            assert_eq!(left(text), expected, "{text}");
        }
    }
}
