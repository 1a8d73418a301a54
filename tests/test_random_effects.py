"""Random effects: three sites by hand, simulations of sites that are alike, and the same bits in
every engine.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from feddraw.core import GRADIENT_MEANS, Measurement, gram
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.methods.fedavg import fedavg
from feddraw.methods.random_effects import (
    EffectSums,
    distances_by_variance,
    estimate_effects,
    random_effects,
    weights_by_rho,
)
from feddraw.methods.uniform import uniform
from feddraw.results.recorded_run import read_run
from feddraw.server.policy import Policy
from feddraw.system.file_reading import read_csv
from feddraw.training.batch_gradients import gradient_summary, whole_batches
from small import small
from tiny import NAMES, aggregate, bench, cohort_of, initial, same, shards, train, weighting_of

GRADIENTS = np.array([[1, 0], [0, 1], [0, 0]], np.float32)
IMAGES, VARIANCES = np.array([10.0, 20.0, 30.0]), np.array([2.0, 3.0, 1.0])
SIZES = (100, 50, 10)
RHO = Fraction(63, 242)


def three_sites(images=IMAGES, variances=VARIANCES, **options):
    spreads = np.stack([images, variances], axis=1).astype(np.float32)
    extra = [
        {"classifier gradient mean": g, "gradient spread": s}
        for g, s in zip(GRADIENTS, spreads, strict=True)
    ]
    return cohort_of(np.zeros((3, 2)), SIZES, extra=extra, **options)


def shares(rho):
    scores = [1 / (rho + Fraction(1, n)) for n in SIZES]
    return [float(score / sum(scores)) for score in scores]


def measuring(**settings):
    return random_effects(**{"batch_size": 4, "batches": 3} | settings)


# ------------------------------------------------------------------------------------------ by hand


def test_three_sites_by_hand():
    """S² = 110/60, |sum N g|² = 500, sum N |g|² = 30, so Q = (30 - 500/60) / S² and E Q = 6 / S² -
    1.
    """
    products = gram(GRADIENTS, np.zeros(2, np.float32))
    sums = EffectSums.of(IMAGES, products, VARIANCES)
    assert sums == EffectSums(3, 60, 1400, 500, 30, 6, 110)
    found = estimate_effects(sums)
    assert found.variance == pytest.approx(11 / 6)
    assert found.q == pytest.approx(130 / 11)
    assert found.expected == pytest.approx(25 / 11)
    assert found.rho == pytest.approx(float(RHO))
    assert found.rho * found.variance == pytest.approx(21 / 44)  # tau²
    assert found.i_squared == pytest.approx(1 - 25 / 130)
    # the third: |(1/3, 2/3)|² = 5/9, less 1/30 + 2/90 + 12/180, over S²
    assert distances_by_variance(IMAGES, products, VARIANCES)[2] == pytest.approx(13 / 55)


def test_weights_and_ledger_of_three_sites_by_hand():
    method = random_effects()
    weights, state = weighting_of(method).weigh(three_sites(), weighting_of(method).init())
    assert weights.values == pytest.approx(shares(RHO))
    assert weights.parts["q"] == pytest.approx(130 / 11)
    assert weights.parts["q_expected"] == pytest.approx(25 / 11)
    assert weights.parts["rho"] == pytest.approx(float(RHO))
    assert weights.parts["measured"].tolist() == IMAGES.tolist()
    assert state == {"excess": pytest.approx(float(RHO))}


def sites_with_steps(steps):
    """The three sites, with the progress that FedNova's clients tell."""
    cohort = three_sites(steps=list(steps))
    updates = [
        replace(update, extra={**update.extra, "progress": np.array([taken], np.float32)})
        for update, taken in zip(cohort.updates, steps, strict=True)
    ]
    return replace(cohort, updates=updates)


def test_with_fednova_a_sites_pull_is_its_weight_however_many_steps_it_took():
    """A move is about as long as its steps are many, so weight times steps is what a site pulls.

    Together they move as far as the weighted moves would.
    """
    both = combined_method("random_effects+fednova", {})
    steps = np.array([8.0, 4.0, 1.0])
    coefficients = aggregate(both, sites_with_steps([8, 4, 1])).coefficients
    weights = np.array(shares(RHO))
    pull = coefficients * steps
    assert pull / pull.sum() == pytest.approx(weights)
    assert pull.sum() == pytest.approx(weights @ steps)
    assert coefficients == pytest.approx(weights @ steps * weights / steps)


