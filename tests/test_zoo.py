"""The zoo against what is known of each rule by hand, and which rules coincide when."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feddraw
from feddraw import catalog
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.core import (
    ASKED,
    Cohort,
    Entry,
    Job,
    Layout,
    Model,
    Piece,
    Update,
    Weights,
    gram,
    of_present,
    with_present,
)
from feddraw.core.schedules import cosine, softmax
from feddraw.data.own_tables import read_own_tables
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import make_method
from feddraw.federation import client_seed
from feddraw.methods.afl import onto_simplex
from feddraw.methods.fairfed import sensitivity_gap
from feddraw.methods.fedawa import fedawa_slope
from feddraw.methods.feddisco import DISCREPANCIES, discrepancy
from feddraw.methods.feddraw_adaptive import steadiness
from feddraw.methods.fedmgda import shortest_combination
from feddraw.methods.fedsim import coordinates, k_means
from feddraw.report.sections import aggregation_weights
from feddraw.results.recorded_run import read_run
from feddraw.study.plan import read_study
from feddraw.system.file_reading import read_toml
from feddraw.training.client import group_counts
from feddraw.training.server_images import choose_server_images
from quadratics import Bowl, play
from small import small
from tiny import (
    METHODS,
    SIZES,
    Altered,
    aggregate,
    bench,
    cohort_of,
    copied,
    examples,
    initial,
    same,
    server_images,
    shards,
    train,
    weighting_of,
)

RNG = np.random.default_rng(3)
BOWLS = [
    Bowl(np.diag([1.0, 3.0]), [0.0, 1.0], 2),
    Bowl(np.eye(2), [2.0, -1.0], 5),
    Bowl(np.eye(2), [1.0, 4.0], 3),
]
START = np.array([0.3, -0.2], np.float32)


def method(name, **options):
    return catalog.find("methods", name)(**options)


def asked(name, values):
    """What each client answers, as updates carry it."""
    return [{name: np.atleast_1d(np.asarray(value, np.float32))} for value in values]


def weigh(name, cohort, state=None, **options):
    rule = weighting_of(method(name, **options))
    return rule.weigh(cohort, rule.init() if state is None else state)


def values(name, cohort, **options):
    return weigh(name, cohort, **options)[0].values


def by_loss(losses, sizes=None, **options):
    losses = list(losses)
    return cohort_of(
        np.zeros((len(losses), 2)),
        sizes or [10] * len(losses),
        extra=asked("loss", losses),
        **options,
    )


# ----------------------------------------------------------------------------------- which coincide

FEDAVG = [
    ("feddisco", {"a": 0.0, "b": 0.0}),
    ("fairfed", {"beta": 0.0}),
    ("gifair", {"strength": 0.0}),
    ("fedavgm", {"momentum": 0.0}),
    ("fedeba", {"temperature": 1e9, "start": "size"}),
    ("fedlaw", {"epochs": 0}),
    ("size_then_uniform", {"until": 99}),
    ("size_power", {"power": 1.0}),
    ("fedsim", {"groups": 1}),
]
UNIFORM = [
    ("qfedavg", {"q": 0.0}),
    ("fedeba", {"temperature": 1e9}),
    ("trimmed_mean", {"share": 0.0}),
    ("size_then_uniform", {"until": 0}),
    ("size_power", {"power": 0.0}),
    ("krum", {"keep": 4}),
    ("fedsim", {"groups": 4}),
]


@pytest.mark.parametrize(("name", "options"), FEDAVG)
def test_with_its_term_switched_off_it_is_fedavg(name, options):
    one, other = train(method(name, **options), 3)[-1], train(method("fedavg"), 3)[-1]
    assert one.model.params == pytest.approx(other.model.params, abs=1e-5)
    assert list(one.weights.values()) == pytest.approx(list(other.weights.values()))


@pytest.mark.parametrize(("name", "options"), UNIFORM)
def test_with_its_term_switched_off_it_is_uniform_averaging(name, options):
    one, other = train(method(name, **options), 3)[-1], train(method("uniform"), 3)[-1]
    assert one.model.params == pytest.approx(other.model.params, abs=1e-5)
    assert one.model.buffers == pytest.approx(other.model.buffers, rel=1e-5, abs=1e-6)


def test_with_equal_steps_inverse_steps_is_uniform():
    assert values(
        "inverse_steps", cohort_of(np.zeros((3, 2)), [5, 3, 1], steps=[7, 7, 7])
    ) == pytest.approx([1 / 3] * 3)
    assert values(
        "inverse_steps", cohort_of(np.zeros((2, 2)), [5, 3], steps=[30, 10])
    ) == pytest.approx([0.25, 0.75])


def test_a_power_of_size_by_hand():
    weights = values("size_power", cohort_of(np.zeros((2, 2)), [4, 1]), power=0.5)
    assert weights == pytest.approx([2 / 3, 1 / 3])
    assert values("size_power", cohort_of(np.zeros((2, 2)), [4, 1]), power=-0.5) == pytest.approx(
        [1 / 3, 2 / 3]
    )


def test_size_then_uniform_changes_once():
    weights = [
        values("size_then_uniform", cohort_of(np.zeros((2, 2)), [3, 1], round=t), until=2)
        for t in range(4)
    ]
    assert weights == [
        pytest.approx(w) for w in ([0.75, 0.25], [0.75, 0.25], [0.5, 0.5], [0.5, 0.5])
    ]


# -------------------------------------------------------------------------------- distances, angles


def test_ida_with_two_clients_is_uniform_and_with_three_favours_the_middle():
    assert values("ida", cohort_of([[1, 2], [5, -3]], [9, 1])) == pytest.approx([0.5, 0.5])
    far = values(
        "ida", cohort_of([[0.0], [1.0], [5.0]], [1, 1, 1])
    )  # the mean is 2: distances 2, 1, 3
    assert far == pytest.approx(np.array([1 / 2, 1, 1 / 3]) / (1 / 2 + 1 + 1 / 3), abs=1e-4)


def test_ida_times_size_and_times_intrac():
    cohort = cohort_of([[1.0], [5.0]], [3, 1], extra=asked("accuracy", [0.9, 0.3]))
    assert values("ida", cohort, times="size") == pytest.approx([0.75, 0.25])
    assert values("ida", cohort, times="intrac") == pytest.approx(
        np.array([1 / 0.9, 1 / 0.5]) / (1 / 0.9 + 2)
    )


def test_ldawa_keeps_what_agrees_and_halves_what_is_orthogonal():
    sent = [1.0, 0.0]
    cohort = cohort_of([sent, [0.0, 1.0]], [1, 1], sent=sent)
    rule = method("ldawa")
    found = aggregate(rule, cohort)
    assert found.model.params == pytest.approx([0.5, 0.0])
    assert found.coefficients == pytest.approx([0.5, 0.0])


def test_ldawa_weighs_each_layer_by_itself_and_averages_a_layer_of_zeros():
    rule, cohort = method("ldawa"), two_layers([[1, 0, 2, 2], [0, 1, 2, 4]], sent=[1, 0, 0, 0])
    found = aggregate(rule, cohort)
    assert found.model.params == pytest.approx([0.5, 0.0, 2.0, 3.0])
    assert [piece.name for piece in found.weights.pieces] == ["body.weight", "classifier.weight"]


def two_layers(rows, sent, sizes=(1, 1)):
    layout = Layout(
        (Entry("body.weight", "param", (2,), 0), Entry("classifier.weight", "param", (2,), 2)),
        "classifier",
    )
    empty = np.zeros(0, np.float32), np.zeros(0, np.int64)
    models = [Model(np.array(row, np.float32), *empty, layout) for row in (sent, *rows)]
    updates = [
        Update(i, model, n, 1, {"loss": 0.0})
        for i, (model, n) in enumerate(zip(models[1:], sizes, strict=True))
    ]
    return Cohort(0, 15, models[0], updates, len(updates))


def test_krum_takes_a_client_among_the_many_and_never_the_one_far_away():
    rows = [[0.0, 0.0], [0.1, 0.0], [0.0, 0.12], [0.11, 0.1], [50.0, -50.0]]
    weights = values("krum", cohort_of(rows, [1] * 5))
    assert weights.max() == 1
    assert weights[4] == 0
    assert values("krum", cohort_of(rows, [1] * 5), keep=4) == pytest.approx([0.25] * 4 + [0])


def test_krum_where_two_tie_takes_both():
    assert values("krum", cohort_of([[0.0], [1.0], [9.0], [20.0]], [1] * 4)) == pytest.approx(
        [0.5, 0.5, 0, 0]
    )


def test_krum_of_many_clients_that_are_all_the_same_is_what_they_are():
    row = np.random.default_rng(1).normal(size=100)
    for count in (12, 13):
        weights = values("krum", cohort_of([row] * count, [100] * count))
        assert (weights.min() >= 0, weights.sum()) == (True, pytest.approx(1))


@pytest.mark.parametrize("count", [3, 4])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(count):
    from scipy.stats import trim_mean

    rows = RNG.normal(size=(count, 9)).astype(np.float32)
    cohort = cohort_of(rows, range(1, count + 1))
    rules = {
        method("median"): np.median(rows, axis=0),
        method("trimmed_mean", share=0.3): trim_mean(rows, 0.3, axis=0),
    }
    for rule, expected in rules.items():
        found = aggregate(rule, cohort)
        assert found.model.params == pytest.approx(expected, abs=1e-6)
        assert found.coefficients.sum() == pytest.approx(1)


def test_an_attacker_moves_the_mean_but_not_the_median_nor_its_statistics():
    def poisoned(updates):
        bad = copied(updates[3])
        model = replace(bad.model, params=bad.model.params + 100, buffers=bad.model.buffers + 100)
        return [*updates[:3], replace(bad, model=model)]

    for name, safe in (
        ("uniform", False),
        ("median", True),
        ("trimmed_mean", True),
        ("krum", True),
    ):
        rule = method(name, share=0.3) if name == "trimmed_mean" else method(name)
        clean = train(rule)[0].model
        spoilt = train(rule, engine=Altered(bench(rule), poisoned))[0].model
        far = max(
            np.abs(spoilt.params - clean.params).max(), np.abs(spoilt.buffers - clean.buffers).max()
        )
        assert bool(far < 2) is safe


# -------------------------------------------------------------------------------- groups of clients


def test_fedsim_groups_weigh_the_same_and_clients_in_them_by_size():
    gradients = np.array([[1, 0, 0], [1.1, 0, 0], [0, 5, 0], [0, 5.1, 0.1]])
    cohort = cohort_of(np.zeros((4, 3)), [3, 1, 4, 1], extra=asked("gradient", gradients))
    assert values("fedsim", cohort) == pytest.approx([0.375, 0.125, 0.4, 0.1])


def test_fedsims_coordinates_keep_distances_and_drop_what_hardly_varies():
    points = RNG.normal(size=(6, 40))
    points[:, 0] *= 100
    found = coordinates(gram(points, np.zeros(40)))
    assert found.shape[1] == 1
    assert np.abs(np.corrcoef(found[:, 0], points[:, 0])[0, 1]) > 0.999


def test_k_means_does_not_depend_on_the_order_of_points():
    points = np.concatenate([RNG.normal(size=(4, 2)), RNG.normal(size=(3, 2)) + 20])
    order = RNG.permutation(7)
    one, other = k_means(points, 2)[order], k_means(points[order], 2)
    assert np.array_equal(one == one[0], other == other[0])
    assert len(set(k_means(points, 2)[:4])) == 1


def test_alike_clients_are_one_group():
    cohort = cohort_of(np.zeros((3, 2)), [2, 1, 1], extra=asked("gradient", [[1, 2]] * 3))
    assert values("fedsim", cohort) == pytest.approx([0.5, 0.25, 0.25])


# -------------------------------------------------------------------------------------- label mixes


def test_feddisco_golden_weights():
    rule = method("feddisco", a=0.5, b=0.1, metric="l1")
    # an even mix, and one with an l1 distance of 0.4 from it: p = (.6, .4)
    cohort = cohort_of(np.zeros((2, 2)), [6, 4], extra=asked("labels", [[70, 30], [5, 5]]))
    assert discrepancy(np.array([[70.0, 30.0], [5.0, 5.0]]), "l1") == pytest.approx([0.4, 0.0])
    assert weighting_of(rule).weigh(cohort, {})[0].values == pytest.approx([0.5, 0.5])


def test_feddiscos_discrepancies():
    from scipy.special import kl_div

    counts = np.array([[8.0, 1, 1], [4, 3, 3], [1, 1, 1]])
    mix = counts / counts.sum(axis=1, keepdims=True)
    divergence = kl_div(mix, np.full(3, 1 / 3)).sum(axis=1)
    assert discrepancy(counts, "kl") == pytest.approx(divergence / divergence.sum(), abs=1e-9)
    assert discrepancy(counts, "l2") == pytest.approx(np.sqrt(((mix - 1 / 3) ** 2).sum(axis=1)))
    assert discrepancy(counts, "cosine") == pytest.approx(
        1 - mix @ np.ones(3) / np.linalg.norm(mix, axis=1) / 3**0.5, abs=1e-9
    )
    for metric in DISCREPANCIES:
        assert discrepancy(counts, metric)[2] == pytest.approx(0, abs=1e-9)
        assert np.isfinite(discrepancy(np.array([[0.0, 0, 0], [1, 0, 0]]), metric)).all()


@pytest.mark.parametrize("metric", DISCREPANCIES)
def test_a_client_without_findings_has_the_largest_discrepancy(metric):
    """It was called perfectly even under KL, which gave it .857 of the weight."""
    found = discrepancy(np.array([[0.0, 0, 0], [0, 7, 0], [5, 1, 1], [2, 2, 2]]), metric)
    assert found[0] == found[1]
    assert found[0] > found[2] > found[3] + 1e-6
    cohort = cohort_of(
        np.zeros((3, 2)), [10] * 3, extra=asked("labels", [[0, 0, 0], [4, 3, 3], [4, 3, 3]])
    )
    assert values("feddisco", cohort, metric=metric)[0] < 1 / 3


def test_feddisco_where_no_client_has_findings_is_fedavg():
    cohort = cohort_of(np.zeros((2, 2)), [3, 1], extra=asked("labels", [[0, 0], [0, 0]]))
    assert values("feddisco", cohort, a=0.5, b=0.25, metric="kl") == pytest.approx(
        [0.75, 0.25]
    )  # a d = b for both


def test_feddisco_falls_back_to_size_where_nothing_is_left():
    cohort = cohort_of(np.zeros((2, 2)), [3, 1], extra=asked("labels", [[9, 0], [9, 0]]))
    assert values("feddisco", cohort, a=50.0, b=0.0, metric="l1") == pytest.approx([0.75, 0.25])


# ------------------------------------------------------------------------------------------- losses


def test_fedlbw_golden_weights():
    class Losses:
        def loss(self, model):
            return float(model.params[0])

    cohort = replace(cohort_of([[1.0, 0], [2, 0], [4, 0]], [1, 1, 1]), proxy=Losses())
    assert values("fedlbw", cohort) == pytest.approx([0.571429, 0.285714, 0.142857], abs=1e-6)


def test_fedeba_and_fedcav_are_softmaxes_of_the_loss():
    losses = np.array([0.2, 0.5, 0.8])
    assert values("fedeba", by_loss(losses), temperature=0.5) == pytest.approx(
        softmax(losses / 0.5, 1.0)
    )
    by_size = values("fedeba", by_loss(losses, [1, 2, 1]), start="size")
    assert by_size == pytest.approx(softmax(losses / 0.1 + np.log([1, 2, 1]), 1.0))
    assert values("fedcav", by_loss(losses)) == pytest.approx(
        softmax(np.array([0.2, 0.5, 0.5]), 1.0)
    )


def test_fedcav_is_fedeba_where_nothing_is_clipped():
    assert values("fedcav", by_loss([0.4] * 3)) == pytest.approx(
        values("fedeba", by_loss([0.4] * 3), temperature=1.0)
    )


def test_gifair_moves_weight_to_higher_losses_and_keeps_the_sum():
    weights = values("gifair", by_loss([0.9, 0.1, 0.5], [50, 30, 20]), strength=0.5)
    # r = 2, -2, 0 and lambda = .5 · .2 / 2
    assert weights == pytest.approx([0.5 + 0.1, 0.3 - 0.1, 0.2])
    assert values("gifair", by_loss([0.3, 0.3], [3, 1])) == pytest.approx([0.75, 0.25])


def test_the_simplex_projection():
    assert onto_simplex(np.array([0.5, 0.5, 0.8])) == pytest.approx(
        np.array([0.5, 0.5, 0.8]) - 0.8 / 3
    )
    assert onto_simplex(np.array([5.0, 0.0, -1.0])) == pytest.approx([1, 0, 0])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_simplex_projection_is_a_distribution_and_leaves_one_alone(point):
    found = onto_simplex(np.array(point))
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    assert onto_simplex(found) == pytest.approx(found, abs=1e-12)


def test_afl_begins_equal_and_climbs_towards_the_highest_loss():
    first, state = weigh("afl", by_loss([0.2, 0.2, 0.8]), rate=0.1)
    second, _ = weigh("afl", by_loss([0.2, 0.2, 0.8]), state, rate=0.1)
    assert first.values == pytest.approx([1 / 3] * 3)
    assert second.values == pytest.approx(onto_simplex(1 / 3 + 0.1 * np.array([0.2, 0.2, 0.8])))


def test_afl_with_some_clients_weighs_those_and_remembers_all():
    _, state = weigh("afl", by_loss([0.2, 0.9], clients=[0, 2], population=3))
    found, later = weigh("afl", by_loss([0.5], clients=[1], population=3), state)
    assert found.values == pytest.approx([1.0])
    assert set(later["lambda"]) == {"0", "1", "2"}
    assert sum(later["lambda"].values()) == pytest.approx(1)


def test_afl_can_show_the_mean_of_its_models():
    last, mean = (
        play(method("afl", show=show), BOWLS, START, rounds=3, steps=3) for show in ("last", "mean")
    )
    assert np.array_equal(last[-1].shown, last[-1].x)
    assert mean[-1].shown == pytest.approx(np.mean([round.x for round in mean], axis=0), abs=1e-6)


def test_q_fedavg_as_its_authors_write_it():
    q, bound, x = 0.7, 3.0, START
    played = play(method("qfedavg", q=q, curvature=bound), BOWLS, x, steps=4)[0]
    losses = np.array([(x - b.c) @ b.A @ (x - b.c) / 2 for b in BOWLS])
    gradients = bound * (x - played.clients)
    h = q * losses ** (q - 1) * (gradients**2).sum(axis=1) + bound * losses**q
    assert played.x == pytest.approx(
        x - (losses[:, None] ** q * gradients).sum(axis=0) / h.sum(), abs=1e-5
    )


# --------------------------------------------------------------------------------------- directions


def test_fedmgda_two_clients_and_the_box_around_the_sizes():
    assert values(
        "fedmgda", cohort_of([[3.0, 0.0], [0.0, 1.0]], [1, 1]), epsilon=1.0
    ) == pytest.approx([0.5, 0.5])
    assert values("fedmgda", cohort_of([[3.0, 0.0], [0.0, 1.0]], [9, 1])) == pytest.approx(
        [0.8, 0.2], abs=1e-6
    )


def test_fedmgdas_lambda_is_the_shortest_combination():
    moves = RNG.normal(size=(4, 3))
    best = shortest_combination(moves @ moves.T, np.full(4, 0.25), 0.2)
    for _ in range(200):
        other = np.clip(best + RNG.normal(size=4) * 0.05, 0.05, 0.45)
        other /= other.sum()
        if (np.abs(other - 0.25) <= 0.2).all():
            assert np.linalg.norm(best @ moves) <= np.linalg.norm(other @ moves) + 1e-6


def test_fedmgdas_step_has_the_length_that_it_is_given():
    rule, cohort = method("fedmgda", server_lr=2.0), cohort_of([[4.0, 0.0], [4.0, 0.0]], [1, 1])
    assert aggregate(rule, cohort).model.params == pytest.approx([2.0, 0.0])
    own, moved = method("fedmgda"), cohort_of([[4.0, 0.0], [2.0, 0.0]], [1, 1])
    assert aggregate(own, moved).model.params == pytest.approx([3.0, 0.0])


def test_fedawas_slope_is_the_derivative_of_its_objective():
    moves, similarity, logits = RNG.normal(size=(4, 5)), RNG.uniform(0.8, 1, 4), RNG.normal(size=4)

    def objective(at):
        s = softmax(at, 1.0)
        return s @ np.linalg.norm(moves - s @ moves, axis=1) + s @ (1 - similarity)

    numeric = [(objective(logits + e) - objective(logits - e)) / 2e-6 for e in 1e-6 * np.eye(4)]
    assert fedawa_slope(softmax(logits, 1.0), moves @ moves.T, similarity) == pytest.approx(
        numeric, abs=1e-6
    )


def test_fedawa_begins_with_shares_as_logits_and_moves_by_its_rate():
    cohort = cohort_of(RNG.normal(size=(3, 6)), [6, 3, 1], sent=RNG.normal(size=6))
    found, state = weigh("fedawa", cohort, lr=0.01)
    assert found.values == pytest.approx(softmax(np.array([0.6, 0.3, 0.1]), 1.0))
    assert np.abs(list(state["moved"].values())) == pytest.approx([0.01] * 3, rel=1e-3)
    again, _ = weigh("fedawa", cohort, state, lr=0.01)
    assert again.values == pytest.approx(
        softmax(np.array([0.6, 0.3, 0.1]) + list(state["moved"].values()), 1.0)
    )


# ------------------------------------------------------------------------------------- who is there

EVERYONE = (0, 1, 2, 3)
PATTERNS = [
    [(0,), EVERYONE, EVERYONE],
    [(1, 2), (0, 3), EVERYONE, (0,), EVERYONE],
    [EVERYONE, (3,), (0, 1, 3), EVERYONE],
    [(2,), (2,), (0, 1), (3,), EVERYONE],
]
# settings under which what a rule remembers must make no difference, and the rule that it then is
STILL = {
    "fairfed": ({"beta": 0.0}, "fedavg"),
    "afl": ({"rate": 1e-12}, "uniform"),
    "fedawa": ({"lr": 1e-12}, "fedawa"),  # softmax of the shares: its own first round
    "fedadp": ({"alpha": 1e-9}, "fedavg"),
    "feddraw_adaptive": ({}, "feddraw"),  # these clients' similarities are steady
}
# compared with a second implementation over ten rounds with changing cohorts (test_contributions)
COMPARED_OVER_ROUNDS = {"fedce", "feddg_ga", "fedpidavg", "shapfed"}


def some(present, round=0):
    """Four clients of a federation, as many as are there; each always sends the same model."""
    chance = np.random.default_rng(5)
    moves, sent = chance.normal(size=(4, 6)), chance.normal(size=6)
    counts = [[10, 10, 9, 9 - client, 40, 36 - 5 * client] for client in EVERYONE]
    extra = [asked("groups", counts)[c] | asked("loss", [0.2, 0.9, 0.4, 0.7])[c] for c in present]
    options = {
        "clients": list(present),
        "population": 4,
        "extra": extra,
        "round": round,
        "rounds": 15,
    }
    return cohort_of(
        moves[list(present)], [[24, 5, 40, 11][c] for c in present], sent=sent, **options
    )


def test_every_rule_that_remembers_is_tried_with_absent_clients():
    remembering = {name for name in METHODS if method(name).init(initial())["weighting"]}
    assert remembering == STILL.keys() | COMPARED_OVER_ROUNDS


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", STILL)
def test_a_rule_that_learns_nothing_weighs_those_present_whoever_came_first(name, pattern):
    settings, limit = STILL[name]
    state = weighting_of(method(name, **settings)).init()
    for round, present in enumerate(pattern):
        found, state = weigh(name, some(present, round), state, **settings)
        assert found.values == pytest.approx(values(limit, some(present, round)), abs=1e-7)


@pytest.mark.parametrize("client", EVERYONE)
@pytest.mark.parametrize("name", STILL)
def test_having_been_there_alone_is_no_advantage(name, client):
    rule = weighting_of(method(name))
    _, state = rule.weigh(some((client,)), rule.init())
    cohort = some(EVERYONE, 1)
    assert rule.weigh(cohort, state)[0].values == pytest.approx(
        rule.weigh(cohort, rule.init())[0].values, abs=1e-12
    )


def test_afls_lambda_covers_everyone_from_the_first_round_and_makes_room_for_new_clients():
    _, state = weigh("afl", some((0,)))
    assert list(state["lambda"].values()) == pytest.approx([1 / 4] * 4)
    _, state = weigh("afl", by_loss([0.1, 0.9], population=2), rate=0.1)
    found, later = weigh("afl", by_loss([0.5] * 4, population=4), state, rate=0.1)
    assert found.values == pytest.approx(
        [0.5 * state["lambda"]["0"], 0.5 * state["lambda"]["1"], 0.25, 0.25]
    )
    assert sum(later["lambda"].values()) == pytest.approx(1)


def test_what_fairfed_has_learnt_holds_in_every_cohort():
    """Weights among those present are in the proportion that they have among all."""
    _, state = weigh("fairfed", some(EVERYONE), beta=0.1)
    whole, _ = weigh("fairfed", some(EVERYONE), state, beta=0.0)
    part, _ = weigh("fairfed", some((1, 3)), state, beta=0.0)
    assert part.values == pytest.approx(whole.values[[1, 3]] / whole.values[[1, 3]].sum())


# ------------------------------------------------------------------------------------ at the server


def test_fedlaw_learns_to_leave_out_a_client_that_harms():
    """One client's model is noise: the images at the server tell."""
    rule = method("fedlaw", epochs=30, lr=0.1)
    kept = []
    engine = Altered(bench(rule), lambda updates: kept.append([*map(copied, updates)]) or updates)
    train(rule, 3, engine=engine)
    updates = kept[-1]
    bad = replace(
        updates[0].model,
        params=np.random.default_rng(0).normal(size=updates[0].model.params.shape) * 3,
    )
    bad = replace(bad, params=bad.params.astype(np.float32))
    cohort = Cohort(
        3, 15, initial(), [replace(updates[0], model=bad), *updates[1:]], 4, server_images()
    )
    weights = weighting_of(rule).weigh(cohort)
    assert weights.values[0] < 0.5 * SIZES[0] / sum(SIZES)
    (piece,) = weights.pieces
    assert piece.values / piece.values.sum() == pytest.approx(weights.values)
    assert piece.values.sum() != pytest.approx(1, abs=1e-3)
    whole, _ = weighting_of(method("fedlaw", epochs=3, lr=0.1, shrink=False)).weigh(cohort, {})
    assert not whole.pieces
    assert whole.values.sum() == pytest.approx(1)


