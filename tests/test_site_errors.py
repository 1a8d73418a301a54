"""What fails at a site: one line in the ledger that says what to do, and all of it at the site."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from feddraw.errors import UserError
from feddraw.flower.site_errors import (
    ERRORS_FILE,
    LARGEST_ERRORS_FILE,
    LONGEST_REASON,
    SiteFailed,
    failure_in_one_line,
    reason_in_error,
)
from test_flower_app import carry_out, folders, hospital


def failed(node: dict[str, Any], error: Exception) -> str:
    with pytest.raises(SiteFailed) as raised, failure_in_one_line(node):
        raise error
    return str(raised.value)


def test_the_ledger_names_the_broken_file_the_remedy_and_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    nodes = [
        {
            "data": hospital(tmp_path / name, 20, seed),
            "client": name,
            "memory": str(tmp_path / f"memory-{name}"),
        }
        for seed, name in enumerate(("North", "East", "South"))
    ]
    (tmp_path / "South" / "7.png").write_bytes(b"no image")
    strategy = carry_out(folders(tmp_path, rounds=1, **{"training.epochs": 1}), nodes)
    (status,) = (e.status for e in strategy.history[0].ledger if not e.weighted)
    assert status == (
        "refused: its app failed: images: of 20 images 1 that cannot be read (7.png: not a PNG,"
        " JPEG or DICOM image): correct them, or leave them out with data.skip_bad = true"
        f" (in full at South: {tmp_path}/memory-South/errors.log)"
    )
    file = tmp_path / "memory-South" / ERRORS_FILE
    assert "Traceback" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not (tmp_path / "memory-North" / ERRORS_FILE).exists()


def test_a_long_message_keeps_its_cause_and_its_remedy(tmp_path: Path) -> None:
    node = {"memory": str(tmp_path), "client": "N\x1b[2J"}
    said = failed(node, UserError(f"the cause: {'x' * 5000}\n\tthe remedy"))
    assert said.startswith("the cause: ")
    assert f"the remedy (in full at N [2J: {tmp_path}/errors.log)" in said
    assert said.isprintable()
    assert len(said) < LONGEST_REASON
    assert "x" * 5000 in (tmp_path / ERRORS_FILE).read_text()


def test_an_error_of_another_kind_has_its_name(tmp_path: Path) -> None:
    said = failed({"memory": str(tmp_path)}, KeyError("labels"))
    assert said == f"KeyError: 'labels' (in full at the site: {tmp_path}/errors.log)"


def test_where_the_file_cannot_be_written_the_line_still_goes_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert failed({"memory": str(tmp_path / "file" / "below")}, UserError("no space")) == "no space"


@pytest.mark.parametrize("in_file", [True, False])
def test_the_nodes_log_has_the_traceback_only_where_the_file_has_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_file: bool
) -> None:
    (tmp_path / "file").write_text("")
    memory = tmp_path if in_file else tmp_path / "file" / "below"
    try:
        with failure_in_one_line({"memory": str(memory)}):
            raise UserError("7.png: no image")
    except SiteFailed as failure:  # as Flower does
        logging.getLogger("flwr").error("ClientApp raised an exception", exc_info=failure)
    assert "7.png: no image" in caplog.text
    assert ("Traceback" in caplog.text) is not in_file


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    (tmp_path / ERRORS_FILE).write_bytes(b"x" * (LARGEST_ERRORS_FILE + 1))
    failed({"memory": str(tmp_path)}, UserError("again"))
    assert (tmp_path / ERRORS_FILE).stat().st_size < 10_000


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("<class 'feddraw.errors.UserError'>:<'no images'>", "no images"),
        (
            "<class 'ZeroDivisionError'>:<'division\nby zero'>",
            "ZeroDivisionError: division by zero",
        ),
        ("the site refuses the app: not signed", "the site refuses the app: not signed"),
        ("", "no reason given"),
        ("y" * 5000, "y" * LONGEST_REASON),
    ],
)
def test_flowers_form_of_an_error_is_read(reason: str, shown: str) -> None:
    assert reason_in_error(reason) == shown