def test_with_fednova_and_equal_steps_nothing_changes():
    both = combined_method("random_effects+fednova", {})
    coefficients = aggregate(both, sites_with_steps([5, 5, 5])).coefficients
    assert coefficients == pytest.approx(shares(RHO))


def test_a_site_without_a_measurement_counts_by_the_others_rho():
    method = random_effects()
    weights, _ = weighting_of(method).weigh(three_sites(images=np.array([10.0, 0, 30])), {})
    # of the two: S² = 50/40, Q = (10 - 100/40) / S² = 6, E Q = 3 / S² - 1 = 7/5, N - N²/N = 40 -
    # 1000/40 = 15
    assert weights.values == pytest.approx(shares(Fraction(23, 75)))
    assert np.isnan(weights.parts["distance"]).tolist() == [False, True, False]


def labelling(marks):
    """The three sites, with the variance of the first of two rows 1, 1 and 0.5."""
    cohort = three_sites()
    updates = [
        replace(
            update,
            labelled=np.array(mark),
            extra={**update.extra, "gradient variances": np.array([one, 7.0], np.float32)},
        )
        for update, mark, one in zip(cohort.updates, marks, (1.0, 1.0, 0.5), strict=True)
    ]
    return replace(cohort, updates=updates)


def test_a_finding_that_one_site_does_not_label_is_not_compared():
    """The second row is left out: gradients 1, 0 and 0 of variances 1, 1 and 1/2. S² = 45/60, Q =
    (10 - 100/60) / S² = 100/9, E Q = 2.5 / S² - 1 = 7/3.
    """
    rule = weighting_of(random_effects())
    cohort = labelling([[True, True], [True, False], [True, True]])
    weights, _ = rule.weigh(cohort, rule.init())
    rho = (Fraction(100, 9) - Fraction(7, 3)) / (60 - Fraction(1400, 60))
    assert weights.parts["q"] == pytest.approx(100 / 9)
    assert weights.parts["q_expected"] == pytest.approx(7 / 3)
    assert weights.values == pytest.approx(shares(rho))
    assert weights.parts["variance"].tolist() == [1, 1, 0.5]
    # the third: |1/3|² less 1/(30²) 10 + 1/(30²) 20 + (1/2)/30, over S²
    assert weights.parts["distance"][2] == pytest.approx((1 / 9 - 1 / 30 - 1 / 60) / 0.75)


def test_where_no_finding_is_labelled_by_all_nothing_is_measured():
    rule = weighting_of(random_effects())
    cohort = labelling([[True, False], [False, True], [True, True]])
    weights, state = rule.weigh(cohort, rule.init())
    assert weights.values == pytest.approx(np.array(SIZES) / sum(SIZES))
    assert (weights.parts["rho"], state) == (None, {})
    later, _ = rule.weigh(cohort, {"excess": float(RHO)})
    assert later.values == pytest.approx(shares(RHO))


@pytest.mark.parametrize("images", [np.zeros(3), np.array([10.0, 0, 0])])
def test_with_fewer_than_two_measurements_the_last_rho_holds_and_before_the_first_size(images):
    rule = weighting_of(random_effects())
    first, state = rule.weigh(three_sites(images=images), rule.init())
    assert (
        first.values.tolist() == weighting_of(fedavg()).weigh(three_sites(), {})[0].values.tolist()
    )
    assert (first.parts["rho"], state) == (None, {})
    later, _ = rule.weigh(three_sites(images=images), {"excess": float(RHO)})
    assert later.values == pytest.approx(shares(RHO))


def test_rho_is_smoothed_before_it_is_cut():
    rule = weighting_of(random_effects(smoothing=0.75))
    weights, state = rule.weigh(three_sites(), {"excess": -1.0})
    assert state["excess"] == pytest.approx(-0.75 + 0.25 * float(RHO))
    assert weights.parts["rho"] == 0
    assert rule.weigh(three_sites(), {})[1]["excess"] == pytest.approx(float(RHO))


