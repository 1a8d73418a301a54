"""No link leads nowhere: those of the built site with their anchors, and those of the Markdown
files at the top.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def test_every_link_of_the_site_leads_somewhere() -> None:
    pages = {
        path: Page(path)
        for path in SITE.rglob("*.html")
        if path.name not in ("404.html", "weight-explorer.html")
    }
    lost = []
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            there = target.is_file() and (not address.fragment or target not in pages)
            if not there and not (
                target in pages and unquote(address.fragment) in pages[target].anchors
            ):
                lost.append(f"{path.relative_to(SITE)}: {link}")
    assert not lost


def test_every_file_that_the_markdown_at_the_top_names_is_there() -> None:
    lost = []
    for page in ROOT.glob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not urlsplit(link).scheme and not (ROOT / link).exists():
                lost.append(f"{page.name}: {link}")
    assert not lost
