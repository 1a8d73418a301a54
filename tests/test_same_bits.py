"""The comparison of two trees finds what differs, follows renames, and lets the explained pass."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "same_bits"))

import artefacts
import compare
import differences
import produce
from renames import Explained, Renames

CASE = "serial/feddraw"


def document(**changes: Any) -> dict[str, Any]:
    """What a small run gives."""
    entry = {
        "round": 0,
        "client": "North",
        "weight": 0.25,
        "gamma": math.nan,
        "status": "counted: clipped",
    }
    made = {
        "model": {"classifier.weight": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "ledger": {"0 North": entry},
        "checkpoint": {"next_round": 1, "state": {"server": {"momentum": np.ones(3)}}},
    }
    return made | changes


def compared(
    tmp_path: Path, base: Any, here: Any, names: Renames | None = None
) -> differences.Comparison:
    """The comparison of two trees with one case each, or without one."""
    for side, made in {"base": base, "here": here}.items():
        (tmp_path / side).mkdir()
        if made is not None:
            artefacts.write_document(tmp_path / side, CASE, made)
    return differences.compare_folders(tmp_path / "base", tmp_path / "here", names or Renames())


def test_the_same_is_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, document(), document())
    part = found.parts["serial"]
    assert not found.failed
    assert (part.cases, part.models, part.differences) == (1, 1, [])


def test_a_changed_bit_of_a_model_is_found_with_its_size(tmp_path: Path) -> None:
    weights = document()["model"]["classifier.weight"].copy()
    weights[1, 2] = np.nextafter(weights[1, 2], np.float32(9))
    found = compared(tmp_path, document(), document(model={"classifier.weight": weights}))
    (difference,) = found.parts["serial"].unexplained
    assert found.failed
    assert difference.path == "model.classifier.weight"
    assert difference.amount == float(np.spacing(np.float32(5)))
    assert difference.said.startswith("1 of 6 elements differ")
    assert any("1 of 6 elements differ" in line for line in compare.details_of(found, Renames()))


@pytest.mark.parametrize(
    ("changes", "path", "amount"),
    [
        (
            {"checkpoint": {"next_round": 2, "state": {"server": {"momentum": np.ones(3)}}}},
            "checkpoint.next_round",
            1,
        ),
        (
            {"checkpoint": {"next_round": 1, "state": {"server": {}}}},
            "checkpoint.state.server",
            math.inf,
        ),
        (
            {"model": {"classifier.weight": -np.zeros(6, np.float32)}},
            "model.classifier.weight",
            math.inf,
        ),
        ({"error": "ValueError"}, "error", math.inf),
    ],
)
def test_other_numbers_keys_and_shapes_are_found(
    tmp_path: Path, changes: Any, path: str, amount: float
) -> None:
    found = compared(tmp_path, document(), document(**changes))
    assert found.failed
    assert (path, amount) in [(one.path, one.amount) for one in found.parts["serial"].unexplained]


def test_the_sign_of_a_zero_is_a_bit_too(tmp_path: Path) -> None:
    one, other = ({"model": {"bias": sign * np.zeros(2)}} for sign in (1.0, -1.0))
    (difference,) = compared(tmp_path, one, other).parts["serial"].unexplained
    assert difference.amount == 0


RENAMED = Renames(
    keys={"ledger": {"weight": "share"}, "checkpoint": {"state.server": "memory.of server"}},
    values={"ledger": {"status": {"counted": "weighted"}}},
)


def test_renames_are_followed_and_former_names_told(tmp_path: Path) -> None:
    entry = {
        "round": 0,
        "client": "North",
        "share": 0.25,
        "gamma": math.nan,
        "status": "weighted: clipped",
    }
    state = {"next_round": 1, "memory": {"of server": {"momentum": np.ones(3)}}}
    here = document(ledger={"0 North": entry}, checkpoint=state)
    found = compared(tmp_path, document(), here, RENAMED)
    assert not found.failed
    assert found.parts["serial"].differences == []
    assert not found.former_names


def test_a_renaming_that_is_still_to_come_is_told_and_is_no_failure(tmp_path: Path) -> None:
    found = compared(tmp_path, document(), document(), RENAMED)
    assert not found.failed
    assert {"ledger.weight", "ledger.status = 'counted'"} <= set(found.former_names)


def test_a_renamed_number_is_still_compared(tmp_path: Path) -> None:
    entry = {
        "round": 0,
        "client": "North",
        "share": 0.5,
        "gamma": math.nan,
        "status": "weighted: clipped",
    }
    found = compared(tmp_path, document(), document(ledger={"0 North": entry}), RENAMED)
    assert [one.path for one in found.parts["serial"].unexplained] == ["ledger.0 North.share"]


@pytest.mark.parametrize(("at_most", "failed"), [(0.02, False), (0.005, True)])
def test_an_explained_difference_passes_within_its_bound_only(
    tmp_path: Path, at_most: float, failed: bool
) -> None:
    entry = document()["ledger"]["0 North"] | {"weight": 0.26}
    names = Renames(
        explained=(Explained("serial/*", "ledger.*.weight", at_most, "summed in another order"),)
    )
    found = compared(tmp_path, document(), document(ledger={"0 North": entry}), names)
    assert found.failed is failed
    assert [one.why for one in found.parts["serial"].differences] == [
        "" if failed else "summed in another order"
    ]


def test_a_case_that_one_tree_refuses_is_one_difference_with_its_words(tmp_path: Path) -> None:
    refused = {"refused": True, "words": {"refused": "it needs three clients"}}
    (difference,) = compared(tmp_path, document(), refused).parts["serial"].unexplained
    assert difference.said == "refused by here only: it needs three clients"


def test_an_error_in_both_trees_proves_nothing(tmp_path: Path) -> None:
    broken = {"error": "ValueError: no"}
    assert compared(tmp_path, broken, broken).failed


@pytest.mark.parametrize(("moved", "failed"), [({}, True), ({"feddraw": "studies"}, False)])
def test_a_case_that_is_gone_fails_unless_its_method_moved_out(
    tmp_path: Path, moved: Any, failed: bool
) -> None:
    found = compared(tmp_path, document(), None, Renames(methods_moved_out=moved))
    assert found.failed is failed
    assert found.parts["serial"].base_only == [CASE]


def test_a_case_that_is_new_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, None, document())
    assert not found.failed
    assert "only here: serial/feddraw" in compare.details_of(found, Renames())


def test_what_moved_is_found_where_it_is_now_or_was() -> None:
    names = Renames(modules={"json.former": "json.decoder", "collections": "collections.future"})
    assert names.find("json.former:JSONDecoder").__name__ == "JSONDecoder"
    assert names.find("collections.abc:Mapping").__name__ == "Mapping"
    with pytest.raises(LookupError, match=r"renames\.toml"):
        names.find("json.former:Nothing")


def test_the_committed_table_can_be_read() -> None:
    names = Renames.read()
    assert (
        names.places("feddraw.datasets.phantom:phantom")[0]
        == "feddraw.data.datasets.phantom:phantom"
    )
    assert names.present_value(("ledger", "0 C1", "status"), "not asked") == "not sampled"
    assert all(one.why for one in names.explained)


def test_parts_are_chosen_by_name_and_by_kind() -> None:
    assert compare.chosen_parts("serial,resume", "") == ["serial", "resume"]
    without = compare.chosen_parts("", "secure")
    assert without == [part for part in produce.PARTS if not part.startswith("secure")]
    assert set(compare.chosen_parts("", "", quick=True)).isdisjoint(produce.NOT_QUICK)
    with pytest.raises(SystemExit, match="there is no part"):
        compare.chosen_parts("serail", "")


def test_the_numbers_of_a_report_are_decoded() -> None:
    table = "| method | AUC |\n|---|---|\n| feddraw | 0.75 |"
    text = f"# Results\n\nOf 12 runs, −0.5 was best.\n\n{table}\n\n# More\n"
    found = artefacts.decode_report(text)
    assert found["Results"]["tables"] == [{"feddraw": {"method": "feddraw", "AUC": 0.75}}]
    assert found["Results"]["numbers"] == [12, -0.5]
    assert found["More"] == {"tables": [], "numbers": []}
