//! What checks need to know of a file's tokens: marks, and which items are compiled for tests and models
//! only. Called by `circle` and `type_names`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

pub(super) fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
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

/// The index behind the item that begins at `at`: its `;`, or its block.
fn after_item(tokens: &[TokenTree], at: usize) -> usize {
    let ends = |token: &TokenTree| {
        is_mark(token, ';')
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
    };
    let is_use = tokens[at..]
        .iter()
        .take(4)
        .any(|token| matches!(token, TokenTree::Ident(word) if word == "use"));
    (at..tokens.len())
        .find(|&index| if is_use { is_mark(&tokens[index], ';') } else { ends(&tokens[index]) })
        .map_or(tokens.len(), |index| index + 1)
}
