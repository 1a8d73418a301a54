"""The weight explorer: one page that draws FedDRAW's weights for anyone's clients and asks no
network for anything.

Page, style and scripts are the files of this folder and the charts of `analysis`; here they become
one file, with the paper's scenarios and settings put in, and a policy in its head that forbids the
page every request.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from feddraw import __version__
from feddraw.analysis.palette import css_variables
from feddraw.analysis.web_page import offline_policy, read_page_file
from feddraw.core.schedules import BETA_MAX, ETA, LAM, ROUNDS
from feddraw.data.scenarios.paper_scenarios import PAPER_DATASET_TITLES, PAPER_SCENARIOS
from feddraw.errors import UserError
from feddraw.system.file_writing import write_whole

EXPLORER_MARK = '<meta name="generator" content="feddraw explore">'  # how we know a page of ours
_STYLE = '<link rel="stylesheet" href="explorer.css">'
_SCRIPT = re.compile(r'<script src="([a-z]+\.js)"></script>\n')
_DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)')


def explorer_page() -> str:
    """The whole page as one text."""
    page = read_page_file("explorer", "explorer.html")
    scripts = [
        read_page_file("analysis" if name == "chart.js" else "explorer", name)
        for name in _SCRIPT.findall(page)
    ]
    script = "\n" + "\n".join(scripts)
    style = (
        css_variables()
        + read_page_file("analysis", "chart.css")
        + read_page_file("explorer", "explorer.css")
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{offline_policy(script)}">'
    page = _SCRIPT.sub("", page)
    page = page.replace("<!-- scripts -->", f"<script>{script}</script>")
    page = _DATA.sub(lambda _: _paper_presets(), page)
    page = page.replace(_STYLE, f"<style>\n{style}</style>")
    page = page.replace("VERSION", __version__)
    return page.replace(EXPLORER_MARK, f"{EXPLORER_MARK}\n{policy}")


def write_explorer(path: Path) -> None:
    """The page to a file; a file that is something else is left alone."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder: give the name of a file, such as {path / 'feddraw-explorer.html'}"
        )
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if path.exists() and not _is_explorer_page(path):
        raise UserError(
            f"{path} exists and is not an explorer page: choose another name with --out"
        )
    write_whole(path, explorer_page().encode())


def _is_explorer_page(path: Path) -> bool:
    with path.open("rb") as file:
        return EXPLORER_MARK.encode() in file.read(1024)


def _paper_presets() -> str:
    """The scenarios and settings of the paper as JSON; no `<`, so that nothing in it can end the
    element it stands in.
    """
    presets = [
        {
            "name": scenario.name,
            "dataset": PAPER_DATASET_TITLES[scenario.dataset],
            "composition": scenario.composition,
            "sizes": scenario.sizes,
        }
        for scenario in PAPER_SCENARIOS.values()
    ]
    settings = {
        "rounds": ROUNDS,
        "eta": ETA,
        "lam": LAM,
        "beta_max": BETA_MAX,
        "reading": "reported",
    }
    return json.dumps({"presets": presets, "settings": settings}).replace("<", "\\u003c")
