"""The atlas' analysis, on tables made up for it: regret by hand, every verdict both ways, and pages filled in."""

from __future__ import annotations

import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def atlas():
    spec = spec_from_file_location("atlas", PROJECT / "benchmarks" / "atlas.py")
    module = module_from_spec(spec)
    sys.modules["atlas"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["atlas"]


def runs(atlas, auc, replicates=6, regimes=None, rules=None, tail=0.0):
    """Runs whose AUC is that of a function of regime and rule, with noise that all rules of a replicate share."""
    noise = np.random.default_rng(0).normal(0, 0.02, 100)
    own = np.random.default_rng(1).normal(0, 0.002, 10_000)
    made = []
    for regime in regimes or atlas.REGIMES:
        for rule in rules or atlas.RULES:
            for seed in range(replicates):
                level = auc(regime, rule) + noise[seed] + own[len(made)]
                made.append(atlas.Run(regime, rule, str(seed), (level - 0.1,) * 5 + (level,) * 10, level + tail, {}))
    return made


def evidence(atlas, phantom, nih=(), rho=None):
    measured = [
        {
            "data": "phantom",
            "regime": regime,
            "seed": "0",
            "mean_size": "100",
            "rho_0": value,
            "rho_1": value,
            "rho_2": value,
        }
        for regime, value in (rho or {}).items()
    ]
    return atlas.Evidence(phantom, list(nih), measured)


def outcomes(atlas, known):
    return {one.name.split(",")[0].split(":")[0]: one.outcome for one in atlas.verdicts(known)}


BAD_LARGE = ("enriched", "labels, large", "blur, large")
BAD_SMALL = ("labels, small", "blur, small")


def expected(regime, rule):
    """As the hypotheses have it: FedAvg loses by a bad large site, uniform averaging by a bad small one."""
    loss = {"fedavg": 0.06 * (regime in BAD_LARGE), "uniform": 0.06 * (regime in BAD_SMALL)}
    return 0.7 - loss.get(rule, 0.0)


def test_a_world_as_registered_holds(atlas):
    rho = {regime: "0.001" if regime in BAD_SMALL else "1.0" for regime in atlas.REGIMES}
    found = outcomes(atlas, evidence(atlas, runs(atlas, expected, tail=0.01), rho=rho))
    assert {name: found[name] for name in ("H1", "H2", "H4", "H5", "H6", "H7", "H12")} == dict.fromkeys(
        ("H1", "H2", "H4", "H5", "H6", "H7", "H12"), atlas.HELD
    )
    assert found["H9"] == found["H10"] == found["H11"] == found["H8"] == atlas.OPEN


def test_the_opposite_world_fails(atlas):
    def opposite(regime, rule):
        good = {"fedavg": 0.06 * (regime not in BAD_SMALL), "uniform": 0.06 * (regime in BAD_SMALL)}
        return 0.7 + good.get(rule, 0.0) + 0.03 * (rule == "feddraw") - 0.05 * (rule not in ("fedavg", "uniform"))

    rho = dict.fromkeys(atlas.REGIMES, "1.0")
    found = outcomes(atlas, evidence(atlas, runs(atlas, opposite, tail=-0.01), rho=rho))
    names = ("H1", "H2", "H4", "H5", "H6", "H7", "H12")
    assert {name: found[name] for name in names} == dict.fromkeys(names, atlas.FAILED)


def test_nothing_of_an_unfinished_main_table_is_decided(atlas):
    found = outcomes(atlas, evidence(atlas, runs(atlas, expected, replicates=3)))
    assert set(found.values()) == {atlas.OPEN}


def test_regret_is_to_what_the_other_replicates_choose(atlas):
    options = np.array([[0.9, 0.1, 0.1], [0.2, 0.2, 0.2]])  # the first is better in one replicate only
    assert atlas._chosen(options).tolist() == [0.2, 0.1, 0.1]
    worst, bound, place = atlas.worst_regret(np.array([[0.0, 0.0], [0.01, 0.03]]))
    assert (worst, place) == (pytest.approx(0.02), 1)
    assert bound == pytest.approx(0.03)


def test_candidates_powers_and_sites_left_out_are_judged_when_they_are_there(atlas):
    main = runs(atlas, expected)
    candidates = runs(atlas, lambda *_: 0.7, regimes=atlas.TRIED, rules=atlas.CANDIDATES)
    powers = runs(atlas, lambda *_: 0.69, regimes=atlas.POWERED, rules=[p for p in atlas.POWERS if "size" in p])
    alone = runs(atlas, lambda *_: 0.8, regimes=[f"{r}, without it" for r in atlas.WITHOUT], rules=["uniform"])
    found = outcomes(atlas, evidence(atlas, [*main, *candidates, *powers, *alone]))
    assert [found[name] for name in ("H9", "H10")] == [atlas.HELD] * 2
    assert found["H11"] in (atlas.HELD, atlas.OPEN)  # level with FedDRAW: a matter of noise
    better = runs(atlas, lambda *_: 0.76, regimes=atlas.TRIED, rules=atlas.CANDIDATES)
    assert outcomes(atlas, evidence(atlas, [*main, *better]))["H11"] == atlas.HELD


@pytest.mark.parametrize(("of_two_steps", "outcome"), [(0.0, "held"), (0.06, "failed")])
def test_drift_compares_what_few_and_many_local_steps_lose(atlas, of_two_steps, outcome):
    def auc(regime, rule):
        loss = of_two_steps if regime == "enriched, 2 steps" else 0.05
        return 0.7 - loss * (rule == "fedavg")

    regimes = [f"{regime}, {steps} steps" for regime in ("alike", "enriched") for steps in atlas.LOCAL_STEPS]
    made = runs(atlas, auc, regimes=regimes, rules=("fedavg", "uniform"))
    known = atlas.Evidence(runs(atlas, expected), [], [], made)
    assert atlas.drift(known).outcome == outcome
    assert "| 2 × 48 | +0.05" in atlas.drift_table(known)


def test_targets_weigh_sites_by_size_plainly_and_by_the_worst(atlas):
    run = atlas.Run("blur, large", "uniform", "0", (0.8,) * 6, 0.8, {"C4": (0.6,) * 6})
    found = {name: value(run) for name, value in atlas.TARGETS.items()}
    assert found["clean patients"] == pytest.approx(0.8)
    assert found["pooled patients"] == pytest.approx((285 * 0.8 + 500 * 0.6) / 785)
    assert found["mean site"] == pytest.approx(0.75)
    assert found["worst site"] == pytest.approx(0.6)


def test_intervals_of_folds_are_wider(atlas):
    differences = np.array([0.01, 0.02, 0.03, 0.0, 0.04])
    mean, low, high, p = atlas.student(differences)
    assert (mean, low + high) == (pytest.approx(0.02), pytest.approx(0.04))
    assert p == pytest.approx(0.0474, abs=1e-3)
    wider = atlas.student(differences, 1 / 4)
    assert (wider[2] - wider[1]) / (high - low) == pytest.approx(1.5)
    assert math.isnan(atlas.student(np.array([0.1]))[3])


def test_a_page_is_filled_between_its_marks(atlas, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- atlas: gaps -->\nold\n<!-- atlas: end -->\nafter\n")
    for words in ("new", "newer"):
        atlas.fill(page, {"gaps": words})
    assert page.read_text() == "before\n<!-- atlas: gaps -->\nnewer\n<!-- atlas: end -->\nafter\n"


def test_tables_and_figures_are_made_of_whatever_is_there(atlas):
    whole = evidence(atlas, runs(atlas, expected), rho=dict.fromkeys(atlas.REGIMES, "0.5"))
    assert "| labels, large | 0.6" in atlas.fragments(whole)["gaps"].replace("**", "")
    for known in (evidence(atlas, ()), evidence(atlas, runs(atlas, expected, 1)), whole):
        assert set(atlas.fragments(known)) > {"verdicts", "regret"}
        for figure in (atlas.gaps_figure, atlas.curves_figure, atlas.decision_figure):
            assert figure(known).axes
