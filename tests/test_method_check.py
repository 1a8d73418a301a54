"""`feddraw check-method` finds the mistakes that people make in rules of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from feddraw.core import Local, Method, Needs, SelfScored, Server, Sums, Weighted
from feddraw.methods.fedavg import fedavg
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
            return sums.average(), state

    peeking = MadeUpFederation(with_server(Peeking()), made.sent, made.updates, made.state)
    assert Streaming(SIZES)(peeking.round(), peeking.updates).weights


def test_a_part_without_a_column_is_told_with_the_names_that_there_are():
    found = wrong(Method(Weighted(OwnPart()), Local()))
    assert "no column for 'power'" in found["the same arguments give the same bits"]
    assert "similarity" in found["the same arguments give the same bits"]


def test_a_property_of_what_a_method_does_not_do_is_not_said_to_hold():
    applies = {check.name: check.applies for check in check_method(with_server(MedianThatSaysSo()))}
    assert applies["weights are shares"]
    assert not applies["streaming gives the same weights"]
    assert not applies["secure sums give the same weights"]
    assert not applies["the server needs sums only"]
    assert all(check.applies for check in check_method(fedavg()))
