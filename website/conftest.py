"""The browser of the other page tests."""

from tests.browser.conftest import browser, new_page

__all__ = ["browser", "new_page"]
