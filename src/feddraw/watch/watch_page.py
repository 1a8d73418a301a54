"""The page that follows runs: one file that asks only the server it came from, and shows nothing
without its key.
"""

from __future__ import annotations

from functools import cache

from feddraw import __version__
from feddraw.analysis.palette import css_variables
from feddraw.analysis.web_page import page_policy_digest, read_page_file


@cache
def _watch_style_and_script() -> tuple[str, str]:
    script = (
        "\n" + read_page_file("analysis", "chart.js") + "\n" + read_page_file("watch", "watch.js")
    )
    style = (
        "\n"
        + css_variables()
        + read_page_file("analysis", "chart.css")
        + read_page_file("watch", "watch.css")
    )
    return style, script


def watch_page() -> str:
    """The whole page as one text."""
    style, script = _watch_style_and_script()
    text = read_page_file("watch", "watch.html").replace("VERSION", __version__)
    text = text.replace('<link rel="stylesheet" href="watch.css">', f"<style>{style}</style>")
    return text.replace('<script src="watch.js"></script>', f"<script>{script}</script>")


def watch_policy() -> str:
    """What the page may do: run its own script, and ask its own server."""
    style, script = map(page_policy_digest, _watch_style_and_script())
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
