"""The atlas' analysis, on tables made up for it: regret by hand, every verdict both ways, and pages
filled in.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def atlas():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "benchmarks")
        module = import_module("atlas")
    yield module
    for name in ("atlas", "atlas_later_stages", "atlas_runs"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def stages(atlas):
    return atlas.atlas_later_stages


def runs(atlas, auc, replicates=6, regimes=None, rules=None, tail=0.0, spread=0.002):
    """Runs whose AUC is that of a function of regime and rule, with noise that all rules of a
    replicate share.
    """
    noise = np.random.default_rng(0).normal(0, 0.02, 100)
    own = np.random.default_rng(1).normal(0, spread, 10_000)
    made = []
    for regime in regimes or atlas.REGIMES:
        for rule in rules or atlas.RULES:
            for seed in range(replicates):
                level = auc(regime, rule) + noise[seed] + own[len(made)]
                curve = (level - 0.1,) * 5 + (level,) * 10
                made.append(
                    atlas.Run(
                        regime, rule, str(seed), curve, level + tail, {}, level, f"split {seed}"
                    )
                )
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
    """As the hypotheses have it: FedAvg loses by a bad large site, uniform averaging by a bad small
    one.
    """
    loss = {"fedavg": 0.06 * (regime in BAD_LARGE), "uniform": 0.06 * (regime in BAD_SMALL)}
    return 0.7 - loss.get(rule, 0.0)


def test_a_world_as_registered_holds(atlas):
    rho = {regime: "0.001" if regime in BAD_SMALL else "1.0" for regime in atlas.REGIMES}
    found = outcomes(atlas, evidence(atlas, runs(atlas, expected, tail=0.01), rho=rho))
    assert {
        name: found[name] for name in ("H1", "H2", "H4", "H5", "H6", "H7", "H12")
    } == dict.fromkeys(("H1", "H2", "H4", "H5", "H6", "H7", "H12"), atlas.HELD)
    assert found["H9"] == found["H10"] == found["H11"] == found["H8"] == atlas.OPEN


def test_the_opposite_world_fails(atlas):
    def opposite(regime, rule):
        good = {"fedavg": 0.06 * (regime not in BAD_SMALL), "uniform": 0.06 * (regime in BAD_SMALL)}
        return (
            0.7
            + good.get(rule, 0.0)
            + 0.03 * (rule == "feddraw")
            - 0.05 * (rule not in ("fedavg", "uniform"))
        )

    rho = dict.fromkeys(atlas.REGIMES, "1.0")
    found = outcomes(atlas, evidence(atlas, runs(atlas, opposite, tail=-0.01), rho=rho))
    names = ("H1", "H2", "H4", "H5", "H6", "H7", "H12")
    assert {name: found[name] for name in names} == dict.fromkeys(names, atlas.FAILED)


def test_nothing_of_an_unfinished_main_table_is_decided(atlas):
    found = outcomes(atlas, evidence(atlas, runs(atlas, expected, replicates=3)))
    assert set(found.values()) == {atlas.OPEN}


def test_regret_is_to_what_the_other_replicates_choose(atlas):
    options = np.array(
        [[0.9, 0.1, 0.1], [0.2, 0.2, 0.2]]
    )  # the first is better in one replicate only
    assert atlas._chosen(options).tolist() == [0.2, 0.1, 0.1]
    worst, bound, place = atlas.worst_regret(np.array([[0.0, 0.0], [0.01, 0.03]]))
    assert (worst, place) == (pytest.approx(0.02), 1)
    assert bound == pytest.approx(0.03)


def test_candidates_powers_and_sites_left_out_are_judged_when_they_are_there(atlas):
    main = runs(atlas, expected)
    candidates = runs(atlas, lambda *_: 0.7, regimes=atlas.TRIED, rules=atlas.CANDIDATES)
    powers = runs(
        atlas,
        lambda *_: 0.69,
        regimes=atlas.POWERED,
        rules=[p for p in atlas.POWERS if "size" in p],
    )
    alone = runs(
        atlas,
        lambda *_: 0.8,
        regimes=[f"{r}, without it" for r in atlas.WITHOUT],
        rules=["uniform"],
    )
    found = outcomes(atlas, evidence(atlas, [*main, *candidates, *powers, *alone]))
    assert [found[name] for name in ("H9", "H10")] == [atlas.HELD] * 2
    assert found["H11"] in (atlas.HELD, atlas.OPEN)  # level with FedDRAW: a matter of noise
    better = runs(atlas, lambda *_: 0.76, regimes=atlas.TRIED, rules=atlas.CANDIDATES)
    assert outcomes(atlas, evidence(atlas, [*main, *better]))["H11"] == atlas.HELD


@pytest.mark.parametrize(
    ("of_two_steps", "outcome"), [(0.0, "held"), (0.06, "failed"), (0.025, "not decided")]
)
def test_drift_compares_what_few_and_many_local_steps_lose(atlas, stages, of_two_steps, outcome):
    def auc(regime, rule):
        loss = of_two_steps if regime == "enriched, 2 steps" else 0.05
        return 0.7 - loss * (rule == "fedavg")

    regimes = [
        f"{regime}, {steps} steps"
        for regime in ("alike", "enriched")
        for steps in stages.LOCAL_STEPS
    ]
    made = runs(atlas, auc, regimes=regimes, rules=("fedavg", "uniform"))
    assert stages.drift(made).outcome == outcome
    assert stages.drift([run for run in made if run.seed != "5"]).outcome == atlas.OPEN
    assert "| 2 × 48 | +0.05" in stages.drift_table(made)


def similarity_runs(atlas, stages, auc, **about):
    """`auc` is a function of regime, similarity and β_max."""
    rules = {stages.with_beta(*of): of for of in product(stages.SIMILARITIES, stages.BETAS)}
    return runs(
        atlas,
        lambda regime, rule: auc(regime, *rules[rule]),
        regimes=stages.COMPARED_IN,
        rules=rules,
        **about,
    )


@pytest.mark.parametrize(
    ("gain", "outcome"),
    [(0.01, "held"), (-0.01, "held"), (0.03, "failed"), (-0.03, "failed"), (0.018, "not decided")],
)
def test_similarity_is_held_against_that_of_another_client_at_every_beta(
    atlas, stages, gain, outcome
):
    def auc(regime, similarity, beta):
        return 0.7 - gain * ((regime, similarity, beta) == ("enriched", "shuffled", "30.0"))

    made = similarity_runs(atlas, stages, auc)
    assert stages.shuffled(made).outcome == outcome
    assert (
        f"the largest of 6: shuffled, enriched, β_max 30: {'+' if gain > 0 else '−'}0"
        in stages.shuffled(made).words
    )
    assert (
        stages.shuffled(made[:-1]).outcome == atlas.OPEN
    )  # a run of another similarity is missing
    assert stages.shuffled(similarity_runs(atlas, stages, auc, spread=0.1)).outcome == atlas.OPEN


@pytest.mark.parametrize(
    ("gain", "spread", "outcome"),
    [
        (0.01, 0.002, "held"),
        (0.0, 0.002, "failed"),
        (-0.03, 0.002, "failed"),
        (0.01, 0.05, "not decided"),
    ],
)
def test_another_similarity_is_better_if_one_of_twelve_is(atlas, stages, gain, spread, outcome):
    def auc(regime, similarity, beta):
        return 0.7 + gain * (
            (regime, similarity, beta) == ("labels, large", "of all layers", "3.0")
        )

    made = similarity_runs(atlas, stages, auc, spread=spread)
    assert stages.other_similarity(made).outcome == outcome
    assert "best of 12" in stages.other_similarity(made).words
    assert stages.other_similarity([run for run in made if run.seed != "0"]).outcome == atlas.OPEN


def choices_of(atlas, stages, gain, spread=0.002):
    """A main table in which AFL gains, and three more uniform runs per replicate; validation tells
    who is best.
    """
    main = runs(
        atlas, lambda _, rule: 0.7 + gain * (rule == "afl"), rules=stages.CHOICES, spread=spread
    )
    main = [replace(run, validation=0.9 if run.rule == "afl" else 0.5) for run in main]
    again = [
        replace(run, regime=f"{run.regime}, images {run.seed}", seed=f"30{number}", validation=0.4)
        for run, number in product([run for run in main if run.rule == "uniform"], range(3))
        if run.regime in stages.CHOSEN_IN
    ]
    return main, again


@pytest.mark.parametrize(
    ("gain", "spread", "outcome"),
    [
        (0.02, 0.002, "held"),
        (-0.02, 0.002, "failed"),
        (0.0, 0.002, "failed"),
        (0.0, 0.05, "not decided"),
    ],
)
def test_choosing_among_rules_is_held_against_choosing_among_uniform_runs(
    atlas, stages, gain, spread, outcome
):
    main, again = choices_of(atlas, stages, gain, spread)
    assert stages.choosing(again, main).outcome == outcome
    assert "afl 6" in stages.choosing_table(again, main)
    assert (
        stages.choosing(again[:-1], main).outcome
        == stages.choosing(again, main[1:]).outcome
        == atlas.OPEN
    )
    elsewhere = [replace(again[0], partition="another split"), *again[1:]]
    assert stages.choosing(elsewhere, main).outcome == atlas.OPEN


def test_what_is_chosen_has_the_best_validation_not_the_best_test(atlas, stages):
    main, again = choices_of(atlas, stages, -0.1)
    again[0] = replace(again[0], validation=0.95, curve=(0.3,) * 15)
    rules, uniform = stages.chosen_runs(again, main)["alike"]["0"]
    assert (rules.rule, uniform.late) == ("afl", pytest.approx(0.3))


def rival_runs(atlas, stages, auc, **about):
    rules = [
        "uniform",
        *(name for rule in (*stages.RIVALS, "feddraw") for name in stages.settings_of(rule)),
    ]
    return runs(atlas, auc, regimes=stages.TUNED_IN, rules=rules, **about)


@pytest.mark.parametrize(
    ("gain", "spread", "outcome"),
    [
        (0.03, 0.002, "failed"),
        (0.0, 0.002, "held"),
        (0.019, 0.002, "not decided"),
        (0.0, 0.1, "not decided"),
    ],
)
def test_a_tuned_rival_is_better_by_the_margin_or_none_is(atlas, stages, gain, spread, outcome):
    def auc(regime, rule):
        return (
            0.7
            + gain * ((regime, rule) == ("enriched", "moon,mu=0.1"))
            + 0.1 * rule.startswith("feddraw")
        )

    made = rival_runs(atlas, stages, auc, spread=spread)
    assert stages.tuned_rivals(made).outcome == outcome  # FedDRAW is none of the fourteen
    assert "best of 14" in stages.tuned_rivals(made).words
    assert stages.tuned_rivals(made[:-1]).outcome == atlas.OPEN
    if gain:
        assert "0.1 (6) |" in next(
            line for line in stages.rivals_table(made).splitlines() if line.startswith("| moon")
        )


def test_a_rival_is_tuned_by_the_validation_of_other_replicates(atlas, stages):
    made = rival_runs(atlas, stages, lambda *_: 0.7)
    best = {
        ("fedprox,mu=0.1", "0"): 9.0,
        ("fedprox,mu=1.0", "1"): 5.0,
        ("fedprox,mu=1.0", "2"): 5.0,
    }
    made = [replace(run, validation=best.get((run.rule, run.seed), 0.0)) for run in made]
    gaps, chosen = stages.tuned(made)["alike", "fedprox"]
    assert chosen == ["fedprox,mu=1.0", *["fedprox,mu=0.1"] * 2, *["fedprox,mu=1.0"] * 3]
    late = {(run.rule, run.seed): run.late for run in made if run.regime == "alike"}
    assert gaps[0] == pytest.approx(late["fedprox,mu=1.0", "0"] - late["uniform", "0"])


def lead_runs(atlas, stages, gain, replicates=10, spread=0.002):
    def auc(scenario, rule):
        return 0.7 + gain * stages.LEADS[scenario] * (rule == "feddraw")

    return runs(
        atlas, auc, replicates, regimes=stages.LEADS, rules=("feddraw", "uniform"), spread=spread
    )


@pytest.mark.parametrize(
    ("about", "outcome"),
    [
        ({"gain": 0.01}, "held"),
        ({"gain": -0.01}, "failed"),
        ({"gain": 0.0}, "failed"),
        ({"gain": 0.01, "spread": 0.05}, "failed"),  # what is not confirmed is retracted
        ({"gain": 0.01, "replicates": 9}, "not decided"),
    ],
)
def test_leads_of_the_replication_are_confirmed_or_retracted(atlas, stages, about, outcome):
    made = lead_runs(atlas, stages, **about)
    assert [one.outcome for one in stages.leads(made)] == [outcome] * 2


def test_intervals_of_leads_know_that_folds_share_images(atlas, stages):
    made = lead_runs(atlas, stages, 0.01)
    table = atlas.values(made, ("CHM-3",), ("feddraw", "uniform"), stages.late)
    plain = atlas.student(atlas.paired(table, "CHM-3", "feddraw", "uniform"))
    wide = stages.lead_gaps(made, stages.late)["CHM-3"]
    assert wide[0] == plain[0]
    assert (wide[2] - wide[1]) / (plain[2] - plain[1]) == pytest.approx(
        math.sqrt(1 + 10 / 4)
    )  # ten trainings, five folds


def left_out_runs(atlas, stages, gains, **about):
    """The gains of rules at the left-out site; all are level elsewhere."""
    made = runs(
        atlas,
        lambda _, rule: 0.6 + gains.get(rule, 0.0),
        regimes=stages.WITHOUT_SITE,
        rules=stages.LEFT_OUT_RULES,
        **about,
    )
    others = dict.fromkeys(stages.LEFT_OUT, (0.8,) * 15)
    return [
        replace(run, curve=(0.8,) * 15, sites=others | {run.regime[-2:]: run.curve}) for run in made
    ]


@pytest.mark.parametrize(
    ("gains", "spread", "outcomes"),
    [
        ({"fedavg": -0.03}, 0.002, ["held", "held"]),
        ({"fedavg": -0.01, "feddraw": 0.03}, 0.002, ["held", "failed"]),
        ({}, 0.002, ["failed", "held"]),
        ({"fedavg": 0.03}, 0.002, ["failed", "failed"]),
        ({"random_effects": 0.0195}, 0.002, ["failed", "not decided"]),
        ({}, 0.1, ["not decided", "not decided"]),
    ],
)
def test_a_site_left_out_is_judged_by_its_own_images(atlas, stages, gains, spread, outcomes):
    made = left_out_runs(atlas, stages, gains, spread=spread)
    assert [one.outcome for one in stages.left_out(made)] == outcomes
    assert [one.outcome for one in stages.left_out(made[1:])] == [atlas.OPEN] * 2
    assert "| C3 | contrast 0.5, crop 0.1 | 0." in stages.left_out_table(made)


def fine_tuned_runs(atlas, stages, gains, replicates=5, spread=0.002):
    def auc(regime, rule):
        return 0.7 + gains.get((regime, rule), 0.0)

    about = {"regimes": stages.FINE_TUNED_IN, "rules": stages.FINE_TUNED_RULES, "spread": spread}
    return runs(atlas, auc, replicates, **about)


@pytest.mark.parametrize(
    ("gains", "spread", "outcomes"),
    [
        ({("enriched", "fedavg"): -0.03}, 0.002, ["held", "held"]),
        ({("alike", "feddraw"): 0.03}, 0.002, ["failed", "failed"]),
        ({("enriched", "fedavg"): 0.03}, 0.002, ["failed", "failed"]),
        ({}, 0.002, ["failed", "held"]),
        ({}, 0.1, ["not decided", "not decided"]),
    ],
)
def test_a_fine_tuned_network_is_judged_over_five_folds(atlas, stages, gains, spread, outcomes):
    made = fine_tuned_runs(atlas, stages, gains, spread=spread)
    assert [one.outcome for one in stages.fine_tuned(made)] == outcomes
    assert [one.outcome for one in stages.fine_tuned(made[1:])] == [atlas.OPEN] * 2
    assert "| enriched | 0." in stages.fine_tuned_table(made)


def test_settings_are_named_as_the_studies_name_them(stages):
    from feddraw.study.plan import read_study

    named = {
        name: {
            (one.label["scenario"], one.label["method"])
            for one in read_study(PROJECT / f"studies/atlas-{name}.toml", trust=True)
        }
        for name in stages.STUDIES
    }
    betas = [stages.with_beta(*of) for of in product(stages.SIMILARITIES, stages.BETAS)]
    rivals = [
        "uniform",
        *(name for rule in (*stages.RIVALS, "feddraw") for name in stages.settings_of(rule)),
    ]
    images = [f"{regime}, images {seed}" for regime in stages.CHOSEN_IN for seed in range(100, 106)]
    steps = [f"{regime}, {n} steps" for regime in ("alike", "enriched") for n in stages.LOCAL_STEPS]
    assert named["drift"] == set(product(steps, ("fedavg", "uniform")))
    assert named["similarity"] == set(product(stages.COMPARED_IN, betas))
    assert named["chosen"] == set(product(images, ["uniform"]))
    assert named["rivals"] == set(product(stages.TUNED_IN, rivals))
    assert named["confirm"] == set(product(stages.LEADS, ("feddraw", "uniform")))
    assert named["left-out"] == set(product(stages.WITHOUT_SITE, stages.LEFT_OUT_RULES))
    assert named["pretrained"] == set(product(stages.FINE_TUNED_IN, stages.FINE_TUNED_RULES))


def test_nothing_of_an_unfinished_study_is_shown(atlas, stages):
    main, again = choices_of(atlas, stages, 0.1)
    some = {
        "similarity": similarity_runs(atlas, stages, lambda *_: 0.7)[:-1],
        "chosen": again[:-1],
        "rivals": rival_runs(atlas, stages, lambda *_: 0.7)[:-1],
        "confirm": lead_runs(atlas, stages, 0.01)[:-1],
        "left-out": left_out_runs(atlas, stages, {})[:-1],
        "pretrained": fine_tuned_runs(atlas, stages, {})[:-1],
    }
    assert {one.outcome for one in stages.verdicts(some, main)} == {atlas.OPEN}
    for studies in (some, {}):
        shown = stages.tables(studies, main)
        assert not any(
            re.search(r"\d\.\d{3}", shown[name]) for name in (*some, "similarity-others")
        )


def test_a_run_that_diverged_has_the_auc_of_chance_where_it_has_none(atlas, tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text(
        "scenario,method,seed,auc,validation_auc,auc_by_round,partition,auc_by_site_by_round\n"
        "alike,moon,1,,,,abc,\nalike,moon,2,0.8,0.7,0.6 0.8,abc,C1 0.1 0.2; C2 0.3 0.4\n"
    )
    broken, whole = atlas.load(table)
    assert (broken.late, broken.validation) == (0.5, 0.5)
    assert (whole.late, whole.validation, whole.partition) == (pytest.approx(0.7), 0.7, "abc")
    assert whole.sites["C2"] == (0.3, 0.4)


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
    assert [atlas.student(np.full(3, same))[3] for same in (0.0, 0.5)] == [1, 0]


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
