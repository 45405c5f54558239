//! `links DIR`: the links of a built book. Every link to a page or to a part of one must lead there; links to other sites are
//! left alone. `tidy` checks the sources, which do not show what the book leaves out or how it names the parts of a page.
//! Called by `main`.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

/// The page for printing repeats all others, and a server answers 404.html for paths that do not exist.
const LEFT_OUT: [&str; 2] = ["print.html", "404.html"];

/// Prints the links that lead nowhere.
pub(crate) fn run(root: &Path) -> ExitCode {
    match check(root) {
        Ok(result) => {
            for (page, link) in &result.broken {
                println!("{}: {link} leads nowhere", page.display());
            }
            let (pages, links, broken) = (result.pages, result.links, result.broken.len());
            println!("{pages} pages, {links} links, {broken} of them broken");
            if broken == 0 && pages > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("xtask links: {}: {error}", root.display());
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Default)]
struct BookLinks {
    pages: usize,
    links: usize,
    broken: Vec<(PathBuf, String)>,
}

#[derive(Debug)]
struct Page {
    links: Vec<String>,
    ids: HashSet<String>,
}

fn check(root: &Path) -> Result<BookLinks, Box<dyn Error>> {
    let mut pages = BTreeMap::new();
    read_pages(root, Path::new(""), &mut pages)?;
    let mut result = BookLinks { pages: pages.len(), ..BookLinks::default() };
    for (path, page) in &pages {
        for link in &page.links {
            result.links += 1;
            if !leads_somewhere(root, path, link, &pages) {
                result.broken.push((path.clone(), link.clone()));
            }
        }
    }
    Ok(result)
}

/// The pages in a folder of the book, by their paths below its root.
fn read_pages(root: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            read_pages(root, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html")
            && !LEFT_OUT.iter().any(|other| name == *other)
        {
            let text = fs::read_to_string(entry.path())?;
            let of = |names: &[&str]| {
                names.iter().flat_map(|name| values(&text, name)).collect::<Vec<_>>()
            };
            let page = Page {
                links: of(&["href", "src"]),
                ids: of(&["id", "name"]).into_iter().collect(),
            };
            pages.insert(path, page);
        }
    }
    Ok(())
}

/// The values of an attribute in all tags of a page.
fn values(text: &str, name: &str) -> Vec<String> {
    let wanted = format!(" {name}=\"");
    let tags = text.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
    let of_tag = |tag: &str| {
        let tag = tag.replace('\n', " ");
        tag.split_once(&wanted)
            .and_then(|(_, rest)| Some(rest.split_once('"')?.0.replace("&amp;", "&")))
    };
    tags.filter_map(of_tag).filter(|value| !value.is_empty()).collect()
}

fn leads_somewhere(root: &Path, page: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> bool {
    let is_elsewhere = link.starts_with("//")
        || link.split_once(':').is_some_and(|(scheme, _)| !scheme.contains(['/', '#', '?']));
    if is_elsewhere {
        return true;
    }
    let (path, part) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or_default();
    let target =
        if path.is_empty() { Some(page.to_owned()) } else { resolve(page, &decoded(path)) };
    let Some(target) = target else { return false };
    match pages.get(&target) {
        Some(found) => part.is_empty() || found.ids.contains(&decoded(part)),
        None => root.join(target).is_file(),
    }
}

/// The path below the root of what a page links to; `None` outside of the book.
fn resolve(page: &Path, path: &str) -> Option<PathBuf> {
    let mut found = page.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                if !found.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(found)
}

/// Without the `%41` of URLs.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links of the page a/page.html that lead nowhere.
    fn broken(body: &str) -> Vec<String> {
        let book = tempfile::tempdir().expect("a folder");
        fs::create_dir(book.path().join("a")).expect("a folder");
        let other = "<h1 id=\"über-uns\">x</h1><a\nname=\"b\">y</a>";
        let files = [
            ("a/page.html", body),
            ("other.html", other),
            ("style.css", ""),
            ("404.html", "<a href=\"no\">"),
        ];
        for (path, text) in files {
            fs::write(book.path().join(path), text).expect("a file");
        }
        let result = check(book.path()).expect("a book");
        assert_eq!(result.pages, 2);
        result.broken.into_iter().map(|(_, link)| link).collect()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let body = "<a href=\"../other.html#b\"></a><a class=\"x\" href=\"../other.html#%C3%BCber-uns\"></a>\
            <link href=\"../style.css\"><a href=\"#here\" id=\"here\"></a><a href=\"https://example.org/no\"></a>";
        assert!(broken(body).is_empty());
    }

    #[test]
    fn links_that_lead_nowhere_are_reported() {
        for link in [
            "gone.html",
            "other.html",
            "../other.html#gone",
            "#gone",
            "../../other.html",
            "/other.html",
        ] {
            assert_eq!(broken(&format!("<a href=\"{link}\">x</a>")), [link]);
        }
        assert_eq!(broken("<img src=\"gone.png\">"), ["gone.png"]);
    }
}
