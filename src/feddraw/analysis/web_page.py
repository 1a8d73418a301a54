"""What the pages of `feddraw report`, `explore` and `watch` are put together from: their files, and
what they may do.

`chart.js` and `chart.css` in this folder are the line charts of `explore` and `watch`.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources


def read_page_file(room: str, name: str) -> str:
    """A file of a room, such as its script or its style."""
    return (resources.files(f"feddraw.{room}") / name).read_text(encoding="utf-8")


def page_policy_digest(text: str) -> str:
    """As a content security policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def offline_policy(script: str) -> str:
    """Of a page that runs this script and asks no network for anything."""
    return (
        f"default-src 'none'; script-src {page_policy_digest(script)}; style-src 'unsafe-inline';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
