"""`feddraw report --checklist tripod-ai`: what the page answers, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.report.blocks import Heading, ReportTable, blocks_and_inner
from feddraw.report.checklists import TRIPOD_AI
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs
from run_folders import make_run

ITEM = {item.number: item for item in TRIPOD_AI}


def rows(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The checklist by item, and all headings of the page."""
    settings = ReportSettings(replicates=0, checklist="tripod-ai")
    report = compute_report(collect_runs([folder]), settings=settings, command="", folders=[folder])
    blocks = list(blocks_and_inner(compose_report(report, "A title").blocks))
    table = next(
        block
        for block in blocks
        if isinstance(block, ReportTable) and block.caption.startswith("TRIPOD+AI")
    )
    by_item = {cells[0].text: [cell.text for cell in cells[1:]] for cells in table.rows}
    return by_item, [block.text for block in blocks if isinstance(block, Heading)]


def test_it_has_all_27_items_with_their_52_parts_in_order() -> None:
    letters = {3: 3, 5: 2, 6: 3, 8: 3, 9: 3, 12: 7, 18: 6, 20: 3, 23: 2, 27: 3}
    numbers = [
        f"{item}{letter}"
        for item in range(1, 28)
        for letter in ("abcdefg"[: letters[item]] if item in letters else [""])
    ]
    assert list(ITEM) == numbers
    assert len(numbers) == 52


def test_every_section_that_it_names_is_on_the_page(tmp_path: Path) -> None:
    make_run(tmp_path / "a", images=60)
    by_item, headings = rows(tmp_path)
    for _, _, where, _ in by_item.values():
        for section in filter(None, where.split("; ")):
            assert any(heading.startswith(section) for heading in headings), section
    assert "As a diagnostic test" in by_item["12e"][2]
    assert by_item["12e"][1] == "reported"


def test_what_nobody_but_the_author_knows_is_not_reported(tmp_path: Path) -> None:
    make_run(tmp_path / "a", images=60)
    by_item, _ = rows(tmp_path)
    for number in ("5b", "6b", "8a", "17", "18a", "19", "26", "27a"):
        assert by_item[number][1:3] == ["not reported", ""]
        assert by_item[number][3]


def test_the_users_words_answer_in_part(tmp_path: Path) -> None:
    make_run(tmp_path / "a", images=60, settings={"about.use": "triage"})
    by_item, _ = rows(tmp_path)
    assert by_item["3b"][1:3] == ["in part", "Intended use"]
    assert by_item["9a"][1] == "not reported"


def test_without_predictions_no_performance_is_reported(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    by_item, _ = rows(tmp_path)
    assert by_item["23a"][1] == "not reported"


def test_sites_are_no_subgroups_whatever_stands_first_in_the_heading() -> None:
    sites, both = ["By site in CHM-1"], ["By sex, site and age in by_site"]
    assert ITEM["23b"].status(sites) == ITEM["23b"].status(both) == "reported"
    assert ITEM["14"].status(sites) == "not reported"
    assert ITEM["14"].status(both) == "in part"
    tested = "As a diagnostic test: accuracy"
    assert ITEM["23a"].status([tested, *sites]) == "in part"
    assert ITEM["23a"].status([tested, *both]) == "reported"


def test_a_heading_without_a_comparison_answers_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", images=60)
    path = folder / "predictions.safetensors"
    with safe_open(path, "np") as file:
        notes = json.loads(file.metadata()["feddraw"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    notes["groups"] = [{"name": "site", "values": ["East"]}, {"name": "view", "values": ["AP"]}]
    one_part = np.zeros(len(tensors["test.truth"]), np.int16)
    tensors |= {"test.group.0": one_part, "test.group.1": one_part}
    save_file(tensors, path, {"feddraw": json.dumps(notes)})
    by_item, headings = rows(tmp_path)
    assert any(heading.startswith("Parts of the test images in") for heading in headings)
    assert by_item["14"][1] == by_item["23b"][1] == "not reported"
    assert by_item["23a"][1] == "in part"


def test_a_recalibrated_model_is_reported_where_its_section_is() -> None:
    heading = ["Recalibrated scores in CHM-1"]
    assert (ITEM["12f"].status(heading), ITEM["24"].status(heading)) == ("in part", "reported")
    assert ITEM["12f"].status([]) == ITEM["24"].status([]) == "not reported"


def test_a_checklist_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--checklist", "tripod"])
    assert done.exit_code != 0
    assert "did you mean tripod-ai" in str(done.exception)