def test_images_at_the_server_are_balanced_and_from_validation():
    setup = prepare(small(method="fedlbw", proxy=24))
    rows = setup.proxy.rows
    assert set(rows) <= set(setup.dataset.rows["validation"])
    again = choose_server_images(setup.dataset.labels, setup.dataset.rows["validation"], 24, 0)
    assert np.array_equal(again, rows)
    labels = setup.dataset.labels.values
    there = labels[setup.dataset.rows["validation"]].sum(axis=0)
    assert (labels[rows].sum(axis=0) >= np.minimum(4, there)).all()


def test_too_few_images_for_the_server_are_refused():
    with pytest.raises(UserError, match="proxy"):
        prepare(small(method="fedlbw", proxy=1))


MOVES = np.array([[0.2, -0.4, 0.0], [0.6, 0.0, 0.0]], np.float32)


def test_fedavgm_accumulates_and_adaptive_servers_follow_their_formulas():
    rule, x, v = method("fedavgm", momentum=0.5, server_lr=2.0), np.zeros(3), np.zeros(3)
    state = rule.init(cohort_of(MOVES, [1, 1]).sent)
    for _ in range(3):
        found = aggregate(rule, cohort_of(MOVES + x.astype(np.float32), [1, 1], sent=x), state)
        v = 0.5 * v + MOVES.mean(axis=0)
        x, state = x + 2 * v, found.state
        assert found.model.params == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_servers_follow_their_formulas(name):
    rule, x = method(name, server_lr=0.1, beta1=0.8, tau=0.01), np.zeros(3)
    move, m, v = MOVES.mean(axis=0), np.zeros(3), np.full(3, 0.01**2)
    state = rule.init(cohort_of(MOVES, [1, 1]).sent)
    for _ in range(4):
        found = aggregate(rule, cohort_of(MOVES + x.astype(np.float32), [1, 1], sent=x), state)
        m = 0.8 * m + 0.2 * move
        v = {
            "fedadam": 0.99 * v + 0.01 * move**2,
            "fedyogi": v - 0.01 * move**2 * np.sign(v - move**2),
            "fedadagrad": v + move**2,
        }[name]
        x, state = x + 0.1 * m / (np.sqrt(v) + 0.01), found.state
        assert found.model.params == pytest.approx(x, abs=1e-5)