def test_without_any_spread_differences_count_fully_and_equal_sites_by_size():
    nothing = np.zeros(3)
    apart, _ = weighting_of(random_effects()).weigh(three_sites(variances=nothing), {})
    assert apart.values == pytest.approx([1 / 3] * 3, abs=1e-6)
    alike = replace(three_sites(variances=nothing))
    for update in alike.updates:
        update.extra["classifier gradient mean"] = np.zeros(2, np.float32)
    assert weighting_of(random_effects()).weigh(alike, {})[0].values == pytest.approx(
        [10 / 16, 5 / 16, 1 / 16]
    )


def test_the_mean_and_spread_of_batches():
    batches = np.array([[1.0, 2], [3, 2], [2, 5]], np.float32)
    rows = [np.array([0]), np.array([1])]
    mean, spread, variances = gradient_summary(iter(batches), 2, batch_size=10, rows=rows)
    assert variances.tolist() == [10 * 2 / 2, 10 * 6 / 2]
    assert mean.tolist() == [2, 3]
    assert spread.tolist() == [30, 10 * (2 + 2 + 4) / 2]
    empty = gradient_summary(iter(()), 2, batch_size=10)
    assert [part.tolist() for part in empty] == [[0, 0], [0, 0], []]


# -------------------------------------------------------------------------------------- simulations


def simulated(sites, batches, sizes, spreads, repeats=1500, d=60, m=8, apart=0.0):
    """The uncut estimates of many federations; images are drawn, and only some of each site's are
    measured.
    """
    rng = np.random.default_rng(0)
    count = np.array(batches)
    means, variances = np.empty((repeats, sites, d)), np.empty((repeats, sites))
    for i in range(sites):
        own = apart * rng.normal(size=(repeats, 1, d)) / np.sqrt(d)
        b = own + spreads[i] * rng.normal(size=(repeats, count[i], d)) / np.sqrt(m * d)
        means[:, i] = b.mean(axis=1)
        variances[:, i] = m * ((b - means[:, i : i + 1]) ** 2).sum(axis=(1, 2)) / (count[i] - 1)
    found = [
        estimate_effects(EffectSums.of(1.0 * m * count, g @ g.T, s))
        for g, s in zip(means, variances, strict=True)
    ]
    excess = np.array([one.excess for one in found])
    naive = np.array([one.q - (sites - 1) for one in found])
    return excess, naive, weights_by_rho(np.array(sizes, float), max(0.0, excess.mean()))


def test_sites_alike_with_unequal_spreads_give_no_tau_and_the_weights_of_fedavg():
    sizes = (1000, 400, 250, 100)
    excess, naive, weights = simulated(4, (16, 16, 12, 6), sizes, (1.0, 2.0, 0.5, 4.0))
    error = excess.std() / np.sqrt(len(excess))
    assert abs(excess.mean()) < 4 * error
    assert naive.mean() > 10 * naive.std() / np.sqrt(len(naive))  # K - 1 would be too little here
    assert weights == pytest.approx(np.array(sizes) / sum(sizes), abs=0.03)


def test_sites_apart_give_back_their_variance():
    excess, _, _ = simulated(6, (16,) * 6, (1000,) * 6, (1.0, 2.0, 1.0, 1.0, 0.5, 1.0), apart=0.5)
    pooled = np.mean([1, 4, 1, 1, 0.25, 1])
    assert excess.mean() == pytest.approx(0.25 / pooled, rel=0.05)


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(("rho", "same_as"), [(0.0, fedavg), (float("inf"), uniform)])
def test_rho_of_zero_is_fedavg_and_without_end_uniform_to_the_bit(rho, same_as):
    measured, plain = train(measuring(rho=rho), rounds=3), train(same_as(), rounds=3)
    for one, other in zip(measured, plain, strict=True):
        assert same(one.model, other.model)
        assert list(one.weights.values()) == list(other.weights.values())
    assert measured[0].ledger[0].q > 0  # it is measured all the same


def test_infinity_as_a_setting_survives_a_file(tmp_path):
    experiment = complete_settings(
        small(**{"method": "random_effects", "method.rho": float("inf")})
    )
    list(run(experiment, tmp_path / "run"))
    assert "rho = inf" in (tmp_path / "run" / "experiment.toml").read_text()
    again = Experiment.read(tmp_path / "run" / "experiment.toml")
    assert again.section("method")[1]["rho"] == float("inf")
    assert not list(
        run(experiment, tmp_path / "run", resume=True)
    )  # finished, and the same settings
    assert read_run(tmp_path / "run").ledger.has("rho", "q", "distance")


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": 1},
        {"batch_size": 1},
        {"every": 0},
        {"smoothing": 1.0},
        {"layer": "b"},
        {"rho": float("nan")},
    ],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        random_effects(**wrong)


