"""What every method must hold, run over every file in `methods/`: a new one is under test as soon
as it is there.

Each method is trained once (`tiny.trained`); the properties look at that run, or replay the updates
that its clients sent.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import get_args, get_type_hints

import numpy as np
import pytest

import tiny
from bad_updates import BAD, BAD_EXTRAS
from feddraw import catalog
from feddraw.core import ASKED, Job, Joint, Server, why_not_first, why_not_second
from feddraw.federation import client_seed
from feddraw.results.checkpoint import Checkpoint
from feddraw.results.run_folder import RunFolder
from feddraw.training.objective import Presence
from tiny import (
    METHODS,
    NAMES,
    SIZES,
    Altered,
    Canned,
    bench,
    copied,
    covering,
    initial,
    kinds_of_client,
    method_of,
    same,
    server_images,
    server_of,
    shards,
    together,
    train,
    trained,
    weighting_of,
)

every_method = pytest.mark.parametrize("name", METHODS)
federate = partial(tiny.federate, proxy=server_images())
JOINT = [name for name in METHODS if isinstance(method_of(name).aggregation, Joint)]
NOT_LINEAR = {*JOINT, "fedadagrad", "fedadam", "fedyogi"}
AVERAGING = [name for name in METHODS if type(server_of(method_of(name))) is Server]


def first_of_each(rule):
    """One method for each kind of rule: those that share one mix alike."""
    return list({repr(rule(method_of(name))): name for name in METHODS[::-1]}.values())


def second_round(name):
    """The cohort and the server's state of a round in which every memory and control is in use."""
    _, state = trained(name).before(1)
    return trained(name).cohort(1, rounds=15), state


def aggregate(name, cohort=None, state=None):
    there, before = second_round(name)
    return tiny.aggregate(method_of(name), cohort or there, before if state is None else state)


def leaves(tree):
    """Every array and number of a nested state."""
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    return [tree]


def equal(one, other):
    pairs = itertools.zip_longest(leaves(one), leaves(other))
    return all(np.array_equal(a, b) and type(a) is type(b) for a, b in pairs)


# ------------------------------------------------------------------------------------------ weights


@every_method
def test_weights_are_a_distribution(name):
    for round in (0, 1, 7, 14):
        values = aggregate(name, replace(second_round(name)[0], round=round)).weights.values
        assert values.shape == (4,)
        assert values.dtype == np.float64
        assert (values >= 0).all()
        assert values.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NOT_LINEAR])
def test_coefficients_explain_the_step(name):
    """The new parameters are the sent ones plus each move times its coefficient, but for what the
    server remembers.
    """
    cohort, _ = second_round(name)
    fresh = aggregate(name, state=method_of(name).init(cohort.sent))
    moves = cohort.moves.astype(np.float64)
    expected = cohort.sent.params + fresh.coefficients @ moves
    for span, coefficients in fresh.weights.segments:
        expected[span] = cohort.sent.params[span] + coefficients @ moves[:, span]
    assert fresh.model.params == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", AVERAGING)
def test_a_federation_of_one_is_the_client_itself(name):
    kept = []
    method = method_of(name)
    engine = Altered(
        bench(method, shards((24,))), lambda updates: kept.append(copied(updates[0])) or updates
    )
    for result in federate(initial(), method, engine, ["Alone"], rounds=3, seed=0):
        assert same(result.model, kept[-1].model)
        assert result.weights == {"Alone": 1.0}


# -------------------------------------------------------------------------------------------- order


class Relabelled:
    """The same clients under other numbers; each still trains with its own images and its
    own seed.
    """

    def __init__(self, engine, label):
        self.engine, self.label, self.memory = engine, label, {}

    def commit(self, clients):
        self.engine.commit([self.label[client] for client in clients])

    def train(self, jobs, *, in_turn=False):
        theirs = [
            replace(job, client=client, seed=client_seed(0, job.round, client))
            for job in jobs
            for client in [self.label[job.client]]
        ]
        for job, update in zip(jobs, list(self.engine.train(theirs)), strict=True):
            yield replace(update, client=job.client)


ORDER = [2, 0, 3, 1]


