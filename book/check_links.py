#!/usr/bin/env python3
"""Checks the links of the built book: every page, picture and heading that a page of the book names exists.

    mdbook build book --dest-dir FOLDER && python3 book/check_links.py FOLDER

Links to other sites are not followed. It needs only Python 3.
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """What a page links to, and what can be linked to on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.append(value)


def main() -> None:
    root = pathlib.Path(sys.argv[1]).resolve()
    files = sorted(root.rglob("*.html"))
    # All chapters on one page, with the links of their own places; and a page for the sidebar without scripts.
    generated = {"print.html", "toc.html", "404.html"}
    pages = {path: Page(path.read_text()) for path in files if path.name not in generated}
    if len(pages) < 2:
        sys.exit(f"{root} is not a book: it has {len(pages)} pages")
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            goal = path
            if parts.path:
                goal = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            anchor = urllib.parse.unquote(parts.fragment)
            if not goal.is_relative_to(root) or not goal.is_file():
                broken.append(f"{path.relative_to(root)}: {link} does not exist")
            elif anchor and goal in pages and anchor not in pages[goal].anchors:
                broken.append(f"{path.relative_to(root)}: {link}: there is no such heading")
    if broken:
        sys.exit("\n".join(broken))
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links")


if __name__ == "__main__":
    main()
