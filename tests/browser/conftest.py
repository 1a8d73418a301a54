"""A browser for tests of pages: Chromium through Playwright, watched for errors and for requests
that leave the page.

FEDDRAW_CHROMIUM names another Chromium; FEDDRAW_REQUIRE_BROWSER=1 makes its absence a failure
instead of a skip.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CHROMIUM = (
    os.environ.get("FEDDRAW_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
)
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def absent(reason: str) -> None:
    if os.environ.get("FEDDRAW_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("no playwright: pip install playwright")
    if CHROMIUM is None:
        absent("no chromium: apt-get install chromium, or name one in FEDDRAW_CHROMIUM")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; at the end of the test none may have said an error or asked for anything outside
    itself.
    """
    problems: list[str] = []
    contexts = []

    def watched(
        width: int = 1280, height: int = 900, color_scheme: str = "light", own: str = "file:"
    ) -> Any:
        inside = ("file:", "data:", "blob:", own)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=color_scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(inside) else problems.append(r.url))
        return page

    watched.problems = problems  # type: ignore[attr-defined]
    yield watched
    for context in contexts:
        context.close()
    assert not problems