# ----------------------------------------------------------------------------------------- patients


def test_fairfed_takes_weight_from_the_client_whose_gap_is_unlike_the_global_one():
    # by finding: positives of group 0 and 1, found of 0 and 1; then labels, right ones
    same_gap, other = [10, 10, 8, 8, 40, 30], [10, 10, 8, 0, 40, 30]
    cohort = cohort_of(
        np.zeros((3, 1)), [1, 1, 2], extra=asked("groups", [same_gap, same_gap, other])
    )
    gaps = np.array([0.0, 0.0, -0.8])
    away = np.abs(gaps - (16 / 30 - 24 / 30))
    expected = np.array([0.25, 0.25, 0.5]) - (away - away.mean())
    found, state = weigh("fairfed", cohort)
    assert sensitivity_gap(np.array(other, float)) == pytest.approx(-0.8)
    assert found.values == pytest.approx(np.maximum(0, expected) / np.maximum(0, expected).sum())
    again, _ = weigh("fairfed", cohort, state)
    twice = np.maximum(0, expected - (away - away.mean()))
    assert again.values == pytest.approx(twice / twice.sum())


def test_fairfed_without_groups_goes_by_accuracy():
    counts = [[0, 0, 0, 0, 40, 36], [0, 0, 0, 0, 40, 20]]
    accuracy = np.array([0.9, 0.5])
    cohort = cohort_of(np.zeros((2, 1)), [1, 1], extra=asked("groups", counts))
    away = np.abs(accuracy - 0.7)
    assert values("fairfed", cohort) == pytest.approx(0.5 - (away - away.mean()))