def replayed(name, change):
    """The server's four rounds again, on the updates that its clients sent, each round's changed:
    the results beside those of the first time.
    """
    run = trained(name)
    sent, state = run.before(0)
    for round, result in enumerate(run.results):
        again = together(run.method, sent, state, change(run.updates[round]), round=round, rounds=4)
        yield result, again
        sent, state = again.next_model, again.state


@every_method
def test_clients_under_other_numbers_give_the_same_model(name):
    """Moves are summed in float32 in the order of the clients, so the last place differs."""

    def relabelled(updates):
        return [replace(updates[old], client=new) for new, old in enumerate(ORDER)]

    for result, again in replayed(name, relabelled):
        assert again.model.params == pytest.approx(result.model.params, abs=1e-5)
        assert again.model.buffers == pytest.approx(result.model.buffers, rel=1e-5, abs=1e-6)
        expected = [list(result.weights.values())[old] for old in ORDER]
        assert list(again.weights.values()) == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("name", kinds_of_client())
def test_clients_that_train_under_other_numbers_give_the_same_model(name):
    method = method_of(name)
    crossed = train(method, rounds=2, engine=Relabelled(bench(method), label=ORDER))
    straight = train(method, rounds=2)
    for result, again in zip(straight, crossed, strict=True):
        assert again.model.params == pytest.approx(result.model.params, abs=1e-5)
        assert again.model.buffers == pytest.approx(result.model.buffers, rel=1e-5, abs=1e-6)


@every_method
def test_the_order_of_arrival_changes_no_bit(name):
    for result, late in replayed(name, lambda updates: [updates[i] for i in (3, 1, 0, 2)]):
        assert same(result.model, late.model)
        assert same(result.next_model, late.next_model)
        assert equal(result.state, late.state)
        assert [repr(entry) for entry in result.ledger] == [repr(entry) for entry in late.ledger]


@every_method
def test_a_clients_update_does_not_depend_on_who_trained_before_it(name):
    run = trained(name)
    sent, state = run.before(1)
    engine = run.engine(rounds=1)
    jobs = [
        Job(1, 4, client, client_seed(0, 1, client), sent, run.method.broadcast(state))
        for client in reversed(range(len(NAMES)))
    ]
    backwards = [copied(update) for update in engine.train(jobs)][::-1]
    engine.commit(range(len(NAMES)))
    for one, other in zip(run.updates[1], backwards, strict=True):
        assert same(one.model, other.model)
        assert equal(one.extra, other.extra)
    for client, memory in run.memory[1].items():
        assert equal(memory, engine.memory[client])


# ---------------------------------------------------------------------------------------- the model


@every_method
def test_types_and_names_are_kept(name):
    before, after = initial(), trained(name).results[-1].model
    assert after.layout == before.layout
    for vector in ("params", "buffers", "counters"):
        assert getattr(after, vector).dtype == getattr(before, vector).dtype
        assert getattr(after, vector).shape == getattr(before, vector).shape
    assert (after.params.dtype, after.buffers.dtype, after.counters.dtype) == (
        np.float32,
        np.float32,
        np.int64,
    )
    shapes = {key: (array.shape, array.dtype) for key, array in before.arrays().items()}
    assert {key: (array.shape, array.dtype) for key, array in after.arrays().items()} == shapes


@every_method
def test_counters_are_the_busiest_clients(name):
    steps = SIZES[0] // 8
    for round, result in enumerate(trained(name).results):
        assert result.model.counters.tolist() == [steps * (round + 1)] * 2


@pytest.mark.parametrize("name", first_of_each(lambda method: (method.local, server_of(method))))
def test_variances_stay_positive_over_eight_rounds(name):
    for result in train(method_of(name), rounds=8):
        arrays = result.model.arrays()
        variances = [value for key, value in arrays.items() if key.endswith("running_var")]
        assert len(variances) == 2
        assert all((value > 0).all() for value in variances)
        assert np.isfinite(result.next_model.params).all()


@every_method
def test_buffers_lie_between_the_clients_and_those_of_equal_clients_equal_theirs(name):
    cohort, _ = second_round(name)
    buffers = aggregate(name).model.buffers
    assert (buffers >= cohort.buffers.min(axis=0) - 1e-6).all()
    assert (buffers <= cohort.buffers.max(axis=0) + 1e-6).all()
    one = cohort.updates[0].model
    alike = [replace(u, model=replace(u.model, buffers=one.buffers)) for u in cohort.updates]
    assert np.array_equal(
        aggregate(name, replace(cohort, updates=alike)).model.buffers, one.buffers
    )


