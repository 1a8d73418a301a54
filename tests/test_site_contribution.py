"""What each site contributed: recombining kept updates and retraining, through folders and the
command.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner, Result

from feddraw.analysis.contributions import TrainedContributions, combine_trainings
from feddraw.analysis.contributions_in_words import over_trainings, sentence_of_site
from feddraw.analysis.metrics import auc
from feddraw.cli import app
from feddraw.core import Model, Update
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.contribution import Effort, measure_contributions
from feddraw.experiment.recombination import (
    ContributionOptions,
    collector_of_coalitions,
    recombined_contributions,
)
from feddraw.experiment.retraining import without_each_site
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import collector_of, iterate, opened_engine, run
from feddraw.experiment.settings import Experiment
from feddraw.report import ReportSettings, write_report
from feddraw.results.contribution_file import (
    RunContributions,
    contribution_file,
    read_contributions,
    write_contributions,
)
from feddraw.results.kept_updates import KeptRound, read_kept_round, round_file
from feddraw.results.recorded_run import finished_run
from feddraw.study.method_comparison import comparison_runs
from feddraw.system import file_writing
from feddraw.system.file_writing import toml_values
from small import small

KEPT = {"keep.updates": True, "holdout": 0.25, "method": "fedavg"}
FEW = ContributionOptions(replicates=20)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contribution") / "run"
    run(small(**KEPT), folder)
    return folder


@pytest.fixture(scope="module")
def measured(finished: Path) -> dict[str, RunContributions]:
    return {each.estimator: each for each in recombined_contributions(finished, FEW)}


def kept_rounds(folder: Path, experiment: Experiment) -> tuple[Any, list[KeptRound]]:
    setup = prepare(experiment)
    rounds = [
        read_kept_round(
            folder / "updates",
            number,
            experiment.rounds,
            setup.method,
            setup.initial.layout,
            setup.clients,
        )
        for number in range(experiment.rounds)
    ]
    return setup, rounds


# ------------------------------------------------------------------------------- kept updates


@pytest.mark.parametrize(
    "method", ["fedavg", "feddraw", "fednova", "krum", "median", "fedadam", "scaffold", "fedce"]
)
def test_all_updates_together_give_the_runs_own_models_to_the_bit(
    tmp_path: Path, method: str
) -> None:
    experiment = small(method=method, **{"keep.updates": True})
    result = run(experiment, tmp_path / "run")
    setup, rounds = kept_rounds(tmp_path / "run", experiment)
    for kept, evaluated in zip(rounds, result, strict=True):
        again = kept.aggregated(collector_of(setup), kept.present)
        assert np.array_equal(again.model.params, evaluated.model.params)
        assert np.array_equal(again.model.buffers, evaluated.model.buffers)


def test_keeping_updates_changes_no_bit_of_the_run(finished: Path, tmp_path: Path) -> None:
    plain = run(small(**{**KEPT, "keep.updates": False}), tmp_path / "plain")
    assert (tmp_path / "plain" / "model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()
    assert not (tmp_path / "plain" / "updates").exists()
    assert len(plain) == len(list((finished / "updates").iterdir()))


def test_without_a_site_the_method_weighs_the_others(finished: Path) -> None:
    """FedAvg by hand: the others' moves by their shares of the others' images."""
    setup, rounds = kept_rounds(finished, small(**KEPT))
    kept = rounds[1]
    without_first = kept.aggregated(collector_of_coalitions(setup), [1, 2]).model
    sizes = [update.size for update in kept.updates]
    sent = kept.round.sent.params.astype(np.float64)
    moves = [update.model.params - sent for update in kept.updates]
    by_hand = sent + (sizes[1] * moves[1] + sizes[2] * moves[2]) / (sizes[1] + sizes[2])
    assert np.allclose(without_first.params, by_hand, rtol=0, atol=1e-6)


def test_an_interrupted_run_has_the_updates_of_all_rounds(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(**KEPT), folder), 2))
    run(small(**KEPT), folder, resume=True)
    for number in range(3):
        file = round_file(folder / "updates", number)
        assert file.read_bytes() == round_file(finished / "updates", number).read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stream": True}, "a stream forgets each update"),
        ({"secure": True}, "under secure sums the server sees no single update"),
        ({"method": "alone"}, "each site trains alone"),
        ({"method": "centralised"}, "no site sends an update"),
        ({"method": "ditto"}, "a model of its own"),
        ({"keep.gb": 0.0}, "above 0"),
    ],
)
def test_what_cannot_be_recombined_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        complete_settings(small(**{**KEPT, **changes}))


def test_more_than_the_room_for_updates_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"more than keep\.gb = 1e-05: raise keep\.gb"):
        run(small(**KEPT, **{"keep.gb": 1e-5}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_the_run_in_one_line_and_it_goes_on_later(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write = file_writing._write_temporary

    def write_until_full(path: Path, content: bytes, private: bool) -> bool:
        if path.name == "round-00001.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content, private)

    with monkeypatch.context() as full:
        full.setattr(file_writing, "_write_temporary", write_until_full)
        with pytest.raises(RunFailed, match=r"round-00001\.safetensors: No space left.* is kept"):
            run(small(**KEPT), folder)
    run(small(**KEPT), folder, resume=True)
    assert (folder / "model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()


def test_a_comparison_keeps_updates_only_where_they_can_be_recombined() -> None:
    runs = comparison_runs(small(**{"keep.updates": True}), seeds=1)
    kept = {planned.experiment.section("method")[0]: planned.experiment.keep for planned in runs}
    assert not kept["alone"].updates
    assert kept["feddraw"].updates
    assert kept["fedavg"].updates


# --------------------------------------------------------------------------- what comes of them


def test_shapley_values_add_up_to_what_the_training_gained(
    finished: Path, measured: dict[str, RunContributions]
) -> None:
    setup = prepare(small(**KEPT))
    rows = setup.dataset.rows["test"]
    truth = setup.dataset.labels.truth(rows)
    with opened_engine(setup) as engine:

        def macro(model: Model) -> float:
            scores = engine.predict(model, rows)
            areas = [auc(scores[:, c], truth[:, c]) for c in range(truth.shape[1])]
            return float(np.nanmean(areas))

        gained = -macro(setup.initial)
    gained += finished_run(finished).test("auc")
    shapley = measured["shapley"]
    assert abs(shapley.of_group("test")[:, 0].sum() - gained) < 1e-9
    totals = shapley.values.sum(axis=0)
    assert np.isfinite(totals[0]).all()


def test_they_are_those_of_all_coalitions_by_hand(
    finished: Path, measured: dict[str, RunContributions]
) -> None:
    """FedAvg's coalitions summed here, every marginal of three sites written out."""
    setup, rounds = kept_rounds(finished, small(**KEPT))
    rows = setup.dataset.rows["test"]
    truth = setup.dataset.labels.truth(rows)
    totals = np.zeros(3)
    left_out = np.zeros(3)
    with opened_engine(setup) as engine:

        def worth(kept: KeptRound, members: tuple[int, ...]) -> float:
            model = kept.round.sent
            if members:
                sizes = np.array([kept.updates[m].size for m in members], np.float64)
                shares = sizes / sizes.sum()
                vectors = {
                    name: sum(
                        share * getattr(kept.updates[m].model, name).astype(np.float64)
                        for share, m in zip(shares, members, strict=True)
                    ).astype(np.float32)  # type: ignore[union-attr]
                    for name in ("params", "buffers")
                }
                model = Model(vectors["params"], vectors["buffers"], model.counters, model.layout)
            scores = engine.predict(model, rows)
            return float(
                np.nanmean([auc(scores[:, c], truth[:, c]) for c in range(truth.shape[1])])
            )

        for kept in rounds:
            v = {m: worth(kept, m) for m in [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]}
            v[0, 1, 2] = worth(kept, (0, 1, 2))
            for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
                pair_j, pair_k = tuple(sorted((i, j))), tuple(sorted((i, k)))
                totals[i] += (
                    2 * (v[i,] - v[()])
                    + (v[pair_j] - v[j,])
                    + (v[pair_k] - v[k,])
                    + 2 * (v[0, 1, 2] - v[j, k])
                ) / 6
                left_out[i] += v[0, 1, 2] - v[j, k]
    # sums in another order may move the rank of an image
    assert np.allclose(measured["shapley"].of_group("test")[:, 0], totals, atol=2e-3)
    assert np.allclose(measured["rounds"].of_group("test")[:, 0], left_out, atol=2e-3)


