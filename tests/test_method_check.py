"""`feddraw check-method` finds the mistakes that people make in rules of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from feddraw.core import (
    Factored,
    Local,
    Method,
    Needs,
    SelfScored,
    Server,
    Sums,
    Weighted,
    Weighting,
    Weights,
    normalize,
    why_not_streaming,
)
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment, make_method
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.server.collectors import Streaming
from feddraw.server.method_check import SIZES, MadeUpFederation, check_method


@dataclass(frozen=True)
class MedianOfModels(Server):
    """Reads the clients' models, and does not say so."""

    def step(self, sums, state):
        return np.median(sums.cohort.params, axis=0), state


@dataclass(frozen=True)
class MedianThatSaysSo(MedianOfModels):
    @property
    def needs(self):
        return Needs(layers="all")


@dataclass(frozen=True)
class OwnPart(SelfScored):
    """Explains its weight by a part that the ledger does not have."""

    def score(self, client, facts, place):
        size = float(facts.sizes[place])
        return 0.5 * np.log(size), {"power": 0.5}

    def score_range(self, facts, place):
        score = 0.5 * np.log(float(facts.sizes[place]))
        return score, score


@dataclass(frozen=True)
class FewSteps(SelfScored):
    """Computes with steps, and does not ask for them."""

    def score(self, client, facts, place):
        return -client.update.known_steps / 1000, {}

    def score_range(self, facts, place):
        return -np.inf, 0.0


@dataclass(frozen=True)
class FewStepsAskedFor(FewSteps):
    needs = Needs(steps=True)


class WithoutRange(SelfScored):
    def score(self, client, facts, place):
        return 0.0, {}


def without_range() -> Method:
    """A weighting that cannot be checked by other sites."""
    return Method(Weighted(WithoutRange()))


def wrong(method):
    return {check.name: check.wrong for check in check_method(method) if check.wrong}


def with_server(server):
    return Method(Weighted(fedavg().aggregation.weighting, server), Local())


def test_a_server_that_reads_models_without_saying_so_is_found():
    found = wrong(with_server(MedianOfModels()))
    assert "each client's own models" in found["the server needs sums only"]
    assert "Needs(layers='all')" in found["streaming gives the same weights"]


def test_a_server_that_says_so_is_refused_for_streams_and_nothing_is_wrong_with_it():
    assert wrong(with_server(MedianThatSaysSo())) == {}


def test_a_stream_never_hands_out_the_sent_model_as_a_clients():
    made = MadeUpFederation.of(fedavg())

    class Peeking(Server):
        def step(self, sums: Sums, state):
            with pytest.raises(Exception, match="only their sums"):
                sums.cohort.moves  # noqa: B018
            with pytest.raises(Exception, match="only their sums"):
                sums.cohort.buffers  # noqa: B018
            return sums.total, state

    peeking = MadeUpFederation(with_server(Peeking()), made.sent, made.updates, made.state)
    assert Streaming(SIZES)(peeking.round(), peeking.updates).weights


def test_a_part_without_a_column_is_told_with_the_names_that_there_are():
    found = wrong(Method(Weighted(OwnPart()), Local()))
    assert "no column for 'power'" in found["the same arguments give the same bits"]
    assert "similarity" in found["the same arguments give the same bits"]


def test_a_rule_that_computes_with_steps_must_ask_for_them():
    found = wrong(Method(Weighted(FewSteps())))
    assert "Needs(steps=True)" in found["steps are used only where asked for"]
    assert wrong(Method(Weighted(FewStepsAskedFor()))) == {}


@dataclass(frozen=True)
class NoNumbers(Weighting):
    def weigh(self, cohort, state):
        return Weights(np.full(len(cohort.sizes), np.nan)), state


def test_a_rule_that_gives_no_numbers_with_steps_and_without_is_not_told_of_steps():
    wrong = {row.name: row.wrong for row in check_method(Method(Weighted(NoNumbers())))}
    assert "no numbers" in wrong["weights are shares"]
    assert "steps" not in wrong["steps are used only where asked for"]


def test_a_rule_that_lacks_a_function_is_told_which_in_one_line():
    with pytest.raises(UserError, match=r"'without_range' is not complete: .*score_range"):
        make_method(Experiment(method="test_method_check:without_range"))


@dataclass(frozen=True, eq=False)
class PlainArray(Weighting):
    """Forgets that weights are more than an array."""

    returned: object

    def weigh(self, cohort, state):
        return self.returned


def test_a_rule_that_returns_a_plain_array_is_told_once_what_to_return():
    for returned in (np.ones(len(SIZES)), (np.ones(len(SIZES)), {})):
        with pytest.raises(UserError, match=r"PlainArray must return \(Weights, state\)"):
            check_method(Method(Weighted(PlainArray(returned))))


def test_a_rule_with_a_weight_too_few_is_told_once_how_many_clients_there_are():
    too_few = PlainArray((normalize(np.ones(len(SIZES) - 1)), {}))
    with pytest.raises(UserError, match=rf"one weight for each of the {len(SIZES)} clients"):
        check_method(Method(Weighted(too_few)))


def own_method_with_an_argument(share):
    return share


def own_method_that_returns_a_number():
    return 3


def test_an_own_function_that_cannot_be_used_is_told_in_words():
    with pytest.raises(UserError, match="cannot be called: missing a required argument: 'share'"):
        make_method(Experiment(method="test_method_check:own_method_with_an_argument"))
    with pytest.raises(UserError, match=r"not an int$"):
        make_method(Experiment(method="test_method_check:own_method_that_returns_a_number"))


def test_a_factored_server_without_its_functions_cannot_be_made():
    class Empty(Factored):
        pass

    with pytest.raises(TypeError, match="factor"):
        Empty()


def test_a_server_that_needs_all_layers_is_heard_beside_a_rule_that_needs_one():
    compares_classifiers = feddraw().aggregation.weighting
    method = Method(Weighted(compares_classifiers, MedianThatSaysSo()))
    assert method.needs.layers == "all"
    assert why_not_streaming(method)


def test_a_property_of_what_a_method_does_not_do_is_not_said_to_hold():
    applies = {check.name: check.applies for check in check_method(with_server(MedianThatSaysSo()))}
    assert applies["weights are shares"]
    assert not applies["streaming gives the same weights"]
    assert not applies["self-weighed clients get the same weights"]
    assert not applies["the server needs sums only"]
    assert all(check.applies for check in check_method(fedavg()))
