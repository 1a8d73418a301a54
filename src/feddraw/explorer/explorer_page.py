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

EXPLORER_MARK = '<meta name="generator" content="feddraw explore">'  # how we know a page of ours
_STYLE = '<link rel="stylesheet" href="explorer.css">'
_SCRIPT = re.compile(r'<script src="([a-z]+\.js)"></script>\n')
_DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)')


def explorer_page() -> str:
    """The whole page as one text."""
    source = read_page_file("explorer", "explorer.html")
    rooms = {"chart.js": "analysis"}  # the others are this room's own
    script = "\n" + "\n".join(
        read_page_file(rooms.get(name, "explorer"), name) for name in _SCRIPT.findall(source)
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{offline_policy(script)}">'
    style = (
        css_variables()
        + read_page_file("analysis", "chart.css")
        + read_page_file("explorer", "explorer.css")
    )
    text = _SCRIPT.sub("", source).replace("<!-- scripts -->", f"<script>{script}</script>")
    text = _DATA.sub(lambda _: _paper_presets(), text)
    text = text.replace(_STYLE, f"<style>\n{style}</style>")
    return text.replace("VERSION", __version__).replace(EXPLORER_MARK, f"{EXPLORER_MARK}\n{policy}")


def write_explorer(path: Path) -> None:
    """The page to a file; a file that is something else is left alone."""
    from feddraw.system.file_writing import write_whole

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
    """The scenarios and settings of the paper; no `<`, so that nothing in it can end the element it
    stands in.
    """
    presets = [
        {
            "name": one.name,
            "dataset": PAPER_DATASET_TITLES[one.dataset],
            "composition": one.composition,
            "sizes": one.sizes,
        }
        for one in PAPER_SCENARIOS.values()
    ]
    settings = {
        "rounds": ROUNDS,
        "eta": ETA,
        "lam": LAM,
        "beta_max": BETA_MAX,
        "reading": "reported",
    }
    return json.dumps({"presets": presets, "settings": settings}).replace("<", "\\u003c")
