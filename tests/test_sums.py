"""One pass over the updates: sums beside exact ones, the same bits from C and numpy and for any
number of threads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feddraw.core import Cohort, Entry, Layout, Model, Update, gram, sums
from feddraw.experiment.running import run
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.server.collectors import CohortSums
from feddraw.server.gate import Gate
from feddraw.system.file_reading import read_json
from small import small
from tiny import aggregate, together

COLUMNS = (1 << 19) + 12_345  # more than one thread's part, and an end that fits no block
compiled = pytest.mark.skipif(sums.compiled_sums() is None, reason="no C compiler here")


def some(clients, columns=COLUMNS, seed=0):
    """A sent model, the clients' matrix and their weights."""
    rng = np.random.default_rng(seed)
    sent = rng.normal(scale=0.03, size=columns).astype(np.float32)
    rows = sent + rng.normal(scale=1e-2, size=(clients, columns)).astype(np.float32)
    return rows, sent, rng.dirichlet(np.ones(clients))


@pytest.mark.parametrize(
    "floor", [1 << 60, pytest.param(0, marks=compiled)], ids=["numpy", "compiled"]
)
@pytest.mark.parametrize("clients", [1, 10, 120])
def test_sums_and_distances_are_those_of_float64(clients, floor, monkeypatch):
    monkeypatch.setattr(sums, "WORTH_COMPILING", floor)
    rows, sent, weights = some(clients, COLUMNS if clients < 100 else 40_000)
    out = np.empty_like(sent)
    squares = sums.sum_moves(rows, sent, weights, out)
    moves = rows.astype(np.float64) - sent
    exact = sent + weights @ moves
    assert np.abs(out - exact).max() < 1e-6 * np.abs(exact).max()
    rounding = np.mean(np.abs(exact.astype(np.float32) - exact))
    assert np.mean(np.abs(out - exact)) <= 1.2 * rounding
    assert squares == pytest.approx((moves**2).sum(axis=1), rel=1e-5)


@compiled
@pytest.mark.parametrize("clients", [1, 4, 5, 7, 10, 51, 103])
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 8191, 8192, 8200, 70_000])
def test_sums_and_squares_have_the_same_bits_from_c_and_from_numpy(clients, columns, monkeypatch):
    rows, sent, weights = some(clients, columns + 1)
    slow, fast = np.empty_like(sent), np.empty_like(sent)
    far = sums.sum_moves(rows[:, 1:], sent[1:], weights, slow[1:])  # a view whose rows do not touch
    monkeypatch.setattr(sums, "WORTH_COMPILING", 0)
    assert np.array_equal(sums.sum_moves(rows[:, 1:], sent[1:], weights, fast[1:]), far)
    assert np.array_equal(slow[1:], fast[1:])


@compiled
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-22, 1e18])
def test_bits_are_the_same_also_for_moves_whose_squares_are_hardly_numbers(scale, monkeypatch):
    rng = np.random.default_rng(0)
    sent = np.zeros(30_001, np.float32)
    rows = (scale * rng.normal(size=(7, len(sent)))).astype(
        np.float32
    )  # denormals at the one end, 1e36 at the other
    slow, fast, weights = np.empty_like(sent), np.empty_like(sent), rng.dirichlet(np.ones(7))
    far = sums.sum_moves(rows, sent, weights, slow)
    monkeypatch.setattr(sums, "WORTH_COMPILING", 0)
    assert np.array_equal(sums.sum_moves(rows, sent, weights, fast), far)
    assert np.array_equal(slow, fast)


@pytest.mark.parametrize(
    "floor", [1 << 60, pytest.param(0, marks=compiled)], ids=["numpy", "compiled"]
)
@pytest.mark.parametrize("columns", [5, 8192, 20_011])
def test_squares_are_added_in_the_order_that_is_written_down(columns, floor, monkeypatch):
    monkeypatch.setattr(sums, "WORTH_COMPILING", floor)
    rows, sent, weights = some(3, columns)
    moves = rows - sent
    for move, square in zip(moves, sums.sum_moves(rows, sent, weights), strict=True):
        total = 0.0
        for start in range(0, columns, sums.BLOCK):
            lanes = np.zeros(sums.LANES, np.float32)
            for j, step in enumerate(move[start : start + sums.BLOCK]):
                lanes[j % sums.LANES] += step * step
            block = 0.0
            for lane in lanes.tolist():
                block += lane
            total += block
        assert square == total


def test_scalar_products_of_moves_are_those_of_float64_also_beyond_a_block():
    rows, sent, _ = some(3, 40_000)
    moves = rows.astype(np.float64) - sent
    np.testing.assert_allclose(gram(rows, sent), moves @ moves.T, rtol=1e-12)


def test_a_length_has_the_same_bits_alone_and_among_others():
    rows, sent, weights = some(
        3, 10 * (1 << 19) + 77
    )  # more threads' parts than numpy adds one by one
    together = sums.sum_moves(rows, sent, weights)
    assert [sums.squared_distance(row, sent) for row in rows] == together.tolist()