# -------------------------------------------------------------------------------------------- state


@every_method
def test_state_survives_a_file(name, tmp_path):
    run = trained(name)
    second = run.results[1]
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(Checkpoint(second.next_model, second.state, 2, run.memory[1]))
    read = folder.load_checkpoint(initial().layout)
    assert read.next_round == 2
    assert equal(read.state, second.state)
    assert read.memory.keys() == run.memory[1].keys()
    for client, memory in read.memory.items():
        assert equal(memory, run.memory[1][client])
    engine = bench(run.method)
    engine.memory = read.memory
    options = {"rounds": 4, "seed": 0, "start": 2, "state": read.state}
    third = next(federate(read.model, run.method, engine, NAMES, **options))
    assert same(third.model, run.results[2].model)
    assert equal(third.state, run.results[2].state)


@every_method
def test_aggregation_changes_nothing_in_place_and_shares_nothing_with_the_clients(name):
    cohort, state = second_round(name)
    before = deepcopy((cohort.sent, cohort.updates, state))
    found = aggregate(name)
    assert same(before[0], cohort.sent)
    for was, now in zip(before[1], cohort.updates, strict=True):
        assert same(was.model, now.model)
        assert equal(was.extra, now.extra)
    assert equal(before[2], state)
    ours = [found.model.params, found.model.buffers, found.model.counters, *leaves(found.state)]
    for update in cohort.updates:
        theirs = [
            update.model.params,
            update.model.buffers,
            update.model.counters,
            *update.extra.values(),
        ]
        for a, b in itertools.product(ours, theirs):
            assert not np.shares_memory(a, b)


@every_method
def test_training_changes_nothing_in_place(name):
    run = trained(name)
    sent, state = run.before(1)
    job = Job(1, 3, 0, 2, sent, run.method.broadcast(state))
    memory = deepcopy(run.memory[0].get(0, {}))
    before = deepcopy((job.model, dict(job.broadcast), memory))
    _, remembered = bench(run.method).trainer.work(job, memory)
    assert same(before[0], job.model)
    assert equal(before[1], job.broadcast)
    assert equal(before[2], memory)
    assert remembered.keys() == run.method.local.keeps.keys()
    for old, new in itertools.product(memory.values(), remembered.values()):
        assert not np.shares_memory(old, new)


@every_method
def test_what_a_rule_keeps_and_sends_has_the_length_that_it_declares(name):
    run = trained(name)
    extent = initial().layout.extent
    kept = {key: extent(long) for key, long in run.method.local.keeps.items()}
    sent = {key: extent(long) for key, long in run.method.sends.items()}
    for memory in run.memory[1].values():
        assert {key: len(vector) for key, vector in memory.items()} == kept
    for update in run.updates[1]:
        assert {key: len(vector) for key, vector in update.extra.items()} == sent


# ----------------------------------------------------------------------------------------- settings


def other_values(function):
    """For every hyperparameter, a value that is not its default."""
    hints = get_type_hints(function)
    for key, parameter in inspect.signature(function).parameters.items():
        choices = [choice for choice in get_args(hints[key]) if choice != parameter.default]
        if isinstance(parameter.default, bool):
            yield key, not parameter.default
        elif choices:
            yield key, choices[0]
        elif isinstance(parameter.default, str):
            yield key, f"{parameter.default}.other"
        else:
            yield (
                key,
                (
                    parameter.default * 2 + 1
                    if isinstance(parameter.default, int)
                    else parameter.default / 2 + 2**-7
                ),
            )


@every_method
def test_repr_shows_every_hyperparameter(name):
    function = catalog.find("methods", name)
    plain = repr(function())
    for key, value in other_values(function):
        shown = repr(function(**{key: value}))
        assert shown != plain, f"{key} is not in the repr"
        if not isinstance(value, str):
            assert repr(value) in shown


