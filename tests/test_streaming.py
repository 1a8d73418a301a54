"""Updates summed as they come: close to the sum of all at once, the same bits for any number of
workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddraw.core import Server
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.methods.feddraw import feddraw
from feddraw.server.collectors import RunningSum
from feddraw.server.gate import Gate
from small import small
from tiny import (
    cohort_of,
    same,
    streamed,
    streaming_methods,
    together,
    trained,
    with_server,
)

STREAMING = streaming_methods()
every_streaming = pytest.mark.parametrize("name", STREAMING)


def a_round(name):
    """A second round: the method, the model that was sent, the state, and the updates."""
    run = trained(name)
    return run.method, *run.before(1), run.updates[1]


def both(name, change=list, round=1):
    """A second round, its updates changed, by a server that has all at once and by one that
    streams.
    """
    method, sent, state, updates = a_round(name)
    at_once = together(method, sent, state, change(updates), round=round)
    return at_once, streamed(method, sent, state, change(updates), round=round)


def test_the_methods_of_the_paper_that_average_stream():
    assert {"feddraw", "fedavg", "uniform", "fedprox", "moon"} <= set(STREAMING)


@every_streaming
@pytest.mark.parametrize("round", [0, 1, 7, 14])
def test_a_stream_gives_what_all_at_once_gives(name, round):
    at_once, stream = both(name, round=round)
    np.testing.assert_allclose(stream.model.params, at_once.model.params, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(stream.model.buffers, at_once.model.buffers, atol=1e-6, rtol=1e-6)
    assert np.array_equal(stream.model.counters, at_once.model.counters)
    for here, there in zip(stream.ledger, at_once.ledger, strict=True):
        assert here.status == there.status
        for column in ("weight", "prior", "similarity", "gamma", "beta", "reputation", "influence"):
            assert getattr(here, column) == pytest.approx(
                getattr(there, column), rel=1e-9, nan_ok=True
            ), column


@every_streaming
def test_a_refused_update_leaves_nothing_in_the_sum(name):
    def poisoned(updates):
        bad = updates[1].model.params.copy()
        bad[3] = np.nan
        return [
            updates[0],
            replace(updates[1], model=replace(updates[1].model, params=bad)),
            *updates[2:],
        ]

    _, stream = both(name, poisoned)
    assert np.isfinite(stream.model.params).all()
    assert stream.ledger[1].status.startswith("refused: parameters are not finite")
    assert sum(entry.weight for entry in stream.ledger) == pytest.approx(1)


def test_a_client_that_says_another_size_than_before_is_refused():
    _, stream = both(
        "fedavg", lambda updates: [replace(updates[0], size=updates[0].size * 1000), *updates[1:]]
    )
    assert "was announced" in stream.ledger[0].status


@pytest.mark.parametrize("gate", [Gate(norm="refuse"), Gate(clip=0.9)])
def test_a_gate_that_waits_for_all_updates_is_refused(gate):
    with pytest.raises(UserError, match="cannot wait for the median"):
        streamed(*a_round("fedavg"), gate=gate)


def test_where_all_are_refused_the_model_stays():
    method, sent, state, updates = a_round("uniform")
    broken = [replace(update, steps=0) for update in updates]
    assert streamed(method, sent, state, broken).model is sent


def test_bits_are_the_same_for_any_number_of_workers():
    models = []
    for changes in ({"engine": "serial"}, {"engine": "processes", "workers": 2}):
        *_, last = run(small(stream=True, method="feddraw", rounds=2, **changes))
        models.append(last.model)
    assert same(*models)


def test_a_killed_stream_goes_on_to_the_same_bits(tmp_path):
    whole = list(run(small(stream=True), tmp_path / "whole"))
    rounds = iterate(small(stream=True), tmp_path / "cut")
    next(rounds)
    rounds.close()
    again = list(run(small(stream=True), tmp_path / "cut", resume=True))
    assert np.array_equal(whole[-1].model.params, again[-1].model.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedadp"}, "fedadp cannot stream"),
        ({"method": "scaffold"}, "scaffold cannot stream"),
        ({"gate.norm": "refuse"}, "cannot wait for the median"),
    ],
)
def test_what_cannot_stream_is_refused_before_training(changes, message):
    with pytest.raises(UserError, match=message):
        complete_settings(small(stream=True, **changes))


@given(scores=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_a_running_softmax_is_the_softmax(scores, seed):
    rows = np.random.default_rng(seed).standard_normal((len(scores), 5)).astype(np.float32)
    sums = RunningSum(5)
    for score, row in zip(scores, rows, strict=True):
        sums.add(score, row)
    weights = np.exp(np.array(scores) - max(scores))
    np.testing.assert_allclose(sums.averages()[0], weights / weights.sum() @ rows, atol=1e-6)


@given(
    sizes=st.lists(st.integers(1, 10**12), min_size=1, max_size=8),
    when=st.integers(1, 400).flatmap(
        lambda rounds: st.tuples(st.integers(0, rounds - 1), st.just(rounds))
    ),
    strengths=st.fixed_dictionaries(
        {name: st.floats(1e-6, 1e6) for name in ("eta", "lam", "beta_max")}
    ),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_a_stream_of_any_sizes_at_any_time_is_all_at_once(sizes, when, strengths, seed):
    sent, *rows = np.random.default_rng(seed).standard_normal((len(sizes) + 1, 6))
    cohort = cohort_of(rows, sizes, sent=sent)
    method = feddraw(**strengths)
    a_round = method, cohort.sent, method.init(cohort.sent), cohort.updates
    options = {
        "round": when[0],
        "rounds": when[1],
        "clients": [f"C{number}" for number in range(len(sizes))],
        "gate": Gate(max_size=10**12),
    }
    at_once = together(*a_round, **options)
    stream = streamed(*a_round, sizes=sizes, **options)
    assert [entry.weight for entry in stream.ledger] == pytest.approx(
        [entry.weight for entry in at_once.ledger], abs=1e-9
    )
    np.testing.assert_allclose(stream.model.params, at_once.model.params, atol=1e-5)


def test_a_server_rule_that_wants_more_than_the_average_is_told_so():
    @dataclass(frozen=True)
    class Doubled(Server):
        def step(self, sums, state):
            twice = 2 * sums.weights.values
            return sums.cohort.sent.params + sums.moved_by(twice, slice(None)), state

    method, *rest = a_round("fedavg")
    with pytest.raises(UserError, match="set stream = false"):
        streamed(with_server(method, Doubled()), *rest)


def test_memory_for_updates_does_not_grow_with_the_clients():
    rows = []
    for clients in (4, 12):
        setup = prepare(small(stream=True, **{"scenario.clients": clients, "scenario.power": 0.0}))
        from feddraw.engines.processes import Processes

        engine = Processes(setup.trainer, 2, setup.clients, in_turn=True)
        rows.append(len(engine._arrays["params"]))
        engine.close()
    assert rows == [3, 3]
