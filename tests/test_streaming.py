"""Updates summed as they come: close to the sum of all at once, the same bits for any number of
workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddraw import catalog
from feddraw.core import Server
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment, complete, make_method
from feddraw.methods.feddraw import feddraw
from feddraw.server.gate import Gate
from feddraw.server.round import aggregate_round
from feddraw.server.streaming import RunningSum, aggregate_stream
from small import small
from tiny import NAMES, Altered, bench, cohort_of, copied, train

STREAMING = [
    name for name in catalog.names("methods") if make_method(Experiment(method=name)).streams
]
every_streaming = pytest.mark.parametrize("name", STREAMING)


def a_round(name):
    """The updates of a second round, the model that was sent, and the state."""
    method = make_method(Experiment(method=name))
    kept = []
    engine = Altered(bench(method), lambda updates: kept.append([*map(copied, updates)]) or updates)
    first, _ = train(method, rounds=2, engine=engine)
    return method, first.next_model, first.state, kept[1]


def both(name, updates=None, round=1):
    method, sent, state, came = a_round(name)
    came = came if updates is None else updates(came)
    sizes = {update.client: update.size for update in a_round(name)[3]}
    at_once = aggregate_round(round, 15, sent, method, state, came, NAMES)
    return at_once, aggregate_stream(round, 15, sent, method, state, iter(came), NAMES, sizes)


def test_the_methods_of_the_paper_that_average_stream():
    assert {"feddraw", "fedavg", "uniform", "fedprox", "moon"} <= set(STREAMING)


@every_streaming
@pytest.mark.parametrize("round", [0, 1, 7, 14])
def test_a_stream_gives_what_all_at_once_gives(name, round):
    at_once, streamed = both(name, round=round)
    np.testing.assert_allclose(streamed.model.params, at_once.model.params, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(streamed.model.buffers, at_once.model.buffers, atol=1e-6, rtol=1e-6)
    assert np.array_equal(streamed.model.counters, at_once.model.counters)
    for here, there in zip(streamed.ledger, at_once.ledger, strict=True):
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

    _, streamed = both(name, poisoned)
    assert np.isfinite(streamed.model.params).all()
    assert streamed.ledger[1].status.startswith("refused: parameters are not finite")
    assert sum(entry.weight for entry in streamed.ledger) == pytest.approx(1)


def test_a_client_that_says_another_size_than_before_is_refused():
    _, streamed = both(
        "fedavg", lambda updates: [replace(updates[0], size=updates[0].size * 1000), *updates[1:]]
    )
    assert "was announced" in streamed.ledger[0].status


@pytest.mark.parametrize("gate", [Gate(norm="refuse"), Gate(clip=0.9)])
def test_a_gate_that_waits_for_all_updates_is_refused(gate):
    method, sent, state, came = a_round("fedavg")
    sizes = {update.client: update.size for update in came}
    with pytest.raises(UserError, match="cannot wait for the median"):
        aggregate_stream(1, 15, sent, method, state, iter(came), NAMES, sizes, gate)


def test_where_all_are_refused_the_model_stays():
    method, sent, state, came = a_round("uniform")
    broken = [replace(update, steps=0) for update in came]
    sizes = {update.client: update.size for update in came}
    outcome = aggregate_stream(1, 15, sent, method, state, iter(broken), NAMES, sizes)
    assert outcome.model is sent


def test_bits_are_the_same_for_any_number_of_workers():
    found = []
    for changes in ({"engine": "serial"}, *({"engine": "processes", "workers": w} for w in (1, 3))):
        *_, last = run(small(stream=True, method="feddraw", rounds=2, **changes))
        found.append(last.model)
    assert all(np.array_equal(found[0].params, model.params) for model in found[1:])
    assert all(np.array_equal(found[0].buffers, model.buffers) for model in found[1:])


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
        complete(small(stream=True, **changes))


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
    method, names = feddraw(**strengths), [f"C{number}" for number in range(len(sizes))]
    fixed = (*when, cohort.model, method, method.init(cohort.model), cohort.updates, names)
    at_once = aggregate_round(*fixed, Gate(max_size=10**12))
    streamed = aggregate_stream(*fixed, dict(enumerate(sizes)), Gate(max_size=10**12))
    assert [one.weight for one in streamed.ledger] == pytest.approx(
        [one.weight for one in at_once.ledger], abs=1e-9
    )
    np.testing.assert_allclose(streamed.model.params, at_once.model.params, atol=1e-5)


def test_a_server_rule_that_wants_more_than_the_average_is_told_so():
    @dataclass(frozen=True)
    class Doubled(Server):
        def step(self, cohort, weights, state):
            return cohort.combine(2 * weights.values), state

    method, sent, state, came = a_round("fedavg")
    method, sizes = (
        replace(method, server=Doubled()),
        {update.client: update.size for update in came},
    )
    with pytest.raises(UserError, match="set stream = false"):
        aggregate_stream(1, 15, sent, method, state, iter(came), NAMES, sizes)


def test_memory_for_updates_does_not_grow_with_the_clients():
    rows = []
    for clients in (4, 12):
        setup = prepare(small(stream=True, **{"scenario.clients": clients, "scenario.power": 0.0}))
        from feddraw.engines.processes import Processes

        engine = Processes(setup.trainer, 2, setup.clients, in_turn=True)
        rows.append(len(engine._arrays["params"]))
        engine.close()
    assert rows == [3, 3]