@every_method
def test_a_method_is_a_value(name):
    function = catalog.find("methods", name)
    assert function() == function()
    assert hash(function()) == hash(function())
    assert all(function(**{key: value}) != function() for key, value in other_values(function))


@every_method
def test_a_method_says_what_it_is(name):
    assert inspect.getdoc(catalog.find("methods", name))
    assert inspect.getmodule(catalog.find("methods", name)).__doc__


@cache
def answers():
    """What each client says to everything that may be asked."""
    engine = bench(method_of("fedavg"))
    engine.trainer.asks = tuple(ASKED)
    jobs = [Job(0, 2, client, client_seed(0, 0, client), initial()) for client in range(len(NAMES))]
    return {update.client: copied(update).extra for update in engine.train(jobs)}


FIRST = [name for name in METHODS if not why_not_first(method_of(name)) and name not in JOINT]
SECOND = [name for name in METHODS if not why_not_second(method_of(name))]
LOCAL_ONLY = [name for name in SECOND if type(server_of(method_of(name))) is Server]
PAIRS = covering(FIRST, SECOND)  # the halves of a mixture know nothing of each other


@cache
def answered(name):
    """The second round's updates of a method, with an answer to all that any weighting may ask."""
    cohort, _ = second_round(name)
    return replace(
        cohort, updates=[replace(u, extra=answers()[u.client] | u.extra) for u in cohort.updates]
    )


@pytest.mark.parametrize(("weighting", "training"), PAIRS)
def test_a_mixture_has_the_weighting_of_one_and_the_training_of_the_other(weighting, training):
    """A+B takes the weighting of A, the local and server rules of B."""
    mixture, first, second = map(method_of, (f"{weighting}+{training}", weighting, training))
    assert weighting_of(mixture) == weighting_of(first)
    assert (mixture.local, server_of(mixture)) == (second.local, server_of(second))
    cohort = answered(training)
    found = tiny.aggregate(mixture, cohort)
    assert np.isfinite(found.model.params).all()
    assert found.weights.values.sum() == pytest.approx(1)
    rule = weighting_of(first)
    alone, _ = rule.weigh(cohort, rule.init())
    assert np.array_equal(found.weights.values, alone.values)


@pytest.mark.parametrize(("joint", "training"), covering(JOINT, LOCAL_ONLY))
def test_a_joint_rule_goes_with_another_local_rule(joint, training):
    """It makes the model itself: what the other adds is in its clients' training."""
    mixture = method_of(f"{joint}+{training}")
    assert mixture.aggregation == method_of(joint).aggregation
    assert mixture.local == method_of(training).local
    cohort = answered(training)
    assert same(
        tiny.aggregate(mixture, cohort).model, tiny.aggregate(method_of(joint), cohort).model
    )


def two_rounds(method, cohort):
    """What is made of the same updates in the first two rounds: weights, parameters and what is
    sent beside them.
    """
    state, found = method.init(cohort.sent), []
    for round in range(2):
        result = tiny.aggregate(method, replace(cohort, round=round), state)
        sent = method.broadcast(result.state).values()
        found += [
            result.weights.values,
            *(p.values for p in result.weights.pieces),
            result.model.params,
            *sent,
        ]
        state = result.state
    return np.concatenate(found)


@pytest.mark.parametrize(("weighting", "training"), PAIRS)
def test_no_mixture_equals_one_of_its_halves(weighting, training):
    mixture, first, second = map(method_of, (f"{weighting}+{training}", weighting, training))
    cohort = answered(training)
    found = two_rounds(mixture, cohort)
    # FedAvg's weights are FedProx's own: the name says what it is
    if weighting_of(first) == weighting_of(second):
        assert mixture == second
    else:
        assert not np.array_equal(found, two_rounds(second, cohort))
    # trains the common model as FedAvg does: what it adds is a model of each client's own
    if training == "ditto":
        assert mixture.local.keeps == {"own": "model"}
    elif type(server_of(second)) is not Server:
        assert not np.array_equal(found, two_rounds(first, cohort))
    # what it adds is in the training: FedAvg's clients, under the same weights, came to other
    # models
    else:
        assert weighting_of(second) == weighting_of(method_of("fedavg"))
        assert not np.array_equal(cohort.params, second_round("fedavg")[0].params)


# ----------------------------------------------------------------------------------- broken updates


