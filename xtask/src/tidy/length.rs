//! How long files and functions may be. Functions are found among tokens, not lines, so those
//! inside macro calls (property tests, `macro_rules`) count too. Called by `tidy` for Rust files.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::finding::Report;
use super::source::SourceFile;

/// Past this a file holds more than one noun.
const FILE_LINES_MAX: usize = 900;
/// Past this a function no longer fits on a screen; the same number as in clippy.toml.
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn check_file(file: &SourceFile, report: &mut Report) {
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let message = format!("file has {lines} lines, more than {FILE_LINES_MAX}");
        report.add(&file.path, lines, message);
    }
}

pub(crate) fn check_functions(file: &SourceFile, tokens: TokenStream, report: &mut Report) {
    let mut functions = Vec::new();
    collect(tokens, &mut functions);
    for function in functions {
        let lines = function.last_line + 1 - function.first_line;
        if lines > FUNCTION_LINES_MAX {
            let name = function.name;
            let message = format!("fn {name} has {lines} lines, more than {FUNCTION_LINES_MAX}");
            report.add(&file.path, function.first_line, message);
        }
    }
}

/// A function with a body; its first line is that of the word `fn`, so documentation and
/// attributes are free.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    first_line: usize,
    last_line: usize,
}

fn collect(tokens: TokenStream, found: &mut Vec<Function>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Ident(word) if word == "fn" => {
                found.extend(function_at(word.span().start().line, &trees[index + 1..]));
            }
            TokenTree::Group(group) => collect(group.stream(), found),
            _ => {}
        }
    }
}

/// The function whose name begins `rest`; none for a function type or one without a body.
fn function_at(first_line: usize, rest: &[TokenTree]) -> Option<Function> {
    let name = match rest {
        [TokenTree::Ident(name), ..] => name.to_string(),
        [TokenTree::Punct(dollar), TokenTree::Ident(name), ..] if dollar.as_char() == '$' => {
            format!("${name}")
        }
        _ => return None,
    };
    Some(Function { name, first_line, last_line: body_end(rest)? })
}

/// The line of the brace that closes the body. A brace before a `>` is a const argument.
fn body_end(rest: &[TokenTree]) -> Option<usize> {
    for (index, tree) in rest.iter().enumerate() {
        match tree {
            TokenTree::Punct(mark) if mark.as_char() == ';' => return None,
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && !is_closing_angle(rest, index + 1) =>
            {
                return Some(group.span_close().end().line);
            }
            _ => {}
        }
    }
    None
}

fn is_closing_angle(trees: &[TokenTree], index: usize) -> bool {
    matches!(trees.get(index), Some(TokenTree::Punct(mark)) if mark.as_char() == '>')
}

#[cfg(test)]
mod tests {
    use super::{FILE_LINES_MAX, FUNCTION_LINES_MAX, check_file, check_functions};
    use crate::tidy::finding::Report;
    use crate::tidy::source::SourceFile;

    fn functions_found(text: &str) -> Vec<String> {
        let mut report = Report::default();
        let tokens = text.parse().expect("tests write Rust");
        check_functions(&SourceFile::new("a.rs", text), tokens, &mut report);
        report.into_sorted().iter().map(ToString::to_string).collect()
    }

    /// A body that makes its function `lines` lines long.
    fn body(lines: usize) -> String {
        format!("{{\n{}}}", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_at_the_limit_passes() {
        assert!(functions_found(&format!("fn fits() {}", body(FUNCTION_LINES_MAX))).is_empty());
    }

    #[test]
    fn a_function_over_the_limit_is_named() {
        let text = format!("\n/// Words.\nfn grows() {}", body(FUNCTION_LINES_MAX + 1));
        assert_eq!(functions_found(&text), ["a.rs:3: fn grows has 71 lines, more than 70"]);
    }

    #[test]
    fn a_function_inside_a_macro_call_counts() {
        let text = format!("proptest! {{ fn p(n in 0..9u8) {} }}", body(FUNCTION_LINES_MAX + 1));
        assert_eq!(functions_found(&text).len(), 1);
    }

    #[test]
    fn a_method_of_a_long_impl_is_measured_alone() {
        let methods = "fn one(&self) {\n}\n".repeat(FUNCTION_LINES_MAX);
        assert!(functions_found(&format!("impl Long {{\n{methods}}}")).is_empty());
    }

    #[test]
    fn braces_in_strings_const_arguments_and_signatures_are_not_bodies() {
        let text = format!(
            "trait T {{ fn no_body(&self); }}\nfn a(f: fn(u8) -> u8) -> Row<{{ 4 }}> {}",
            body(FUNCTION_LINES_MAX + 1).replacen("work();", "say(\"}\");", 1)
        );
        assert_eq!(functions_found(&text), ["a.rs:2: fn a has 71 lines, more than 70"]);
    }

    #[test]
    fn only_a_file_over_the_limit_is_reported() {
        for (lines, findings) in [(FILE_LINES_MAX, 0), (FILE_LINES_MAX + 1, 1)] {
            let mut report = Report::default();
            check_file(&SourceFile::new("a.rs", &"//\n".repeat(lines)), &mut report);
            assert_eq!(report.lines().len(), findings);
        }
    }
}