def test_group_counts_by_hand():
    logits = np.array([[3.0], [2.0], [1.0], [0.0], [-1.0], [-2.0]], np.float32)
    targets = np.array([[1], [0], [1], [0], [1], [0]], np.float32)
    groups = np.array([0, 0, 1, 1, 1, -1], np.int8)
    # three images have the finding, so the three highest scores are called: rows 0, 1, 2
    assert group_counts(logits, targets, groups).tolist() == [1, 2, 1, 1, 6, 4]
    assert group_counts(logits, targets, None).tolist() == [0, 0, 0, 0, 6, 4]


def test_groups_reach_the_clients_only_where_they_are_asked_for(tmp_path):
    dataset = prepare(small()).dataset
    sex = np.array(["M", "F", "M", "", "unknown"] * len(dataset.labels))[: len(dataset.labels)]
    grouped = replace(dataset, labels=replace(dataset.labels, groups=sex))
    assert prepare(small(), dataset=grouped).trainer.examples.groups is None
    assert prepare(small(method="fairfed")).trainer.examples.groups is None
    groups = prepare(small(method="fairfed"), dataset=grouped).trainer.examples.groups
    assert groups[:5].tolist() == [1, 0, 1, -1, -1]
    one, two = (
        list(run(small(method="fairfed", rounds=2), dataset=data))[-1].weights
        for data in (dataset, grouped)
    )
    assert one != two


