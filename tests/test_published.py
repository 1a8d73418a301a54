"""The published numbers: everything printed is recomputed, and what each reading can give is
decided rightly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from feddraw.analysis.critical_difference_plot import critical_difference_figure
from feddraw.core.schedules import READINGS, schedule
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS
from feddraw.paper import (
    conclusions,
    published_tables,
    readings_in_words,
    recomputed_statistics,
    weight_claims,
    weight_ranges,
)
from typed import typed

FOUND = published_tables.published_comparisons()


def test_every_printed_statistic_is_reproduced_to_its_printed_digits() -> None:
    checks = recomputed_statistics.check_printed_numbers(FOUND)
    assert [check for check in checks if not check.agrees] == []
    printed = {(check.metric, check.quantity): check.printed for check in checks}
    assert printed["auc", "chi-square"] == "58.61"
    assert printed["gm", "chi-square"] == "63.50"
    assert printed["auc", "critical difference"] == "2.78"
    assert printed["both", "ranks of Table 6"] == "192"
    assert len(checks) == 33


def test_a_wrong_number_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = published_tables.read_published
    first, *others = read("results_auc_gm")
    wrong = (first | {"auc_mean": "85.00"}, *others)
    monkeypatch.setattr(
        published_tables,
        "read_published",
        lambda name: wrong if name == "results_auc_gm" else read(name),
    )
    assert [
        check
        for check in recomputed_statistics.check_printed_numbers(
            published_tables.published_comparisons()
        )
        if not check.agrees
    ]


def test_the_significant_pairs_are_the_papers_and_fedavg_is_not_among_them() -> None:
    assert sum(pair.significant for pair in FOUND["auc"].pairs) == 10
    assert sum(pair.significant for pair in FOUND["gm"].pairs) == 14
    assert not FOUND["auc"].pair("FedDRAW", "FedAvg").significant
    assert not FOUND["gm"].pair("FedDRAW", "FedAvg").significant
    strict = published_tables.published_comparisons(alpha=0.05)
    for metric in published_tables.METRICS:
        assert set(strict[metric].beaten_by("FedDRAW")) == {"MOON", "FedDyn", "SCAFFOLD"}
        assert strict[metric].difference == pytest.approx(3.031, abs=5e-4)


def test_the_published_sizes_are_those_of_the_scenarios() -> None:
    assert {name: tuple(sizes) for name, sizes in published_tables.client_sizes().items()} == {
        scenario.name: scenario.printed for scenario in PAPER_SCENARIOS.values()
    }


# ----------------------------------------------------------------------------------------- dynamics


def outcomes(reading: str) -> list[str]:
    return [
        "/".join(sorted({verdict.outcome for verdict in readings[reading].values()}))
        for _, readings in weight_claims.claims_by_reading()
    ]


def test_which_claims_each_reading_can_give() -> None:
    ends = [
        "always",
        "can",
        "can",
        "always",
        "can",
        "never",
        "always",
        "can",
        "can",
        "always",
        "can",
        "always",
    ]
    assert outcomes("reported") == outcomes("equation") == ends
    middle = [
        "never",
        "can",
        "can",
        "can",
        "can",
        "never",
        "never",
        "can",
        "can",
        "can",
        "can",
        "can",
    ]
    assert outcomes("algorithm1") == middle


def test_the_numbers_beside_the_claims_are_those_of_the_specification() -> None:
    sizes, printed = published_tables.client_sizes(), weight_claims.published_claims()
    first, c7_to_c9 = printed[0], printed[5]
    assert weight_claims.judge_claim(first, sizes["CHX-4"], "algorithm1").low == pytest.approx(
        0.0810, abs=5e-5
    )
    assert weight_claims.judge_claim(
        printed[6], sizes["CHX-1"], "algorithm1"
    ).high == pytest.approx(0.5307, abs=5e-5)
    failing = [
        weight_claims.judge_claim(c7_to_c9, sizes["CHX-4"], reading).failing for reading in READINGS
    ]
    assert failing == [(0, 14), (0,), (0, 14)]
    gaps = {
        reading: [readings_in_words.similarity_gap_needed("CHX-4", 6, 0.1037, reading)]
        for reading in READINGS
    }
    for reading in READINGS:
        gaps[reading].append(readings_in_words.similarity_gap_needed("CHX-1", 6, 0.2334, reading))
    assert gaps["reported"] == pytest.approx([0.0267, -0.0844], abs=5e-5)
    assert gaps["algorithm1"] == pytest.approx([0.0259, -0.0825], abs=1e-4)
    assert readings_in_words.similarity_gap_needed("CHX-4", 4, 0.1, "reported") == pytest.approx(
        0.0205, abs=5e-5
    )


def test_no_similarities_reach_beyond_a_range_and_its_ends_are_reached() -> None:
    sizes, rng = published_tables.client_sizes()["CHX-4"], np.random.default_rng(0)
    for reading in READINGS:
        for t in (0, 1, 6, 14):
            drawn = np.array(
                [
                    weight_ranges.weights_of_round(t, sizes, s, reading)
                    for s in rng.uniform(-1, 1, (300, 10)).round()
                ]
            )
            low, high = weight_ranges.weight_range(t, sizes, 9, reading)
            assert low - 1e-12 <= drawn[:, 9].min()
            assert drawn[:, 9].max() <= high + 1e-12
            spread = weight_ranges.spread_range(t, sizes, range(9), reading)
            assert np.ptp(drawn[:, :9], axis=1).max() <= spread[1] + 1e-12


@pytest.mark.parametrize("reading", ["reported", "equation"])
def test_all_claims_but_one_hold_together_for_similarities_that_can_be_written_down(
    reading: str,
) -> None:
    """A witness: every claim that can hold does, in one run of each scenario."""
    sizes = published_tables.client_sizes()
    four = witness("CHX-4", range(4, 11), 6, 0.1037, 0.000998, 6, reading)
    one = witness("CHX-1", range(5, 14), 6, 0.2334, 0.000360, 4, reading)
    weights = {}
    for name, similarity in (("CHX-4", four), ("CHX-1", one)):
        rows = schedule(
            rounds=15, sizes=sizes[name], similarities=similarity.tolist(), reading=reading
        )
        weights[name] = np.array([[client["weight"] for client in row["clients"]] for row in rows])
    small, large = weights["CHX-4"][:, 9], weights["CHX-1"][:, 0]
    assert small.round(4)[[0, 6, 14]].tolist() == [0.0270, 0.1037, 0.1]
    assert small.argmax() == 6
    assert np.flatnonzero(small > 0.1 + 1e-12).tolist() == list(range(4, 11))
    assert np.ptp(weights["CHX-4"][6, :9]) == pytest.approx(0.000998, abs=5e-7)
    below = weights["CHX-4"][:, 6:9].max(axis=1) < weights["CHX-4"][:, :9].mean(axis=1) - 1e-12
    assert np.flatnonzero(~below).tolist() == [0, 14]
    assert large.round(4)[[0, 6, 14]].tolist() == [0.5714, 0.2334, 0.25]
    assert large.argmin() == 6
    assert np.flatnonzero((large[:, None] < weights["CHX-1"][:, 1:]).all(axis=1))[0] == 5
    assert np.ptp(weights["CHX-1"][4, 1:]) == pytest.approx(0.000360, abs=5e-7)
    assert np.ptp(weights["CHX-4"][14]) == np.ptp(weights["CHX-1"][14]) == 0


def witness(name, beyond, extreme_round, extreme, spread, spread_round, reading):
    """Similarities a round: the followed client's gap puts it where it is wanted, the others spread
    a little.
    """
    sizes = published_tables.client_sizes()[name]
    followed, equal = readings_in_words.FOLLOWED_CLIENT[name], 1 / len(sizes)
    others = [i for i in range(len(sizes)) if i != followed]
    table = np.zeros((15, len(sizes)))  # only differences matter
    for t in range(1, 14):
        step = 0.5 if t in beyond else -0.1
        weight = extreme if t == extreme_round else equal + step * (extreme - equal)
        gap = weight_ranges.similarity_gap(t, sizes, followed, weight, reading)
        width = 1e-4
        for _ in range(60):  # the spread wanted, by iteration
            table[t, others] = np.linspace(0.5, -0.5, len(others)) * width
            table[t, followed] = gap
            found = weight_ranges.weights_of_round(t, sizes, table[t], reading)
            width *= spread / np.ptp(found[others]) if t == spread_round else 1.0
            gap += 2 * (weight - found[followed])
    return table


# ----------------------------------------------------------------------------------------- in words


def test_every_sentence_stands_on_numbers_and_says_what_matters() -> None:
    found = {one.topic: one for one in conclusions.conclusions(FOUND)}
    assert all(one.numbers for one in found.values())
    assert "not significant at the paper's own threshold" in found["against FedAvg"].text
    assert found["noise floor"].numbers["spans"]["auc"] == pytest.approx([0.64, 0.20])
    assert found["noise floor"].numbers["spans"]["gm"] == pytest.approx([0.74, 0.29])
    assert found["signed ranks"].numbers["largest_holm_p"]["auc"] == pytest.approx(0.016, abs=5e-4)
    assert found["FedNova"].numbers["coefficients"] == pytest.approx([0.1059, 0.1039], abs=5e-5)
    assert found["severity"].numbers["gini"] == pytest.approx(
        [0.321, 0.300, 0.173, 0.073], abs=5e-4
    )
    assert list(found["similarity gaps"].numbers["possible"].values()) == pytest.approx(
        [0.0153, 0.0622], abs=1e-4
    )
    assert found["GM and AUC"].numbers["gm_gain_not_larger"] == ["CHX-6", "CHM-2"]


def test_paper_prints_draws_and_agrees_with_its_json(tmp_path: Path) -> None:
    done = typed("paper", "--plot", "figures", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for expected in (
        "33 of 33 printed statements",
        "58.61",
        "63.50",
        "never: 0.0810",
        "never: 0.5307",
        "not in 0, 14",
    ):
        assert expected in done.stdout
    assert "\x1b" not in done.stdout
    drawn = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert drawn == [
        f"critical-difference-{metric}.{ending}"
        for metric in ("auc", "gm")
        for ending in ("png", "svg")
    ]

    document = json.loads(typed("paper", "--json", folder=tmp_path).stdout)
    assert all(check["agrees"] for check in document["checks"])
    assert document["metrics"]["auc"]["friedman"]["statistic"] == pytest.approx(58.6111, abs=5e-5)
    assert document["metrics"]["gm"]["critical_difference"] == pytest.approx(2.7799, abs=5e-5)
    assert document["printed_ranks"]["auc"] == document["metrics"]["auc"]["ranks"]
    assert document["dynamics"][0]["readings"]["algorithm1"]["CHX-4"]["outcome"] == "never"
    assert {finding["shows"] for finding in document["findings"]} == {True, False}


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = typed("paper", "--plot", "file", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "feddraw: cannot make the folder file: File exists"


def test_stats_and_paper_cost_the_help_nothing() -> None:
    code = (
        "import sys; sys.argv = ['feddraw', '--help']\n"
        "from feddraw.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'scipy', 'matplotlib', 'numpy.testing', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# -------------------------------------------------------------------------------------- the diagram


@pytest.mark.parametrize("methods", [2, 8, 12])
def test_nothing_in_the_diagram_is_printed_over_anything_else(methods: int) -> None:
    rng = np.random.default_rng(methods)
    ranks = {
        f"method-{i}+fedprox": float(r)
        for i, r in enumerate(np.sort(rng.uniform(1, methods, methods)))
    }
    names = list(ranks)
    groups = [names[i : i + 3] for i in range(0, methods - 1, 2)]
    auc: Any = SimpleNamespace(average_ranks=ranks, groups=groups, difference=2.78, alpha=0.05)
    gm: Any = SimpleNamespace(
        average_ranks=ranks, groups=[names], difference=1.2 * methods, alpha=0.05
    )
    figure = critical_difference_figure({"AUC": auc, "GM": gm})
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    boxes = [
        text.get_window_extent() for axes in figure.axes for text in [*axes.texts, axes._left_title]
    ]
    for i, one in enumerate(boxes):
        assert figure.bbox.x0 <= one.x0 <= one.x1 <= figure.bbox.x1
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert all(any(name in label for label in labels) for name in names)
    assert "critical difference 2.78" in labels