def test_a_stream_cannot_be_weighed():
    with pytest.raises(UserError, match="cannot stream"):
        complete_settings(small(method="random_effects", stream=True))


# ---------------------------------------------------------------------------------------- measuring


def test_measuring_moves_no_bit_of_training_and_repeats():
    plain, measured = bench(fedavg()), bench(measuring())
    from feddraw.core import Job

    job = Job(0, 2, 0, 7, initial(), measuring().broadcast({"weighting": {}, "server": {}}))
    one, _ = plain.trainer.work(job, {})
    first, _ = measured.trainer.work(job, {})
    again, _ = measured.trainer.work(job, {})
    assert same(one.model, first.model)
    for name in first.extra:
        assert np.array_equal(first.extra[name], again.extra[name])
    assert first.extra["gradient spread"][0] == 12


def test_the_classifiers_gradient_is_the_same_alone_and_among_all_and_other_modes_differ():
    how, layout = Measurement(3, 4), initial().layout
    trainer = bench(measuring()).trainer
    alone, among = (
        list(trainer.batch_gradients(0, initial(), how, layer, 5))
        for layer in ("classifier", "all")
    )
    assert np.allclose(alone, np.stack(among)[:, layout.find("classifier")], atol=1e-7)
    assert np.abs(among[0]).sum() > np.abs(alone[0]).sum()
    assert all(parameter.requires_grad for parameter in trainer.reference(0).module.parameters())
    evaluated = list(
        trainer.batch_gradients(0, initial(), replace(how, evaluation=True), "classifier", 5)
    )
    assert not np.allclose(alone, evaluated)


def test_images_without_a_known_label_are_not_measured_and_unknown_labels_do_not_count():
    trainer, how = bench(measuring()).trainer, Measurement(10, 4)
    targets = trainer.examples.targets.copy()
    targets[:26] = np.nan  # 14 of the first client's 40 images are left
    targets[26:40, 1] = np.nan
    trainer.examples = replace(trainer.examples, targets=targets)
    found = np.stack(list(trainer.batch_gradients(0, initial(), how, "classifier", 5)))
    assert len(found) == 3
    second = initial().layout.rows_of(1)
    start = initial().layout.find("classifier").start
    assert np.isfinite(found).all()
    assert not any(found[:, place.start - start : place.stop - start].any() for place in second)


def test_a_findings_row_does_not_depend_on_which_others_are_labelled():
    """The loss is the mean over known labels: half of them would double the row of the other."""
    trainer, how = bench(measuring()).trainer, Measurement(3, 4)
    within = initial().layout.rows_within("classifier")
    whole = np.stack(list(trainer.batch_gradients(0, initial(), how, "classifier", 5)))
    targets = trainer.examples.targets.copy()
    targets[:, 1] = np.nan
    trainer.examples = replace(trainer.examples, targets=targets)
    masked = np.stack(list(trainer.batch_gradients(0, initial(), how, "classifier", 5)))
    assert np.allclose(masked[:, within[0]], whole[:, within[0]], atol=1e-7)
    assert not masked[:, within[1]].any()


def test_a_batch_is_whole_and_no_patient_is_in_two():
    rng = np.random.default_rng(0)
    rows, patients = np.arange(100, 160), np.repeat(np.arange(50), [1, 2, 3, 4, 6] * 10)
    found = whole_batches(rows, 8, 100, rng, patients)
    assert {len(batch) for batch in found} == {8}
    assert len(np.unique(np.concatenate(found))) == 8 * len(found)
    owners = [set(patients[batch]) for batch in found]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert [len(b) for b in whole_batches(rows, 25, 100, rng)] == [25, 25]
    assert len(whole_batches(rows, 8, 2, rng, patients)) == 2
    assert (
        whole_batches(rows, 8, 16, rng, np.zeros(160, np.int64)) == []
    )  # one patient fills one batch only