def test_an_own_tables_column_of_sex_is_a_group_and_no_finding(tmp_path):
    (tmp_path / "own.csv").write_text(
        "file,Edema,sex,patient\na.png,1,F,1\nb.png,0,M,2\nc.png,0,M,3\nd.png,1,F,4\n"
    )
    labels = read_own_tables([tmp_path / "own.csv"]).labels
    assert labels.findings == ("Edema",)
    assert labels.groups.tolist() == ["F", "M", "M", "F"]
    assert labels.take(np.array([1, 3])).groups.tolist() == ["M", "F"]


# ------------------------------------------------------------------------------------ what is asked


def test_a_client_answers_what_is_asked_and_nothing_else():
    engine = bench(method("fedavg"))
    job = Job(0, 2, 1, client_seed(0, 0, 1), initial())
    plain = copied(next(engine.train([job])))
    asking = bench(method("fedavg"))
    asking.trainer.asks = tuple(ASKED)
    update = copied(next(asking.train([job])))
    rows = shards()[1]
    assert plain.extra == {}
    assert same(plain.model, update.model)  # asking changes no bit of the training
    assert list(update.extra) == list(ASKED)
    assert update.extra["labels"].tolist() == examples().targets[rows].sum(axis=0).tolist()
    assert 0 < update.extra["accuracy"][0] <= 1
    assert update.extra["loss"][0] == pytest.approx(0.69, abs=0.15)
    assert np.abs(update.extra["gradient"]).max() > 0


