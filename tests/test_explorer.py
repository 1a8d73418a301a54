"""The explorer page as a file: written whole, complete in itself, and never over something else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from feddraw.core.schedules import BETA_MAX, ETA, LAM, READINGS
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.errors import UserError
from feddraw.explorer import explorer_page, write_explorer
from typed import typed


class Reader(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    inside = False

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def read() -> Reader:
    reader = Reader()
    reader.feed(explorer_page())
    return reader


def test_the_command_writes_one_page_and_writes_it_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = typed("explore", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "feddraw-explorer.html" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["feddraw-explorer.html"]
    assert (tmp_path / "feddraw-explorer.html").read_text(encoding="utf-8") == explorer_page()


def test_the_page_is_small_and_the_same_every_time() -> None:
    assert explorer_page() == explorer_page()
    assert len(explorer_page().encode()) < 120_000


def test_nothing_on_the_page_is_fetched() -> None:
    for tag, attributes in read().tags:
        for name in ("src", "href", "action", "srcset", "data"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, f"<{tag} {name}={value}>"
    assert set(re.findall(r"https?://[^\"'\s]+", explorer_page())) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    assert not re.search(
        r"@import|url\(|fetch\(|XMLHttpRequest|import\(|sendBeacon|WebSocket", explorer_page()
    )
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", explorer_page()
    )


def test_the_policy_allows_this_script_and_no_request() -> None:
    policy = next(
        a["content"] for _, a in read().tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(read().scripts[-1].encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_paper_s_scenarios_and_settings_are_put_in() -> None:
    data = json.loads(read().scripts[0])
    assert {preset["name"]: tuple(preset["sizes"]) for preset in data["presets"]} == {
        scenario.name: scenario.sizes for scenario in PAPER_SCENARIOS.values()
    }
    assert data["settings"] == {
        "rounds": 15,
        "eta": ETA,
        "lam": LAM,
        "beta_max": BETA_MAX,
        "reading": "reported",
    }
    assert [a["value"] for _, a in read().tags if a.get("name") == "reading"] == list(READINGS)


def test_the_page_names_the_authors_and_what_it_is_not() -> None:
    text = " ".join(explorer_page().split())
    for words in (
        "Maryam Moradpour and Anne-Christin Hauschild",
        "independent implementation",
        "not a medical device",
    ):
        assert words in text


def test_every_control_has_a_label() -> None:
    reader = read()
    labelled = {a["for"] for tag, a in reader.tags if tag == "label" and "for" in a}
    for tag, attributes in reader.tags:
        if tag in ("input", "select") and attributes.get("type") != "radio":
            assert (
                attributes.get("id") in labelled
                or "aria-label" in attributes
                or "data-label" in attributes
            )


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "thesis.html"
    other.write_text("<p>years of work</p>")
    done = typed("explore", "--out", "thesis.html", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "feddraw: thesis.html exists and is not an explorer page: choose another name with --out"
    )
    assert other.read_text() == "<p>years of work</p>"


def test_a_folder_or_a_name_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder: give the name of a file"):
        write_explorer(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        write_explorer(tmp_path / "no" / "page.html")
    assert not list(tmp_path.iterdir())


def test_the_command_needs_no_torch_scipy_or_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['feddraw', 'explore']\n"
        "from feddraw.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'scipy', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