def one_round(name, updates):
    cohort, state = second_round(name)
    rounds = federate(
        cohort.sent,
        method_of(name),
        Canned(updates),
        NAMES,
        rounds=15,
        seed=0,
        start=1,
        state=state,
    )
    return next(rounds)


@every_method
def test_a_bad_update_is_refused_by_name_and_never_averaged(name):
    good = list(second_round(name)[0].updates)
    without = one_round(name, [good[0], good[1], good[3]])
    assert without.ledger[2].status == "missing"
    for how, (spoilt, reason) in BAD.items():
        result = one_round(name, [*good[:2], spoilt(good[2]), good[3]])
        assert [entry.status for entry in result.ledger if entry.client != "South"] == [
            "weighted"
        ] * 3, how
        (refused,) = [entry for entry in result.ledger if entry.client == "South"]
        assert refused.status.startswith(f"refused: {reason}"), how
        assert (refused.weight, refused.influence) == (0, 0)
        assert same(result.model, without.model), how
        assert equal(result.state, without.state), how


@every_method
def test_bad_vectors_beside_the_model_are_refused(name):
    good = list(second_round(name)[0].updates)
    for key in method_of(name).sends:
        ways = [
            (good[0].extra | {key: change(good[0].extra[key])}, reason)
            for change, reason in BAD_EXTRAS.values()
        ]
        left_out = {name: vector for name, vector in good[0].extra.items() if name != key}
        for extra, reason in [*ways, (left_out, "no {name} beside the model")]:
            entry = one_round(name, [replace(good[0], extra=extra), *good[1:]]).ledger[0]
            assert entry.status.startswith(f"refused: {reason.format(name=key)}")


@every_method
def test_when_all_updates_are_broken_the_model_and_the_state_stay(name):
    cohort, state = second_round(name)
    result = one_round(name, [BAD["NaN"][0](update) for update in cohort.updates])
    assert same(result.next_model, cohort.sent)
    assert equal(result.state, state)
    assert result.weights == {}
    assert math.isnan(result.loss)


@every_method
def test_a_client_whose_training_fails_remembers_what_it_knew_before(name):
    """Its loss is not a number in one round; in the next it starts again from its last good
    memory.
    """
    run = trained(name)
    sent, state = run.before(1)
    engine = run.engine(rounds=1)
    objective = engine.trainer.objective
    engine.trainer.objective = Presence(lambda logits, targets: (logits * math.nan).mean())
    options = {"rounds": 3, "seed": 0, "state": state}
    failed = next(federate(sent, run.method, engine, NAMES, start=1, **options))
    assert all(entry.status.startswith("refused") for entry in failed.ledger)
    for client, memory in run.memory[0].items():
        assert equal(engine.memory[client], memory)
    engine.trainer.objective = objective
    healed = next(federate(failed.next_model, run.method, engine, NAMES, start=2, **options))
    assert [entry.status for entry in healed.ledger] == ["weighted"] * 4
    assert np.isfinite(healed.next_model.params).all()


@every_method
def test_a_client_whose_statistics_fail_remembers_what_it_knew_before(name, monkeypatch):
    """Finite parameters beside a broken buffer: the server refuses the update, so the client must
    not count it.
    """
    run = trained(name)
    sent, state = run.before(1)
    engine = run.engine(rounds=1)
    read_into = engine.trainer.network.read_into

    def broken(model):
        read_into(model)
        model.buffers[0] = math.nan

    monkeypatch.setattr(engine.trainer.network, "read_into", broken)
    job = Job(1, 3, 1, client_seed(0, 1, 1), sent, run.method.broadcast(state))
    (update,) = engine.train([job])
    engine.commit([1])
    assert np.isfinite(update.model.params).all()
    assert equal(engine.memory[1], run.memory[0][1])


@every_method
def test_the_ledger_has_a_line_for_every_client_and_influences_that_sum_to_one(name):
    for result in trained(name).results:
        assert [entry.client for entry in result.ledger] == list(NAMES)
        assert [entry.size for entry in result.ledger] == list(SIZES)
        assert [entry.steps for entry in result.ledger] == [5, 3, 2, 1]
        assert sum(entry.influence for entry in result.ledger) == pytest.approx(1)
