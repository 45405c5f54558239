#!/usr/bin/env python3
"""Checks the links of a built book: check_links.py DIR. Every link to a page or to a part of one must lead there;
links to other sites are left alone. Prints what leads nowhere, and ends with 1."""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]
        self.ids |= {attrs[name] for name in ("id", "name") if attrs.get(name)}


def main(root):
    # The page for printing repeats all others, and a server answers 404.html for paths that do not exist.
    paths = [path for path in root.rglob("*.html") if path.name not in ("print.html", "404.html")]
    pages = {path.resolve(): Page(path.read_text()) for path in paths}
    broken = [(path, link) for path, page in pages.items() for link in page.links if not leads_somewhere(path, link, pages)]
    for path, link in broken:
        print(f"{path.relative_to(root)}: {link} leads nowhere")
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(broken)} of them broken")
    return bool(broken) or not pages


def leads_somewhere(path, link, pages):
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return True
    target = (path.parent / unquote(url.path)).resolve() if url.path else path
    if target in pages:
        return not url.fragment or unquote(url.fragment) in pages[target].ids
    return target.is_file()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