@pytest.mark.parametrize(
    "floor", [1 << 60, pytest.param(0, marks=compiled)], ids=["numpy", "compiled"]
)
def test_bits_do_not_depend_on_threads(floor, monkeypatch):
    monkeypatch.setattr(sums, "WORTH_COMPILING", floor)
    rows, sent, weights = some(6, 2 * COLUMNS)
    several, one = np.empty_like(sent), np.empty_like(sent)
    far = sums.sum_moves(rows, sent, weights, several)
    monkeypatch.setattr(sums, "in_threads", lambda work, pieces: [work(piece) for piece in pieces])
    assert np.array_equal(sums.sum_moves(rows, sent, weights, one), far)
    assert np.array_equal(several, one)


def round_of(method, rows, sent, gate=None):
    layout = Layout(
        (
            Entry("body", "param", (len(sent) - 4,), 0),
            Entry("head.bias", "param", (4,), len(sent) - 4),
        ),
        "head",
    )
    nothing = np.empty(0, np.float32), np.empty(0, np.int64)
    updates = [
        Update(k, Model(row, *nothing, layout), 10 + k, 1, {"loss": 1.0})
        for k, row in enumerate(rows)
    ]
    sent = Model(sent, *nothing, layout)
    clients = [f"C{k}" for k in range(len(rows))]
    result = together(method, sent, method.init(sent), updates, round=4, clients=clients, gate=gate)
    return result, Cohort(4, 15, sent, updates, len(rows))


@pytest.mark.parametrize("method", [fedavg(), feddraw()], ids=["fedavg", "feddraw"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30, -3e38])
def test_who_is_refused_after_the_sum_is_not_in_it(method, wrong):
    rows, sent, _ = some(5, 5_000)
    rows[2, 7] = rows[2, -1] = wrong
    outcome, cohort = round_of(method, rows, sent)
    assert outcome.ledger[2].status.startswith("refused: parameters are not finite")
    others = replace(cohort, updates=[update for update in cohort.updates if update.client != 2])
    expected = aggregate(method, others)
    assert np.array_equal(outcome.model.params, expected.model.params)
    assert [
        entry.weight for entry in outcome.ledger if entry.weighted
    ] == expected.coefficients.tolist()


def test_a_sum_and_the_distances_come_from_one_pass_and_other_numbers_from_another():
    rows, sent, _ = some(3, 5_000)
    _, cohort = round_of(fedavg(), rows, sent)
    rule = fedavg().aggregation
    weights, _ = rule.weighting.weigh(cohort, {})
    sums, distances = CohortSums.measured(rule, cohort, weights)
    assert np.array_equal(sums.total, cohort.averaged(weights.values))
    assert np.array_equal(distances, cohort.distances)
    others = np.array([0.5, 0.25, 0.25])
    for span in (slice(5, 90), slice(None)):
        expected = others @ cohort.moves[:, span].astype(np.float64)
        assert sums.moved_by(others, span) == pytest.approx(expected, abs=1e-6)


def test_who_is_clipped_after_the_sum_is_summed_again():
    rows, sent, _ = some(5, 5_000)
    rows[2] = sent + 40 * (rows[2] - sent)
    far, near = (round_of(fedavg(), rows, sent, Gate(clip=clip))[0] for clip in (0.0, 2.0))
    assert near.ledger[2].status.startswith("weighted: clipped")
    assert near.ledger[2].influence < far.ledger[2].influence
    assert np.linalg.norm(near.model.params - sent) < np.linalg.norm(far.model.params - sent) / 5


@compiled
def test_a_run_with_clipping_is_the_same_with_and_without_a_compiler(tmp_path, monkeypatch):
    experiment = small(**{"gate.clip": 0.9, "method": "fedavg"})
    for name, floor in (("numpy", 1 << 60), ("compiled", 0)):
        monkeypatch.setattr(sums, "WORTH_COMPILING", floor)
        list(run(experiment, tmp_path / name))
    ledger = (tmp_path / "numpy" / "weights.csv").read_text()
    assert ledger.count("weighted: clipped") >= 3
    assert (tmp_path / "compiled" / "weights.csv").read_text() == ledger
    models = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("numpy", "compiled")
    ]
    assert models[0] == models[1]
    recorded = [
        read_json(tmp_path / name / "environment.json")["sums"] for name in ("numpy", "compiled")
    ]
    assert recorded[0].startswith("numpy: fewer than")
    assert recorded[1].startswith("sums.c: ")


def test_the_record_says_why_sums_are_numpys(monkeypatch):
    monkeypatch.setattr(sums.shutil, "which", lambda _: None)
    assert sums.summed_by(sums.WORTH_COMPILING) == "numpy: no C compiler"
    monkeypatch.setattr(sums.shutil, "which", lambda _: "/bin/false")
    monkeypatch.setattr(
        sums, "compiled_sums", sums.compiled_sums.__wrapped__
    )  # what was compiled is kept elsewhere
    assert sums.summed_by(sums.WORTH_COMPILING) == "numpy: cc cannot compile sums.c"


def test_a_weighted_sum_does_not_lose_small_terms_beside_large_ones():
    rows = np.array([[1e8], [1.0], [1.0], [1.0], [-1e8], [1.0]], np.float32)
    for order in (slice(None), slice(None, None, -1)):
        assert sums.weighted_sum(np.ones(len(rows)), rows[order]).tolist() == [4.0]