def test_a_count_below_zero_is_refused():
    rule = method("feddisco")

    def negative(updates):
        return [
            replace(copied(updates[0]), extra={"labels": np.array([-1, 2], np.float32)}),
            *updates[1:],
        ]

    result = train(rule, engine=Altered(bench(rule), negative))[0]
    assert result.ledger[0].status == "refused: labels of -1 is not from 0 to 1e+07"


def test_label_counts_of_a_large_client_are_not_out_of_proportion():
    sizes = (60, 4, 4, 4)
    engine = bench(method("feddisco"), shards(sizes))
    assert {entry.status for entry in train(method("feddisco"), engine=engine)[0].ledger} == {
        "weighted"
    }


# ---------------------------------------------------------------------------------- personal models


def test_fedbn_keeps_batch_norm_and_nothing_else():
    rule = method("fedbn")
    engine = bench(rule)
    result = train(rule, 2, engine=engine)[-1]
    own = [rule.local.personal(result.model, engine.memory[client]).arrays() for client in range(4)]
    for name, array in result.model.arrays().items():
        alike = all(np.array_equal(model[name], array) for model in own)
        assert alike is not ("norm" in name and not name.endswith("tracked"))


def test_fedbn_with_one_client_is_fedavg():
    one, other = (
        train(method(n), 3, engine=bench(method(n), shards((24,))), clients=1)[-1]
        for n in ("fedbn", "fedavg")
    )
    assert same(one.model, other.model)


def test_dittos_common_model_is_fedavgs_and_its_personal_one_lies_between_the_two():
    plain = play(method("fedavg"), BOWLS, START, rounds=30, steps=5)[-1]
    for pull in (0.0, 1.0, 4.0):
        last = play(method("ditto", pull=pull), BOWLS, START, rounds=30, steps=5)[-1]
        assert last.x == pytest.approx(plain.x, abs=1e-6)
        for client, bowl in enumerate(BOWLS):
            # where the gradient of F + pull/2 |v - x|² vanishes
            best = np.linalg.solve(bowl.A + pull * np.eye(2), bowl.A @ bowl.c + pull * plain.x)
            assert last.memory[client]["own"] == pytest.approx(best, abs=2e-3)


# --------------------------------------------------------------------------------- FedDRAW, changed

S = np.array([0.9, 0.99, 0.97])
CLIENTS = np.stack([[s, math.sqrt(1 - s * s)] for s in S])


def drawn(name, t, T=15, rows=CLIENTS, **options):
    return weigh(name, cohort_of(rows, [6, 3, 1], sent=[1, 0], round=t, rounds=T), **options)[0]


@pytest.mark.parametrize("t", [0, 1, 4, 9, 14])
def test_an_unchanged_variant_and_a_steady_signal_are_feddraw(t):
    plain = drawn("feddraw", t)
    assert np.array_equal(drawn("feddraw_variant", t).values, plain.values)
    rule = weighting_of(method("feddraw_adaptive"))
    state = rule.init()
    for round in range(t + 1):
        found, state = rule.weigh(cohort_of(CLIENTS, [6, 3, 1], sent=[1, 0], round=round), state)
    assert found.values == pytest.approx(plain.values, abs=1e-12)


def test_the_ablations_by_hand():
    p, beta = np.array([0.6, 0.3, 0.1]), 3 * (1 - math.exp(-0.2 * 10))
    gamma = math.exp(-0.4 * 4)
    xi = gamma * p + (1 - gamma) * S
    assert drawn("feddraw_variant", 4, inner="size").values == pytest.approx(
        softmax(p, beta), abs=1e-6
    )
    assert drawn("feddraw_variant", 4, inner="similarity").values == pytest.approx(
        softmax(S, beta), abs=1e-6
    )
    assert drawn("feddraw_variant", 4, outer="constant").values == pytest.approx(
        softmax(xi, 3.0), abs=1e-6
    )
    assert drawn("feddraw_variant", 14, outer="constant").values.max() > 0.34
    for inner in ("annealed", "size", "similarity"):
        assert drawn("feddraw_variant", 14, inner=inner).values == pytest.approx([1 / 3] * 3)
        assert drawn("feddraw_variant", 0, inner=inner).values == pytest.approx(p)


def test_controls_of_the_similarity_keep_nothing_of_whose_it_is():
    gamma, beta, p = math.exp(-0.4 * 4), 3 * (1 - math.exp(-0.2 * 10)), np.array([0.6, 0.3, 0.1])
    same = drawn("feddraw_variant", 4, signal="constant")
    assert same.parts["similarity"].tolist() == [1, 1, 1]
    assert same.values == pytest.approx(softmax(gamma * p, beta), abs=1e-9)
    shuffled = [
        drawn("feddraw_variant", t, signal="shuffled").parts["similarity"] for t in range(12)
    ]
    assert all(sorted(found) == pytest.approx(sorted(S), abs=1e-6) for found in shuffled)
    assert len({tuple(found) for found in shuffled}) > 2
    standard = drawn("feddraw_variant", 4, signal="standardised").parts["similarity"]
    assert standard == pytest.approx((S - S.mean()) / S.std(), abs=1e-4)
    alike = drawn(
        "feddraw_variant", 4, rows=np.array([[1.0, 0.0]] * 3), signal="standardised"
    ).parts["similarity"]
    assert alike.tolist() == [0, 0, 0]