def test_images_of_patients_with_many_are_measured_as_often_as_others():
    """Else a site of which some images are measured would differ from one like it of which
    all are.
    """
    rng, counts = np.random.default_rng(0), np.repeat([1, 2, 12], [120, 60, 20])
    patients = np.repeat(np.arange(200), counts)
    drawn = np.concatenate(
        [batch for _ in range(200) for batch in whole_batches(np.arange(480), 16, 8, rng, patients)]
    )
    of_many = counts[patients] == 12
    assert len(drawn) == 200 * 8 * 16
    assert np.mean(of_many[drawn]) == pytest.approx(np.mean(of_many), abs=0.02)


def test_patients_of_a_data_set_reach_the_batches(monkeypatch: pytest.MonkeyPatch):
    experiment = small(method="random_effects")
    dataset = prepare(experiment).dataset
    patients = np.array([f"P{number // 3}" for number in range(len(dataset.labels.names))])
    dataset = replace(dataset, labels=replace(dataset.labels, patients=patients))
    trainer = prepare(experiment, dataset=dataset).trainer
    seen = []

    def watched(*about):
        seen.append(whole_batches(*about))
        return seen[-1]

    monkeypatch.setattr("feddraw.training.batch_gradients.whole_batches", watched)
    for client in range(2):
        rows = trainer.shards[client]
        assert list(
            trainer.batch_gradients(
                client, prepare(experiment).initial, Measurement(4, 8), "classifier", 0
            )
        )
        owners = [set(patients[batch]) for batch in seen[-1]]
        assert sum(map(len, owners)) == len(set.union(*owners))
        assert set(np.concatenate(seen[-1])) <= set(rows)


def test_a_small_site_and_the_rounds_between_send_nothing():
    rounds = train(measuring(every=2, batch_size=8), rounds=3)
    for result in rounds:
        images = [entry.measured for entry in result.ledger]
        assert images == ([24, 24, 16, 0] if result.round != 1 else [0] * 4)
    assert np.isnan(rounds[1].ledger[0].q)
    assert rounds[1].ledger[0].rho == rounds[0].ledger[0].rho


def test_a_policy_limits_the_weights_and_leaves_the_measurement():
    method = measuring(batch_size=4)
    (plain,), (limited,) = train(method, rounds=1), train(method, rounds=1, policy=Policy(cap=0.3))
    assert max(plain.weights.values()) > 0.3
    assert max(limited.weights.values()) == pytest.approx(0.3)
    for before, after in zip(plain.ledger, limited.ledger, strict=True):
        assert (before.q, before.rho, before.weight) == (after.q, after.rho, after.proposed)


def test_a_site_that_sends_what_cannot_be_is_refused():
    method, engine = measuring(), bench(measuring(), shards((24, 24)))
    from tiny import Altered

    def spoilt(updates):
        updates[0].extra["gradient spread"][1] = -1
        return updates

    (result,) = train(method, engine=Altered(engine, spoilt), clients=2)
    assert result.ledger[0].status.startswith("refused: gradient spread")
    assert result.weights == {NAMES[1]: 1.0}


# --------------------------------------------------------------------------------------- everywhere


@pytest.mark.parametrize("layer", ["classifier", "all"])
def test_flower_gives_the_same_bits(layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feddraw.flower.engine.installed", lambda name: False)
    settings = {
        "method": "random_effects",
        "method.layer": layer,
        "method.batch_size": 12,
        "rounds": 2,
    }
    for engine in ("serial", "flower"):  # processes: see test_engines
        list(run(small(**settings, engine=engine), tmp_path / engine))
    lines = read_csv(tmp_path / "serial" / "weights.csv")
    assert all(float(line["q"]) > 0 for line in lines)
    for name in ("model.safetensors", "weights.csv", "metrics.json"):
        assert (tmp_path / "serial" / name).read_bytes() == (
            tmp_path / "flower" / name
        ).read_bytes()


def test_what_was_not_measured_does_not_travel():
    from feddraw.flower.array_records import arrays_to_extras, vectors_to_arrays

    names = ("gradient spread", "gradient variances")
    sent = vectors_to_arrays({name: np.zeros(2, np.float32) for name in names})
    found = arrays_to_extras(sent, measuring().extras, initial().layout)
    assert not found[GRADIENT_MEANS[1]].any()
    assert len(found[GRADIENT_MEANS[1]]) == initial().layout.extent("classifier")
