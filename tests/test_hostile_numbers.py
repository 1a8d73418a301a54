"""Whatever number one client sends, the model stays finite, and a refused client is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from feddraw import catalog
from feddraw.core import BySize, Method, Server, Weighted
from feddraw.server.collectors import Together
from feddraw.server.gate import Gate
from feddraw.server.method_check import CLIENTS, MadeUpFederation

NUMBERS = {
    "zero": 0.0,
    "tiny": 1e-40,
    "huge": 9e17,
    "largest": 3e38,
    "negative": -9e17,
    "NaN": np.nan,
    "infinite": np.inf,
}
METHODS = [name for name in catalog.names("methods") if name != "centralised"]
ASKING = [name for name in METHODS if catalog.find("methods", name)().extras]
LIAR = 1


def after_a_lie(made, liar):
    """Two rounds in which one client lies, and a third, honest one."""
    collect = made.together()
    updates = [*made.updates[:LIAR], liar, *made.updates[LIAR + 1 :]]
    state = made.state
    results = []
    for number, answers in enumerate((updates, updates, made.updates)):
        results.append(collect(made.round(number, state), answers))
        state = results[-1].state
    return results


def check(results, where):
    for result in results:
        assert np.isfinite(result.model.params).all(), where
        assert np.isfinite(result.next_model.params).all(), where
        assert np.isfinite(result.next_model.buffers).all(), where
        weighted = [entry.weight for entry in result.ledger if entry.weighted]
        assert np.isfinite(weighted).all(), where
    assert results[-1].weights, where  # the honest round is aggregated whatever came before
    for entry in results[0].ledger:
        if entry.client != CLIENTS[LIAR] and not entry.weighted:
            assert "would not be finite" in entry.status, where


@pytest.mark.parametrize("name", ASKING)
def test_no_number_beside_the_model_breaks_a_run(name):
    made = MadeUpFederation.of(catalog.find("methods", name)())
    honest = made.updates[LIAR]
    for extra in made.method.extras:
        for word, number in NUMBERS.items():
            lie = np.full_like(honest.extra[extra], number)
            liar = replace(honest, extra={**honest.extra, extra: lie})
            check(after_a_lie(made, liar), f"{extra} {word}")
            first = honest.extra[extra].copy()
            first[0] = number
            liar = replace(honest, extra={**honest.extra, extra: first})
            check(after_a_lie(made, liar), f"first of {extra} {word}")
        for wrong in (np.zeros(1, np.float64), np.zeros((2, 2), np.float32), [0.5], "0.5", None):
            liar = replace(honest, extra={**honest.extra, extra: wrong})
            results = after_a_lie(made, liar)
            check(results, f"{extra} {wrong!r}")
            assert results[0].ledger[LIAR].status.startswith("refused"), f"{extra} {wrong!r}"


@pytest.mark.parametrize("name", METHODS)
def test_no_size_number_of_steps_or_parameter_breaks_a_run(name):
    made = MadeUpFederation.of(catalog.find("methods", name)())
    honest = made.updates[LIAR]
    sizes = (0, -1, 5e-324, 1e-300, 10**400, "10")
    lies = {f"size {size!r}": replace(honest, size=size) for size in sizes}
    lies |= {f"steps {steps!r}": replace(honest, steps=steps) for steps in (0, -1, 10**12, 1.5)}
    for number in (1e15, -1e15, 3e38):
        params = np.full_like(honest.model.params, number)
        lies[f"params {number}"] = replace(honest, model=replace(honest.model, params=params))
    for where, liar in lies.items():
        check(after_a_lie(made, liar), where)


@dataclass(frozen=True)
class Overflowing(Server):
    """A rule of somebody's own whose step overflows where a client's parameters are large."""

    def step(self, sums, state):
        with np.errstate(over="ignore"):
            return sums.total * np.float32(1e30), state


def test_a_model_that_is_not_finite_is_not_taken_and_who_moved_farthest_is_named():
    made = MadeUpFederation.of(Method(Weighted(BySize(), Overflowing())))
    honest = made.updates[LIAR]
    far = np.full_like(honest.model.params, 1e15)
    liar = replace(honest, model=replace(honest.model, params=far))
    updates = [*made.updates[:LIAR], liar, *made.updates[LIAR + 1 :]]
    result = made.together()(made.round(), updates)
    assert result.next_model is made.sent
    assert not result.weights
    assert all("would not be finite" in entry.status for entry in result.ledger)
    farthest = [entry.client for entry in result.ledger if "farthest" in entry.status]
    assert farthest == [CLIENTS[LIAR]]
    assert made.together()(made.round(), made.updates).weights


def with_false_variances(update, number):
    """Honest parameters, and batch-norm variances that no images give."""
    buffers = update.model.buffers.copy()
    buffers[update.model.layout.variances] = number
    return replace(update, model=replace(update.model, buffers=buffers))


@pytest.mark.parametrize("number", [1e17, 1e6, 0.0])
def test_false_batch_norm_statistics_are_noticed_refused_and_clipped(number):
    made = MadeUpFederation.of(catalog.find("methods", "fedavg")())
    liar = with_false_variances(made.updates[LIAR], number)
    updates = [*made.updates[:LIAR], liar, *made.updates[LIAR + 1 :]]

    def outcome(**settings):
        result = Together(gate=Gate(**settings))(made.round(), updates)
        moved = np.abs(result.next_model.statistics_moved(made.sent)).max()
        return result.ledger[LIAR].status, moved

    honest = Together()(made.round(), made.updates).next_model
    usual = np.abs(honest.statistics_moved(made.sent)).max()
    noted, _ = outcome()
    assert "batch-norm statistics moved" in noted
    refused, moved = outcome(norm="refuse")
    assert refused.startswith("refused: batch-norm statistics moved")
    assert moved < 5 * usual
    clipped, moved = outcome(clip=2.0)
    assert "batch-norm statistics clipped" in clipped
    assert moved < 5 * usual


@pytest.mark.parametrize("number", [1e17, 0.0])
def test_false_statistics_are_seen_where_all_others_leave_theirs_as_they_are(number):
    """As training in evaluation mode does: there is no median to compare with."""
    made = MadeUpFederation.of(catalog.find("methods", "fedavg")())
    sent = made.sent.buffers
    updates = [replace(u, model=replace(u.model, buffers=sent.copy())) for u in made.updates]
    updates[LIAR] = with_false_variances(updates[LIAR], number)

    def outcome(**settings):
        result = Together(gate=Gate(**settings))(made.round(), updates)
        assert all(entry.weighted for entry in result.ledger if entry.client != CLIENTS[LIAR])
        return result.ledger[LIAR].status, np.array_equal(result.next_model.buffers, sent)

    assert outcome() == ("weighted: batch-norm statistics moved while most have not", False)
    refused, as_sent = outcome(norm="refuse")
    assert refused.startswith("refused: batch-norm statistics moved")
    assert as_sent
    clipped, as_sent = outcome(clip=2.0)
    assert "batch-norm statistics put back as sent" in clipped
    assert as_sent


def test_krum_does_not_choose_a_client_with_false_batch_norm_statistics():
    made = MadeUpFederation.of(catalog.find("methods", "krum")())
    chosen = next(
        name for name, w in made.together()(made.round(), made.updates).weights.items() if w
    )
    liar = CLIENTS.index(chosen)
    false = with_false_variances(made.updates[liar], 1e17)
    updates = [*made.updates[:liar], false, *made.updates[liar + 1 :]]
    assert not made.together()(made.round(), updates).weights[chosen]