@pytest.mark.parametrize("rounds", [2, 8, 15, 29, 57])
def test_by_fraction_the_schedule_is_that_of_fifteen_rounds_at_any_number_of_rounds(rounds):
    assert drawn("feddraw_variant", 0, rounds, clock="fraction").parts["gamma"] == pytest.approx(1)
    assert drawn("feddraw_variant", rounds - 1, rounds, clock="fraction").values == pytest.approx(
        [1 / 3] * 3
    )
    if rounds % 2:
        middle = drawn("feddraw_variant", (rounds - 1) // 2, rounds, clock="fraction")
        assert middle.values == pytest.approx(drawn("feddraw", 7).values)


def test_similarity_per_step_does_not_reward_training_less():
    """Clients that go the same way, one for four times as many steps: alike per step, unlike as
    models.
    """
    direction = np.array([0.1, 0.2])
    rows = np.array([1.0, 0.0]) + np.outer([4, 1, 2], direction)
    cohort = cohort_of(rows, [1, 1, 1], sent=[1, 0], steps=[40, 10, 20], round=5)
    per_step, as_models = (
        weigh("feddraw_variant", cohort, signal="per_step")[0],
        weigh("feddraw", cohort)[0],
    )
    assert np.ptp(per_step.parts["similarity"]) < 1e-6
    assert np.ptp(as_models.parts["similarity"]) > 0.1
    assert as_models.values[1] > as_models.values[0]


def test_similarity_of_moves_is_to_their_mean():
    rows = np.array([[1.1, 0.0], [1.0, 0.1], [1.1, 0.1]])
    found = weigh(
        "feddraw_variant", cohort_of(rows, [1, 1, 1], sent=[1, 0], round=3), signal="move"
    )[0]
    assert found.parts["similarity"] == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), 1], abs=1e-5)


def test_a_signal_that_turns_round_leaves_the_trust_with_size():
    rule = weighting_of(method("feddraw_adaptive"))
    state = rule.init()
    for t in range(6):
        found, state = rule.weigh(
            cohort_of(CLIENTS[:: 1 if t % 2 else -1], [1, 1, 1], sent=[1, 0], round=t), state
        )
    assert found.parts["gamma"] == pytest.approx(1, abs=0.15)


def test_what_is_kept_of_a_client_stays_while_it_is_away():
    cohort = cohort_of(CLIENTS[:2], [1, 1], sent=[1, 0], round=0)
    kept = {"1": 5.0, "7": 9.0}
    assert of_present(kept, cohort, 2.0).tolist() == [2.0, 5.0]
    assert np.isnan(of_present(kept, cohort)).tolist() == [True, False]
    assert with_present(kept, cohort, [3.0, 4.0]) == {"0": 3.0, "1": 4.0, "7": 9.0}
    assert kept == {"1": 5.0, "7": 9.0}


def test_steadiness():
    assert steadiness(np.array([1, 2, 3]), np.array([2, 4, 6])) == pytest.approx(1)
    assert steadiness(np.array([1, 2, 3]), np.array([3, 2, 1])) == 0
    assert steadiness(np.array([1, 1]), np.array([5, 7])) == 1
    assert steadiness(np.array([]), np.array([])) == 1


# --------------------------------------------------------------------------------- FedDRAW by class


def heads(rows, sent, biases=None):
    """A cohort of networks with a body of two parameters and a classifier of classes x features,
    and biases.
    """
    rows, sent = np.asarray(rows, np.float32), np.asarray(sent, np.float32)
    classes, features = sent.shape
    size = classes * features
    layout = Layout(
        (
            Entry("body.weight", "param", (2,), 0),
            Entry("classifier.weight", "param", (classes, features), 2),
            Entry("classifier.bias", "param", (classes,), 2 + size),
        ),
        "classifier",
    )
    empty = np.zeros(0, np.float32), np.zeros(0, np.int64)

    def model(head, body):
        return Model(
            np.concatenate([body, head.ravel(), np.zeros(classes)]).astype(np.float32),
            *empty,
            layout,
        )

    updates = [
        Update(i, model(head, [i, 1 - i]), 10 * (i + 1), 5, {"loss": 0.0})
        for i, head in enumerate(rows)
    ]
    return Cohort(4, 15, model(sent, [0, 0]), updates, len(updates))


def turned(sent, angle, growth):
    """Every row turned by one angle in the plane of its first two features, and grown by one
    factor.
    """
    c, s = math.cos(angle), math.sin(angle)
    out = sent.copy()
    out[:, :2] = sent[:, :2] @ np.array([[c, s], [-s, c]])
    return growth * out


@given(
    st.lists(st.tuples(st.floats(0, 1.5), st.floats(0.3, 3)), min_size=2, max_size=5),
    st.integers(0, 14),
)
@settings(max_examples=40, deadline=None)
def test_by_class_is_feddraw_where_rows_share_their_cosine_and_growth(moves, t):
    sent = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
    cohort = replace(heads([turned(sent, *move) for move in moves], sent), round=t)
    plain, found = weigh("feddraw", cohort)[0], weigh("feddraw_by_class", cohort)[0]
    assert np.array_equal(found.values, plain.values)
    for piece in found.pieces:
        assert piece.values == pytest.approx(plain.values, abs=1e-6)
    one, other = (aggregate(method(n), cohort) for n in ("feddraw", "feddraw_by_class"))
    assert other.model.params == pytest.approx(one.model.params, abs=1e-5)


def test_by_class_weighs_each_class_by_its_own_row_and_the_body_by_the_whole():
    sent = np.array([[1.0, 0.0], [1.0, 0.0]])
    cohort = heads(
        [[[1, 0], [0, 1]], [[0, 1], [1, 0]]], sent
    )  # the first keeps class 0, the second class 1
    rule = method("feddraw_by_class")
    found = aggregate(rule, cohort)
    first, second = found.weights.pieces
    assert first.parts["similarity"] == pytest.approx([1, 0], abs=1e-6)
    assert first.values[0] > 0.7
    assert second.values[0] < 0.3
    assert found.weights.values == pytest.approx(weigh("feddraw", cohort)[0].values)
    params = found.model.params
    assert params[:2] == pytest.approx(found.weights.values @ np.array([[0, 1], [1, 0]]))
    assert params[2:4] == pytest.approx(first.values)
    assert params[4:6] == pytest.approx(second.values[::-1])


