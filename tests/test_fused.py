"""One pass over the updates: sums beside exact ones, the same bits from C and numpy and for any number of threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feddraw import fused
from feddraw.core import Cohort, Entry, Layout, Model, Update
from feddraw.federation import settle
from feddraw.gate import Gate
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw

COLUMNS = (1 << 19) + 12_345  # more than one thread's part, and an end that fits no block
compiled = pytest.mark.skipif(fused.compiled() is None, reason="no C compiler here")


def some(clients, columns=COLUMNS, seed=0):
    """A sent model, the clients' matrix and their weights."""
    rng = np.random.default_rng(seed)
    sent = rng.normal(scale=0.03, size=columns).astype(np.float32)
    rows = sent + rng.normal(scale=1e-2, size=(clients, columns)).astype(np.float32)
    return rows, sent, rng.dirichlet(np.ones(clients))


@pytest.mark.parametrize("floor", [1 << 60, pytest.param(0, marks=compiled)], ids=["numpy", "compiled"])
@pytest.mark.parametrize("clients", [1, 10, 120])
def test_sums_and_distances_are_those_of_float64(clients, floor, monkeypatch):
    monkeypatch.setattr(fused, "WORTH_COMPILING", floor)
    rows, sent, weights = some(clients, COLUMNS if clients < 100 else 40_000)
    out = np.empty_like(sent)
    squares = fused.fused(rows, sent, weights, out)
    moves = rows.astype(np.float64) - sent
    exact = sent + weights @ moves
    assert np.abs(out - exact).max() < 1e-6 * np.abs(exact).max()
    rounding = np.mean(np.abs(exact.astype(np.float32) - exact))
    assert np.mean(np.abs(out - exact)) <= 1.2 * rounding
    assert squares == pytest.approx((moves**2).sum(axis=1), rel=1e-5)


@compiled
@pytest.mark.parametrize("clients", [1, 4, 5, 7, 10, 51, 103])
def test_the_compiled_sum_has_the_bits_of_numpys(clients, monkeypatch):
    rows, sent, weights = some(clients, 70_001)
    slow, fast = np.empty_like(sent), np.empty_like(sent)
    far = fused.fused(rows[:, 1:], sent[1:], weights, slow[1:])  # a view whose rows do not touch
    monkeypatch.setattr(fused, "WORTH_COMPILING", 0)
    assert fused.fused(rows[:, 1:], sent[1:], weights, fast[1:]) == pytest.approx(far, rel=1e-5)
    assert np.array_equal(slow[1:], fast[1:])


@pytest.mark.parametrize("floor", [1 << 60, pytest.param(0, marks=compiled)], ids=["numpy", "compiled"])
def test_bits_do_not_depend_on_threads(floor, monkeypatch):
    monkeypatch.setattr(fused, "WORTH_COMPILING", floor)
    rows, sent, weights = some(6, 2 * COLUMNS)
    several, one = np.empty_like(sent), np.empty_like(sent)
    far = fused.fused(rows, sent, weights, several)
    monkeypatch.setattr(fused, "in_threads", lambda work, pieces: [work(piece) for piece in pieces])
    assert np.array_equal(fused.fused(rows, sent, weights, one), far)
    assert np.array_equal(several, one)


def round_of(method, rows, sent, gate=None):
    layout = Layout(
        (Entry("body", "param", (len(sent) - 4,), 0), Entry("head.bias", "param", (4,), len(sent) - 4)), "head"
    )
    nothing = np.empty(0, np.float32), np.empty(0, np.int64)
    updates = [Update(k, Model(row, *nothing, layout), 10 + k, 1, {"loss": 1.0}) for k, row in enumerate(rows)]
    sent = Model(sent, *nothing, layout)
    clients = [f"C{k}" for k in range(len(rows))]
    return settle(4, 15, sent, method, method.init(sent), updates, clients, gate), Cohort(
        4, 15, sent, updates, len(rows)
    )


@pytest.mark.parametrize("method", [fedavg(), feddraw()], ids=["fedavg", "feddraw"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30, -3e38])
def test_who_is_refused_after_the_sum_is_not_in_it(method, wrong):
    rows, sent, _ = some(5, 5_000)
    rows[2, 7] = rows[2, -1] = wrong
    settled, cohort = round_of(method, rows, sent)
    assert settled.ledger[2].status.startswith("refused: parameters are not finite")
    others = replace(cohort, updates=[update for update in cohort.updates if update.client != 2])
    expected = method.aggregate(others, method.init(cohort.model))
    assert np.array_equal(settled.model.params, expected.model.params)
    assert [entry.weight for entry in settled.ledger if entry.counted] == expected.coefficients.tolist()


def test_who_is_clipped_after_the_sum_is_summed_again():
    rows, sent, _ = some(5, 5_000)
    rows[2] = sent + 40 * (rows[2] - sent)
    far, near = (round_of(fedavg(), rows, sent, Gate(clip=clip))[0] for clip in (0.0, 2.0))
    assert near.ledger[2].status.startswith("counted: clipped")
    assert near.ledger[2].influence < far.ledger[2].influence
    assert np.linalg.norm(near.model.params - sent) < np.linalg.norm(far.model.params - sent) / 5
