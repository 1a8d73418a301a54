"""The page that follows runs: one file that asks only the server it came from, and shows nothing without its key."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from feddraw import __version__
from feddraw.analysis.palette import variables

_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _parts() -> tuple[str, str]:
    """Style and script, each as one text."""
    script = "\n" + _read("feddraw.analysis", "chart.js") + "\n" + _read("feddraw.watch", "watch.js")
    return "\n" + variables() + _read("feddraw.watch", "watch.css"), script


def page() -> str:
    """The whole page as one text."""
    style, script = _parts()
    text = _read("feddraw.watch", "watch.html").replace("VERSION", __version__)
    text = text.replace('<link rel="stylesheet" href="watch.css">', f"<style>{style}</style>")
    return text.replace('<script src="watch.js"></script>', f"<script>{script}</script>")


def policy() -> str:
    """What the page may do: run its own script, and ask its own server."""
    style, script = _parts()
    return _POLICY.format(script=_digest(script), style=_digest(style))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(room: str, name: str) -> str:
    return (resources.files(room) / name).read_text(encoding="utf-8")