def test_by_class_is_uniform_at_the_end_and_by_size_at_the_beginning():
    rows = RNG.normal(size=(3, 4, 5))
    for t, expected in ((0, [1 / 6, 2 / 6, 3 / 6]), (14, [1 / 3] * 3)):
        found = weigh("feddraw_by_class", replace(heads(rows, rows[0]), round=t))[0]
        assert [piece.values for piece in found.pieces] == [pytest.approx(expected)] * 4


def test_pieces_are_summed_in_one_pass_each_with_its_own_weights():
    rows = RNG.normal(size=(3, 10)).astype(np.float32)
    cohort = cohort_of(rows, [1, 1, 1], sent=RNG.normal(size=10))
    here, there, rest = (RNG.dirichlet(np.ones(3)) for _ in range(3))
    weights = Weights(
        rest,
        pieces=[Piece("b", [slice(8, 9), slice(3, 5)], here), Piece("a", [slice(0, 2)], 2 * there)],
    )
    found = cohort.averaged(weights.values, weights.segments)
    sent = cohort.sent.params
    assert found[[8, 3, 4]] == pytest.approx(here @ rows[:, [8, 3, 4]], abs=1e-6)
    assert found[:2] == pytest.approx(2 * there @ rows[:, :2] - sent[:2], abs=1e-6)
    assert found[[2, 5, 6, 7, 9]] == pytest.approx(rest @ rows[:, [2, 5, 6, 7, 9]], abs=1e-6)


def test_a_runs_folder_holds_the_weights_by_class_under_their_names(tmp_path):
    from feddraw.results.run_folder import RunFolder
    from feddraw.system.file_reading import read_csv

    experiment = small(method="feddraw_by_class")
    rounds = iterate(experiment, tmp_path / "run")
    next(rounds)
    rounds.close()
    whole = list(run(experiment, tmp_path / "run", resume=True))
    lines = read_csv(RunFolder(tmp_path / "run").pieces)
    assert len(lines) == 3 * 3 * 5
    assert {line["piece"] for line in lines} == set(prepare(experiment).dataset.findings)
    for round in range(3):
        for name in {line["piece"] for line in lines}:
            here = [
                float(line["weight"])
                for line in lines
                if (line["round"], line["piece"]) == (str(round), name)
            ]
            assert sum(here) == pytest.approx(1)
    assert [entry.weight for entry in whole[-1].ledger] == pytest.approx([1 / 3] * 3)
    finished = read_run(tmp_path / "run")
    assert [weights.shape for weights in finished.by_class().values()] == [(3, 3)] * 5
    assert any(
        "By finding, weights differed most in round 1" in said
        for said in weights_in_sentences(explain_run_weights(finished))
    )
    (picture,) = aggregation_weights.weights_by_finding_picture(
        [finished], "feddraw_by_class", "small"
    )
    assert "round 1" in picture.words


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ida", {"times": "sizes"}),
        ("fedsim", {"groups": 0}),
        ("feddisco", {"metric": "js"}),
        ("feddisco", {"a": -1.0}),
        ("fedlaw", {"epochs": -1}),
        ("fedawa", {"lr": 0.0}),
        ("fedeba", {"temperature": 0.0}),
        ("qfedavg", {"q": -1.0}),
        ("afl", {"show": "first"}),
        ("fedmgda", {"epsilon": 0.0}),
        ("gifair", {"strength": 1.0}),
        ("fairfed", {"beta": math.nan}),
        ("fedavgm", {"momentum": 1.0}),
        ("fedadam", {"beta2": 1.0}),
        ("fedyogi", {"tau": 0.0}),
        ("trimmed_mean", {"share": 0.5}),
        ("krum", {"keep": 0}),
        ("size_then_uniform", {"until": -1}),
        ("size_power", {"power": 11.0}),
        ("size_power", {"power": float("nan")}),
        ("ditto", {"pull": -1.0}),
        ("feddraw_variant", {"inner": "sizes"}),
        ("feddraw_variant", {"clock": "t"}),
        ("feddraw_by_class", {"reading": "report"}),
        ("feddraw_adaptive", {"eta": 0.0}),
    ],
)
def test_a_wrong_hyperparameter_is_refused_in_one_line(name, wrong):
    with pytest.raises(UserError) as error:
        method(name, **wrong)
    assert "\n" not in str(error.value)


def test_similarity_of_one_layer_and_of_the_whole_network_differ():
    rows = RNG.normal(size=(2, 10))
    assert cosine(rows[:, 6:], rows[0, 6:])[1] != pytest.approx(cosine(rows, rows[0])[1])


# ---------------------------------------------------------------------------------- the study files

STUDIES = Path(__file__).parent.parent / "studies"


def test_the_zoo_study_names_methods_that_there_are():
    assert set(read_toml(STUDIES / "zoo.toml")["method"]) <= set(catalog.names("methods"))


def test_the_study_of_controls_can_be_run():
    runs = read_study(STUDIES / "controls.toml")
    assert len(runs) == 136
    for planned in runs:
        make_method(planned.experiment)


def test_the_page_of_methods_is_up_to_date():
    """`python -m website.catalogue` writes it."""
    spec = spec_from_file_location("catalogue", STUDIES.parent / "website" / "catalogue.py")
    catalogue = module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    assert catalogue.PAGE.read_text(encoding="utf-8") == catalogue.page()
    for system, name in catalogue.IN_THE_PAPER.items():
        reasons = [
            rule for rule in catalogue.MISSING if rule.startswith((f"{system} ", f"{system},"))
        ]
        assert name in METHODS or (not name and len(reasons) == 1), system


def test_a_long_update_does_not_make_krum_take_the_others_for_equal() -> None:
    sent = {"fc.weight": np.zeros((5, 20), np.float32), "fc.bias": np.zeros(5, np.float32)}
    rng = np.random.default_rng(0)

    def moved(by: float) -> dict[str, np.ndarray]:
        return {
            name: (array + by + 0.1 * rng.normal(size=array.shape)).astype(np.float32)
            for name, array in sent.items()
        }

    updates = [(moved(1.0), 100) for _ in range(5)] + [(moved(20.0), 100), (moved(2e8), 100)]
    method = {"name": "krum", "false": 2, "keep": 1}
    found = feddraw.aggregate(sent, updates, round=0, rounds=3, method=method, classifier="fc")
    assert sorted(found.weights.values()) == [0, 0, 0, 0, 0, 0, 1]
