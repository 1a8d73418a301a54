"""The colours of every page and figure, for light and dark: distinguishable for colour-blind
readers.

Figures are drawn in the light colours. Pages define both sets as CSS variables; a drawing that
stands alone carries its own rule for the dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

COLOURS = {  # in the light, in the dark
    "paper": ("#fbfaf8", "#14171b"),
    "card": ("#ffffff", "#1b2026"),
    "ink": ("#1d2329", "#e8eaed"),
    "muted": ("#59636e", "#a3adb8"),
    "rule": ("#dcdad5", "#343b44"),
    "accent": ("#0b5fa5", "#7cc0f8"),
    "wrong": ("#a1260d", "#ff9c86"),
    "share": ("#b9b5ad", "#6a727c"),
    "c0": ("#0b5fa5", "#6fb7f2"),
    "c1": ("#c8520a", "#ff9a57"),
    "c2": ("#007a5e", "#3fd2a4"),
    "c3": ("#a63d7f", "#ec9fd0"),
    "c4": ("#86690a", "#e3c14a"),
    "c5": ("#2b86b5", "#a5def7"),
    "c6": ("#3c3c3c", "#d8d8d8"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}
INK = LIGHT["ink"]
MUTED = LIGHT["muted"]
SERIES_NAMES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
SERIES = tuple(LIGHT[name] for name in SERIES_NAMES)
# Matplotlib's own, which are in figures as well.
MATPLOTLIB_GREYS = {"#000000": "ink", "#595959": "muted", "#999999": "muted"}
COLOUR_NAMES = {LIGHT[name]: name for name in ("ink", "muted", *SERIES_NAMES)} | MATPLOTLIB_GREYS
FONTS = {
    "sans": (
        'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif'
    ),
    "serif": '"STIX Two Text", Cambria, Georgia, "DejaVu Serif", serif',
}


def css_variables() -> str:
    """The colours as CSS variables of a page; on paper it stays light."""
    return (
        f":root {{ {_css_declarations(LIGHT | FONTS)} }}\n@media screen and (prefers-color-scheme:"
        f" dark) {{ :root {{ {_css_declarations(DARK)} }} }}\n"
    )


def _css_declarations(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def dark_drawing() -> str:
    """A style for an SVG that is shown as a picture: in the dark its light colours give way to the
    dark ones.
    """
    rules = [
        f'[style*="{kind}: {colour}"] {{ {kind}: {DARK[name]} !important; }}'
        for colour, name in COLOUR_NAMES.items()
        for kind in ("fill", "stroke")
    ]
    ground = f'[style*="fill: {LIGHT["card"]}"] {{ fill: {DARK["card"]} !important; }}'
    text = f"text {{ fill: {DARK['ink']}; }}"
    rules = [ground, text, *rules]
    return f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"


def luminance(colour: Any) -> float:
    """How bright a colour is, from 0 to 1, as WCAG 2 computes contrast."""
    from matplotlib.colors import to_rgb  # slow, and pages need the names of colours only

    parts = np.array(to_rgb(colour))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
