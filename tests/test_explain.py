"""Explaining weights: the parts add up, the words follow the ledger, and no ledger is too strange
to be read.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from feddraw.analysis.events_in_words import rounds_in_words, spans_of_rounds
from feddraw.analysis.explain_weights import explain_run_weights, split_weights
from feddraw.analysis.weights_document import explanation_document
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.cli import app
from feddraw.core.schedules import gamma_and_beta, softmax, weights_and_parts
from feddraw.errors import UserError
from feddraw.results.ledger_table import LEDGER_COLUMNS
from feddraw.results.recorded_run import read_run
from run_folders import make_run

scores = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8)


@given(scores)
def test_the_parts_of_a_weight_add_up_to_its_distance_from_an_equal_share(
    pairs: list[tuple[float, float]],
) -> None:
    size, similarity = np.array(pairs).T
    from_size, from_similarity = split_weights(size, similarity)
    assert from_size + from_similarity == pytest.approx(
        softmax(size + similarity, 1.0) - 1 / len(size), abs=1e-12
    )
    assert from_size.sum() == pytest.approx(0, abs=1e-12)


def test_a_score_that_is_the_same_for_all_clients_has_no_part() -> None:
    from_size, from_similarity = split_weights(np.array([0.3, 0.1, 0.2]), np.full(3, 0.9))
    assert from_similarity == pytest.approx(np.zeros(3), abs=1e-15)
    assert from_size[0] > from_size[2] > from_size[1]


def test_the_split_of_feddraw_is_that_of_its_formula(tmp_path: Path) -> None:
    found = explain_run_weights(read_run(make_run(tmp_path / "run")))
    assert found.from_size is not None
    assert found.from_similarity is not None
    ledger = found.run.ledger
    parts = weights_and_parts([100, 100, 100, 500], ledger["similarity"][2], *gamma_and_beta(2, 6))
    assert parts.weight == pytest.approx(found.shares[2])
    beta = float(parts.beta or 0)
    wanted = split_weights(
        beta * parts.gamma * parts.prior, beta * (1 - parts.gamma) * parts.similarity
    )
    assert found.from_size[2] == pytest.approx(wanted[0])
    assert found.from_similarity[2] == pytest.approx(wanted[1])
    assert found.from_size[0] == pytest.approx(
        [-0.125, -0.125, -0.125, 0.375]
    )  # the prior is the weight
    assert found.from_similarity[0] == pytest.approx(np.zeros(4))


def test_the_words_say_when_the_small_overtook_and_when_all_were_equal(tmp_path: Path) -> None:
    found = explain_run_weights(read_run(make_run(tmp_path / "run", rounds=15)))
    small, large = found.shares[:, 0:3].mean(axis=1), found.shares[:, 3]
    overtook = int(np.flatnonzero(small > large + 1e-9)[0])
    said = " ".join(weights_in_sentences(found))
    assert 0 < overtook < 14
    assert (
        f"They overtook in round {overtook}: {small[overtook]:.4f} vs {large[overtook]:.4f} per"
        " client." in said
    )
    assert "exactly equal in round 14" in said
    assert "C4 counted most" in said or "C4 counted least" in said
    told = explanation_document(found)
    assert told["small"] == {
        "clients": ["C1", "C2", "C3"],
        "overtook": overtook,
        "ahead": [[overtook, 13]],
    }
    assert told["equal"]["exactly"] == [[14, 14]]


def test_clients_that_counted_least_alike_are_all_named(tmp_path: Path) -> None:
    by_size = explain_run_weights(read_run(make_run(tmp_path / "a", method="fedavg")))
    said = list(weights_in_sentences(by_size))
    assert said[0].startswith("C4 counted most: 62.5 % on average")  # 500 of 800 images
    assert said[1] == "C1, C2 and C3 counted least, the same on average: 12.5 % each."


def test_methods_without_a_split_are_compared_with_size(tmp_path: Path) -> None:
    by_size = explain_run_weights(read_run(make_run(tmp_path / "a", method="fedavg")))
    equal = explain_run_weights(read_run(make_run(tmp_path / "b", method="uniform")))
    assert by_size.from_size is None
    assert "size is the whole reason" in " ".join(weights_in_sentences(by_size))
    assert "C4 lost most: -37.50 points" in " ".join(weights_in_sentences(equal))
    assert "All 4 clients counted the same" in " ".join(weights_in_sentences(equal))
    assert explanation_document(equal)["split"] is None


def ledger(path: Path, rows: list[dict[str, object]]) -> Path:
    folder = make_run(path)
    with (folder / "weights.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, LEDGER_COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_fedadp_is_split_into_size_and_angle(tmp_path: Path) -> None:
    prior, score = np.array([0.25, 0.75]), np.array([3.0, 1.0])
    weight = softmax(np.log(prior) + score, 1.0)
    rows = [
        {
            "round": 0,
            "client": f"C{i}",
            "size": 10,
            "steps": 1,
            "prior": prior[i],
            "similarity": 0.5,
            "reputation": score[i],
            "weight": weight[i],
            "status": "weighted",
        }
        for i in range(2)
    ]
    found = explain_run_weights(read_run(ledger(tmp_path / "run", rows)))
    assert found.from_size is not None
    assert found.from_size[0, 1] > 0 > found.from_size[0, 0]
    assert found.from_similarity is not None
    assert (found.from_size + found.from_similarity)[0] == pytest.approx(weight - 0.5)


def test_coefficients_that_do_not_add_up_and_absent_clients_are_said(tmp_path: Path) -> None:
    row = {"round": 0, "size": 10, "steps": 1, "weight": 0.9, "status": "weighted"}
    rows = [
        row | {"client": "A"},
        row | {"client": "B"},
        row | {"client": "C", "weight": 0, "status": "refused: NaN"},
    ]
    found = explain_run_weights(read_run(ledger(tmp_path / "run", rows)))
    said = " ".join(weights_in_sentences(found))
    assert found.shares.tolist() == [[0.5, 0.5, 0.0]]
    assert "do not add up to 1" in said
    assert "Refused (NaN): C in round 0." in said
    assert "C never counted." in said


def test_a_round_in_which_nobody_counted_changes_nothing_of_the_others(tmp_path: Path) -> None:
    before = explain_run_weights(read_run(make_run(tmp_path / "whole")))
    rows = list(csv.DictReader((tmp_path / "whole" / "weights.csv").open()))
    nobody = {"size": 0, "steps": 0, "weight": 0, "influence": 0, "status": "missing"}
    known = [
        {"round": row["round"], "client": row["client"]} | nobody if row["round"] == "2" else row
        for row in rows
    ]
    found = explain_run_weights(read_run(ledger(tmp_path / "run", known)))
    assert not found.rescaled
    assert found.from_size is not None
    assert before.from_size is not None
    assert not found.from_size[2].any()
    assert np.array_equal(np.delete(found.from_size, 2, 0), np.delete(before.from_size, 2, 0))
    said = " ".join(weights_in_sentences(found))
    assert "add up to 1" not in said
    assert "of all differences between weights" in said


def test_spans_of_rounds_as_words() -> None:
    assert spans_of_rounds(np.array([True, False, True, True])) == [(0, 0), (2, 3)]
    assert rounds_in_words([(0, 0), (2, 3)]) == "rounds 0 and 2 to 3"
    assert rounds_in_words([(4, 4)]) == "round 4"


def test_the_command_prints_words_or_one_document(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", clients=["[red]St. Mary[/red]", "B", "C", "D"])
    shown = CliRunner().invoke(app, ["explain", str(folder)])
    assert shown.exit_code == 0
    assert "[red]St. Mary[/red]" in shown.output
    assert "from similarity" in shown.output
    told = json.loads(CliRunner().invoke(app, ["explain", str(folder), "--json"]).output)
    for client in told["clients"]:
        assert client["from_size"] + client["from_similarity"] == pytest.approx(
            client["mean"] - 0.25
        )
    assert len(told["by_round"]) == 6


def test_a_run_of_someone_elses_method_is_explained_without_its_code(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", method="no_such_module:rule")
    assert CliRunner().invoke(app, ["explain", str(folder)]).exit_code == 0


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    make_run(tmp_path / "study" / "one")
    (tmp_path / "study" / "one" / "weights.csv").write_text("round,client\n0,C1\n")
    for folder, expected in (
        ("study", "is not the folder of a run: there are 1 below it"),
        ("study/one", "weights.csv"),
        ("nowhere", "no folder"),
    ):
        found = CliRunner().invoke(app, ["explain", str(tmp_path / folder)])
        assert isinstance(found.exception, UserError)
        assert expected in str(found.exception)
