"""The study of contributions: what its sites are given, its estimates on a small table, and its
tables on simulated rows whose truth is known.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import contribution_study as study
from benchmarks import contribution_study_tables as tables
from benchmarks.contribution_study import Images, Row, dealt_sites, make_task, mean_cosines
from benchmarks.work_study import FeatureTable
from feddraw.data.dataset import Labels

FINDINGS = ("Atelectasis", study.RARE)


def images(count: int = 600) -> Images:
    """Features that tell of the findings, three images per patient."""
    rng = np.random.default_rng(0)
    values = (rng.random((count, 2)) < (0.4, 0.15)).astype(np.int8)
    features = (values @ rng.normal(size=(2, 12)) + rng.normal(size=(count, 12))).astype(np.float32)
    labels = Labels(
        names=np.array([f"{i}.png" for i in range(count)]),
        patients=np.array([f"P{i // 3}" for i in range(count)]),
        sites=np.array([f"H{i // 3 % 2}" for i in range(count)]),
        findings=FINDINGS,
        values=values,
    )
    return Images(FeatureTable.of_head(features, labels), features[::-1].copy())


def sites_of(condition: str, split: int = 1) -> tuple[Images, np.ndarray, study.SiteData]:
    every = images()
    training = np.arange(450)
    return every, training, dealt_sites(every, training, condition, split)


def test_no_patient_is_at_two_sites_and_no_image_is_lost() -> None:
    every, training, sites = sites_of("none")
    assert sorted(np.concatenate(sites.rows)) == training.tolist()
    patients = every.table.labels.patient_numbers()
    assert patients is not None
    own = [set(patients[rows]) for rows in sites.rows]
    assert sum(map(len, own)) == len(set.union(*own))
    assert sites.marked == (1,)


def test_each_condition_changes_its_site_alone() -> None:
    every, _, plain = sites_of("none")
    features = every.table.features
    targets = every.table.labels.targets()
    wrong = sites_of("wrong labels")[2]
    blurred = sites_of("blurred")[2]
    for site in (0, 2, 3, 4):
        for other in (wrong, blurred):
            assert np.array_equal(other.rows[site], plain.rows[site])
    own = plain.rows[1]
    turned = wrong.examples.targets[wrong.rows[1]] != targets[own]
    assert 0.2 < turned.mean() < 0.4
    assert np.array_equal(wrong.examples.images[wrong.rows[1]], features[own])
    assert np.array_equal(blurred.examples.images[blurred.rows[1]], every.blurred[own])
    assert np.array_equal(wrong.examples.targets[: len(targets)], targets)
    copy = sites_of("copy")[2]
    assert copy.marked == (1, 2)
    assert np.array_equal(copy.rows[1], plain.rows[2])
    assert sites_of("empty")[2].idle == 1


def test_only_the_small_site_has_the_rare_finding() -> None:
    every, training, rare = sites_of("rare")
    _, _, small = sites_of("small")
    has_it = every.table.labels.values[:, FINDINGS.index(study.RARE)] == 1
    assert [int(has_it[rows].sum() > 0) for rows in rare.rows] == [0, 1, 0, 0, 0]
    assert has_it[rare.rows[1]].sum() == has_it[training].sum()
    assert len(small.rows[1]) < 0.4 * len(small.rows[0])
    assert all(has_it[rows].any() for rows in small.rows)


def test_a_site_that_sends_nothing_new_moves_nothing_and_the_values_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study, "ROUNDS", 2)
    task = make_task(images(), 1, "empty")
    model, rounds = task.trained(range(5))
    assert np.array_equal(rounds[0].updates[1].model.params, rounds[0].round.sent.params)
    assert mean_cosines(rounds)[1] == 0
    found = study.all_estimates(task, replicates=5)
    assert found.keys() == set(study.ESTIMATORS)
    first, last = task.values([rounds[0].round.sent, model], 5)[:, 0, 0]
    assert found["shapley"].values[:, 0].sum() == pytest.approx(last - first, abs=1e-9)
    without, _ = task.trained([0, 2, 3, 4])
    change = last - task.values([without], 5)[0, 0, 0]
    assert found["retrained"].values[1, 0] == pytest.approx(change, abs=1e-12)


def test_a_stopped_stage_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "ROUNDS", 1)
    monkeypatch.setattr(study, "REPLICATES", 3)
    monkeypatch.setattr(study, "CONDITIONS", ("none", "copy"))
    monkeypatch.setitem(study.SPLITS, "run", range(1))
    study.carry_out(images(), "run", lambda *_: None, tmp_path)
    before = study.read_rows("run", tmp_path)
    assert len(before) == 8
    monkeypatch.setitem(study.SPLITS, "run", range(2))
    study.carry_out(images(), "run", lambda *_: None, tmp_path)
    after = study.read_rows("run", tmp_path)
    assert after[:8] == before
    assert len(after) == 16


def simulated(effect: float, condition: str = "wrong labels", splits: int = 40) -> list[Row]:
    """Five sites whose values have a spread of 1; the marked one is lower by the effect."""
    rng = np.random.default_rng(0)
    rows = []
    for split in range(splits):
        for name, shift in (("none", 0.0), ("small", 0.0), (condition, effect)):
            for estimator in study.ESTIMATORS:
                values = rng.normal(size=study.SITES)
                values[split % study.SITES] -= shift
                text = " ".join(map(str, values))
                errors = " ".join(["1.118"] * study.SITES)  # of one minus the mean of four others
                rows.append(
                    Row(split, name, estimator, str(split % study.SITES), text, text, errors, 1.0)
                )
    return rows


def test_power_is_the_level_without_an_effect_and_one_with_a_large_one() -> None:
    nothing = tables.power(simulated(0.0), "wrong labels", "shapley")
    assert nothing.value <= 0.15
    assert nothing.verdict == "not shown"
    large = tables.power(simulated(6.0), "wrong labels", "shapley")
    assert large.value > 0.95
    assert large.verdict == "finds"
    assert tables.at_the_end(simulated(6.0), "wrong labels", "rounds").value > 0.95


def test_a_rare_finding_is_looked_for_at_the_other_end() -> None:
    rows = simulated(-6.0, "rare")
    assert tables.power(rows, "rare", "retrained").value > 0.95
    assert tables.power(rows, "rare", "retrained", rare=True).value > 0.95
    assert tables.power(simulated(6.0, "rare"), "rare", "retrained").value == 0


def test_intervals_of_one_training_are_right_five_times_in_a_hundred_where_errors_are() -> None:
    said = tables.said_of_one_training(simulated(0.0, splits=200), "none", "shapley")
    assert said.of == 1000
    assert 0.03 < said.value < 0.08


def test_verdicts_follow_from_clopper_and_pearson() -> None:
    assert tables.Share(0, 40).interval[0] == 0
    assert tables.Share(20, 40).interval == pytest.approx((0.338, 0.662), abs=1e-3)
    assert [tables.Share(n, 40).verdict for n in (2, 12, 30)] == ["not shown", "sometimes", "finds"]


def test_agreement_is_one_for_the_same_ranks() -> None:
    rows = []
    for split in range(4):
        values = np.random.default_rng(split).permutation(8).astype(float)
        for estimator, shown in (
            ("retrained", values),
            ("shapley", 2 * values + 1),
            ("rounds", -values),
        ):
            text = " ".join(map(str, shown))
            rows.append(Row(split, "natural", estimator, "", text, text, text, 1.0))
    assert tables.agreement(rows, "shapley").tolist() == pytest.approx([1.0] * 4)
    assert tables.agreement(rows, "rounds").tolist() == pytest.approx([-1.0] * 4)
    assert tables.correlation_of_means(rows, "shapley") == pytest.approx(1.0)


def test_only_splits_under_all_conditions_count() -> None:
    rows = [
        Row(split, condition, "rounds", "0", "1 2", "1 2", "1 1", 1.0)
        for split in range(3)
        for condition in study.CONDITIONS[: 7 if split < 2 else 6]
    ]
    assert {row.split for row in tables.complete(rows)} == {0, 1}
    broken = [*rows, Row(0, "none", "shapley", "0", "nan 2", "1 2", "1 1", 1.0)]
    assert {row.split for row in tables.complete(broken)} == {1}