def test_they_are_measured_on_each_sites_own_images_too(
    measured: dict[str, RunContributions],
) -> None:
    one = measured["shapley"]
    assert one.groups == ("test", *one.sites)
    assert one.values.shape == (3, 4, 21)


def test_with_many_sites_permutations_are_drawn_and_agree(
    finished: Path, measured: dict[str, RunContributions]
) -> None:
    how = ContributionOptions(replicates=20, most_exact=2)
    _, sampled = recombined_contributions(finished, how)
    assert sampled.pairs is not None
    assert len(sampled.pairs) % 30 == 0
    error = np.sqrt(sampled.pairs[:, :, 0].var(axis=0, ddof=1) / len(sampled.pairs))
    exact = measured["shapley"].of_group("test")[:, 0]
    assert (np.abs(sampled.of_group("test")[:, 0] - exact) <= 4 * error + 1e-12).all()


def test_a_site_is_left_out_of_a_training_and_the_others_train_as_before(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(small(**KEPT), folder)
    once = measure_contributions([folder], FEW, Effort(retrain=True))
    assert set(once.by_estimator) == {"rounds", "shapley", "retrained"}
    without = finished_run(folder / "contribution" / "without-1-C2")
    weights = without.ledger["weight"]
    assert np.isnan(weights[:, 1]).all() or not np.nansum(weights[:, 1])
    whole = finished_run(folder)
    retrained = once.by_estimator["retrained"][0]
    change = whole.test("auc") - without.test("auc")
    assert retrained.of_group("test")[1, 0] == pytest.approx(change, abs=1e-12)
    before = (folder / "contribution" / "without-1-C2" / "model.safetensors").stat().st_mtime_ns
    measure_contributions([folder], FEW, Effort(retrain=True))
    after = (folder / "contribution" / "without-1-C2" / "model.safetensors").stat().st_mtime_ns
    assert before == after


def test_the_other_sites_have_the_images_and_orders_that_they_had(finished: Path) -> None:
    _, rounds = kept_rounds(finished, small(**KEPT))
    came: dict[int, np.ndarray] = {}

    def keep(_: int, update: Update) -> None:
        came[update.client] = np.array(update.model.params)

    trainings = without_each_site(finished_run(finished), trust=False)
    next(iterate(trainings[1].experiment, on_update=keep))
    assert came.keys() == {0, 2}
    for update in rounds[0].updates:
        if update.client != 1:
            assert np.array_equal(came[update.client], update.model.params)


def test_what_does_not_fit_into_the_minutes_is_left_out_and_said(
    finished: Path, tmp_path: Path
) -> None:
    how = Effort(retrain=True, minutes=1e-6)
    found = measure_contributions([finished], FEW, how)
    assert "retrained" not in found.by_estimator
    assert "3 trainings did not fit" in found.notes[0]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("none kept", r"kept no updates: run it again with keep\.updates = true"),
        ("one missing", "lacks the updates of 1 of 3 rounds, the first 1"),
        ("changed", "damaged"),
        ("of another round", "not as a run writes it"),
    ],
)
def test_updates_that_are_not_there_or_not_the_runs_are_one_line(
    finished: Path, tmp_path: Path, damage: str, reason: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    updates = folder / "updates"
    if damage == "none kept":
        shutil.rmtree(updates)
    elif damage == "one missing":
        round_file(updates, 1).unlink()
    elif damage == "changed":
        file = round_file(updates, 1)
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
    else:
        shutil.copy(round_file(updates, 0), round_file(updates, 1))
    with pytest.raises(UserError, match=reason):
        recombined_contributions(folder, FEW)


def test_updates_of_another_run_are_noticed(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = tmp_path / "other"
    shutil.copytree(finished, folder)
    run(small(**KEPT, seed=1, partition_seed=0), other)
    for number in (1, 2):
        shutil.copy(round_file(other / "updates", number), round_file(folder / "updates", number))
    with pytest.raises(UserError, match=r"do not give the model that .* sent in round 1"):
        recombined_contributions(folder, FEW)


def test_two_sites_have_contributions_and_one_has_none(tmp_path: Path) -> None:
    two = small(**{**KEPT, "scenario.clients": 2, "rounds": 1})
    run(two, tmp_path / "two")
    _, shapley = recombined_contributions(tmp_path / "two", FEW)
    assert np.isfinite(shapley.of_group("test")[:, 0]).all()
    run(small(**{**KEPT, "scenario.clients": 1, "rounds": 1}), tmp_path / "one")
    with pytest.raises(UserError, match="one site"):
        recombined_contributions(tmp_path / "one", FEW)


def test_runs_of_other_settings_are_not_averaged(finished: Path, tmp_path: Path) -> None:
    run(small(**{**KEPT, "training.lr": 2e-3}), tmp_path / "other")
    with pytest.raises(UserError, match=r"differs from .* in training\.lr"):
        measure_contributions([finished, tmp_path / "other"], FEW, Effort())


# ------------------------------------------------------------------------------- the statistics


def replicated(estimates: list[float], spread: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    draws = np.array(estimates)[:, None] + spread * rng.normal(size=(len(estimates), 400))
    return np.concatenate([np.array(estimates)[:, None], draws], axis=1)


def test_an_interval_has_the_patients_and_the_trainings() -> None:
    """By hand: variances 0.01² of the patients and 0.0002 / 2 of two trainings."""
    first, second = replicated([0.10], 0.01, 1), replicated([0.12], 0.01, 1)
    both = combine_trainings(
        ["A"], [TrainedContributions(first, tested="x"), TrainedContributions(second, tested="x")]
    )
    estimate = both.estimates[0]
    assert estimate.value == pytest.approx(0.11)
    patients = float(first[0, 1:].var(ddof=1))
    assert estimate.over_patients**2 == pytest.approx(patients)
    assert estimate.over_trainings**2 == pytest.approx(0.0002 / 2)
    variance = patients + 0.0001
    freedom = variance**2 / 0.0001**2
    from scipy import stats

    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert estimate.high - estimate.value == pytest.approx(half)


def test_the_error_of_permutations_is_in_the_interval() -> None:
    values = replicated([0.1, 0.0], 0.01)
    pairs = np.random.default_rng(0).normal([0.1, 0.0], 0.05, size=(30, 2))
    exact = combine_trainings(["A", "B"], [TrainedContributions(values)]).estimates[0]
    sampled = combine_trainings(["A", "B"], [TrainedContributions(values, pairs)]).estimates[0]
    assert sampled.over_permutations == pytest.approx(math.sqrt(pairs[:, 0].var(ddof=1) / 30))
    assert sampled.high - sampled.low > exact.high - exact.low


def test_sites_that_chance_explains_are_not_distinguishable() -> None:
    from feddraw.analysis.contributions import alike_in_words

    trainings = [
        TrainedContributions(
            replicated([0.30 + step, 0.305 - step, 0.01], 0.01, step > 0), tested="x"
        )
        for step in (0.0, 0.002)
    ]
    found = combine_trainings(["A", "B", "C"], trainings)
    assert found.alike(0, 1)
    assert not found.alike(0, 2)
    assert not found.alike(1, 2)
    assert alike_in_words(found) == ["B and A are not distinguishable."]
    assert found.ranks.tolist() == [[2, 1, 3], [2, 1, 3]]
    assert found.agreement == pytest.approx(1.0)


def test_a_contribution_that_is_undefined_at_a_site_is_said(
    measured: dict[str, RunContributions],
) -> None:
    one = measured["shapley"]
    values = one.values.copy()
    values[:, 2] = np.nan
    broken = replace(one, values=values)
    own = over_trainings([broken], one.sites[1])
    assert own is not None
    assert sentence_of_site(own, 0, "AUC") == "C1: AUC is undefined."
    pooled = over_trainings([broken])
    assert pooled is not None
    assert math.isfinite(pooled.estimates[0].low)


# ---------------------------------------------------------------------------------- the command


def command(*words: object) -> Result:
    return CliRunner().invoke(app, ["contribution", *map(str, words)])


def test_the_command_writes_numbers_a_plot_and_sentences(finished: Path) -> None:
    shown = command(finished, "--replicates", 20).stdout
    for words in ("Shapley value by round", "C1:", "One training"):
        assert words in shown
    document = json.loads(command(finished, "--replicates", 20, "--json").stdout)
    sites = document["estimators"]["shapley"]["groups"]["test"]["sites"]
    assert sites.keys() == {"C1", "C2", "C3"}
    assert (finished / "contribution" / "contribution.png").stat().st_size > 1000
    stored = read_contributions(finished, "shapley", "auc")
    assert stored is not None
    assert sites["C2"]["contribution"] == stored.of_group("test")[1, 0]


def test_contributions_are_read_only_of_the_finding_that_was_asked_for(
    measured: dict[str, RunContributions], tmp_path: Path
) -> None:
    of_lobe = replace(measured["shapley"], finding="Mass/Lobe")
    write_contributions(tmp_path, of_lobe)
    assert read_contributions(tmp_path, "shapley", "auc", "Mass Lobe") is None
    stored = read_contributions(tmp_path, "shapley", "auc", "Mass/Lobe")
    assert stored is not None
    assert np.array_equal(stored.values, of_lobe.values, equal_nan=True)
    file = contribution_file(tmp_path, "shapley", "auc", "Mass/Lobe")
    file.rename(contribution_file(tmp_path, "shapley", "auc", "Mass Lobe"))
    assert read_contributions(tmp_path, "shapley", "auc", "Mass Lobe") is None


def test_a_round_in_which_nobody_counted_brings_every_site_nothing(tmp_path: Path) -> None:
    joining = {"policy.min_sites": 3, "participation.joins": "C1=2"}
    run(small(**KEPT, **joining), tmp_path / "run")
    for each in recombined_contributions(tmp_path / "run", FEW):
        assert each.values.shape[0] == 3
        assert each.of_group("test")[:, 0].any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--metric", "f1"], "--metric must be one of"),
        (["--finding", "Flu"], "no finding 'Flu'"),
        (["--replicates", "2"], "--replicates must be at least 20"),
        (["--seeds", "0"], "--seeds must be at least 1"),
    ],
)
def test_a_wrong_option_is_one_line(finished: Path, options: list[str], reason: str) -> None:
    error = command(finished, *options).exception
    assert isinstance(error, UserError)
    assert reason in str(error)


def test_gm_and_a_single_finding_are_utilities_too(finished: Path) -> None:
    finding = finished_run(finished).findings[0]
    for how in (
        ContributionOptions(metric="gm", replicates=20),
        ContributionOptions(finding=finding, replicates=20),
    ):
        _, shapley = recombined_contributions(finished, how)
        assert np.isfinite(shapley.of_group("test")[:, 0]).all()


# ----------------------------------------------------------------------------------- the report


def test_the_report_has_what_each_site_gave_beside_what_it_gained(
    finished: Path, measured: dict[str, RunContributions], tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "fedavg")
    for each in measured.values():
        write_contributions(tmp_path / "fedavg", each)
    run(small(**{**KEPT, "keep.updates": False, "method": "alone"}), tmp_path / "alone")
    write_report([tmp_path], settings=ReportSettings(replicates=50))
    page = (tmp_path / "report.md").read_text()
    part = page.partition("What did each site contribute? AUC of fedavg")[2].partition("\n### ")[0]
    assert "leave-one-out by round" in part
    assert "gained over training alone" in part
    shapley = over_trainings([measured["shapley"]])
    assert shapley is not None
    for site in range(3):
        assert sentence_of_site(shapley, site, "AUC") in part
    assert len(list((tmp_path / "figures").glob("contribution-*"))) >= 1


def test_a_report_without_contributions_has_no_such_part(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("contribution"))
    write_report([tmp_path], settings=ReportSettings(replicates=50))
    assert "What did each site contribute" not in (tmp_path / "report.md").read_text()


def test_a_comparison_measures_them_for_its_report(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    experiment = complete_settings(small(rounds=1, engine="processes"))
    file.write_text(tomli_w.dumps(toml_values(experiment.table())))
    words = [
        "compare",
        file,
        "--seeds",
        1,
        "--workers",
        1,
        "--contribution",
        "--out",
        tmp_path / "c",
    ]
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "c" / "report.md").read_text()
    assert "What did each site contribute? AUC of feddraw" in page
    assert "What did each site contribute? AUC of uniform" in page
    assert "What did each site contribute? AUC of alone" not in page
