"""The page of `feddraw watch` in a browser: it follows a run, comes back after a restart, and can
be read by all.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from feddraw.watch import followed_folder
from feddraw.watch.server import WatchServer
from run_folders import make_run

KEY = "a key of a test for the watch"
CLIENTS = [
    "<b>North</b>",
    "St-Mary's-hospital-with-quite-a-long-name-without-any-blank",
    "East",
    "West",
]


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[WatchServer]:
    server = WatchServer(folder, port=port, key=KEY)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def times(line: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    spent = {
        "seconds": {"training": 40.0, "evaluation": 5.0},
        "client_seconds": dict.fromkeys(CLIENTS, 9.5),
    }
    return line | spent | {"time": now}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished run, one under way with 4 of 6 rounds done with trouble, and one that waits."""
    monkeypatch.setattr(followed_folder, "LOOK_EVERY", 0.0)
    root = tmp_path / "study"
    for method in ("feddraw", "fedavg"):
        make_run(
            root / method, method=method, clients=CLIENTS, rounds=6, finished=method == "feddraw"
        )
        lines = [
            json.loads(line) for line in (root / method / "rounds.jsonl").read_text().splitlines()
        ]
        kept = lines if method == "feddraw" else lines[:4]
        (root / method / "rounds.jsonl").write_text(
            "".join(json.dumps(times(line)) + "\n" for line in kept)
        )
    ledger = root / "fedavg" / "weights.csv"
    rows = [row for row in ledger.read_text().splitlines() if not row.startswith(("4,", "5,"))]
    rows = [
        row.replace("weighted", "refused: not finite") if row.startswith("2,East") else row
        for row in rows
    ]
    ledger.write_text("\n".join(rows) + "\n")
    plan = {"runs": ["feddraw", "fedavg", "uniform"], "workers": 1, "failed": {}, "left_out": []}
    (root / "plan.json").write_text(json.dumps(plan))
    handle = os.open(root / "fedavg", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield root
    os.close(handle)


def opened(new_page: Any, server: WatchServer, **how: Any) -> Any:
    page = new_page(**how, own=server.url.partition("#")[0])
    page.goto(server.url)
    page.wait_for_selector("#detail:not([hidden]) svg")
    return page


def test_it_follows_the_run_under_way_and_comes_back_after_a_restart(
    new_page: Any, study: Path
) -> None:
    with serving(study) as server:
        page = opened(new_page, server)
        assert page.inner_text("h1").startswith("1 of 3 runs finished, about ")
        assert "1 running · 1 waiting · 1 finished" in page.inner_text("#counts")
        assert page.inner_text("#run-heading") == "fedavg"
        assert "East: refused: not finite (round 2)" in page.inner_text("#problems")
        assert "4 of 6 rounds done" in page.inner_text("#run-words")
        assert "<b>North</b>" in page.inner_text("#legend-clients")
        with (study / "fedavg" / "rounds.jsonl").open("a") as file:
            validation = {"macro": 0.987, "per_class": {"Edema": 0.987}}
            line = {"round": 4, "loss": 0.1, "validation": validation, "model": "0" * 32}
            file.write(json.dumps(times(line)) + "\n")
        page.wait_for_selector("#run-words:has-text('5 of 6 rounds done')")
        assert "0.987" in page.inner_text("#run-words")
        page.locator("#runs button").last.click()
        page.wait_for_selector("#run-heading:text-is('feddraw')")
        port = server.server_port
    page.wait_for_selector("#connection:has-text('reconnecting')")
    make_run(
        study / "alone", method="alone", clients=CLIENTS, rounds=6
    )  # the other runs get other numbers
    with serving(study, port) as server:
        page.wait_for_selector("#connection.live")
        assert page.inner_text("#run-heading") == "feddraw"
        page.close()
        new_page.problems[:] = [
            problem for problem in new_page.problems if "net::ERR_" not in problem
        ]


def test_a_client_that_did_not_count_in_a_round_has_no_marker_there(
    new_page: Any, study: Path
) -> None:
    """Four rounds are done, and East was refused in one of them."""
    with serving(study) as server:
        page = opened(new_page, server, width=1280)
        marks = [
            page.locator(f"#chart-weights .marker.c{place}").count()
            for place in range(len(CLIENTS))
        ]
        assert marks == [4, 4, 3, 4]


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
def test_nothing_scrolls_sideways_and_axe_finds_no_fault(
    new_page: Any, study: Path, width: int, scheme: str
) -> None:
    with serving(study) as server:
        page = opened(new_page, server, width=width, height=844, color_scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        axe = Path(os.environ.get("FEDDRAW_AXE", ""))
        if axe.is_file():
            page.evaluate(axe.read_text(encoding="utf-8"))
            found = page.evaluate(
                "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})"
            )
            assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]
        page.close()  # before the server that it asks is gone


def test_without_the_key_it_says_what_to_do(new_page: Any, study: Path) -> None:
    with serving(study) as server:
        bare = server.url.partition("#")[0]
        page = new_page(own=bare)
        page.goto(bare)
        page.wait_for_selector("#connection:has-text('feddraw watch printed')")
        assert page.is_hidden("#detail")
        page.close()
        new_page.problems[:] = [problem for problem in new_page.problems if "403" not in problem]
