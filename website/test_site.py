"""The built site in a browser: nothing outside is asked for, search works from a folder, nobody is
shut out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parent.parent / "site"
PAGES = sorted(
    path for path in SITE.rglob("*.html") if path.name not in ("404.html", "weight-explorer.html")
)

AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa'], iframes: false, preload: false})"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_the_screen_asks_no_network_and_has_no_serious_fault(
    new_page: Any, width: int, scheme: str
) -> None:
    page = new_page(width=width, color_scheme=scheme)
    axe = os.environ.get("FEDDRAW_AXE")
    faults = []
    for path in PAGES:
        page.goto(path.as_uri())
        if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            faults.append(f"{path.name} scrolls sideways")
        if axe:
            page.add_script_tag(path=axe)
            found = page.evaluate(AXE)["violations"]
            grave = [one for one in found if one["impact"] in ("serious", "critical")]
            faults += [f"{path.name} {one['id']}: {one['nodes'][0]['html'][:200]}" for one in grave]
    assert not faults, "\n".join(faults)


def test_search_finds_a_word_without_a_server(new_page: Any) -> None:
    page = new_page()
    page.goto((SITE / "index.html").as_uri())
    page.locator("input[name=query]").click()
    page.locator("input[name=query]").press_sequentially("reputation")
    page.wait_for_selector(".md-search-result__link")
    assert "method" in "".join(
        page.eval_on_selector_all(".md-search-result__link", "links => links.map(a => a.href)")
    )
