"""Rounds under secure sums: what the server gets is the round as it would have been, or one line
that says why not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

import tiny
from feddraw import catalog
from feddraw.cli.listing import listed_methods
from feddraw.core import (
    AfterFirstSum,
    ClientView,
    Equal,
    Facts,
    Method,
    Model,
    Server,
    State,
    Sums,
    Update,
    Vector,
    Weighted,
    secure_sums,
    why_not_secure,
)
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment, make_method
from feddraw.methods.feddraw import feddraw
from feddraw.methods.feddraw_variant import feddraw_variant
from feddraw.methods.scaffold import scaffold
from feddraw.results.ledger_table import LEDGER_COLUMNS, LedgerTable, ledger_rows, read_ledger
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.driver import Opened
from feddraw.secure.rounds.in_process import Drops, Secure
from feddraw.secure.rounds.messages import Joined
from feddraw.secure.rounds.outcome import SecureOutcome, result_of_outcome
from feddraw.secure.rounds.round_weights import SECURE_PRECISION, announce_weights_under_policy
from feddraw.secure.rounds.terms import (
    FIRST_SUM,
    MOVES_SUM,
    Announcement,
    Party,
    Statement,
    Terms,
    terms_of_training,
)
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.rounds.update_part import UpdatePart
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import Session
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import Round, RoundResult
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_writing import write_whole
from small import small
from tiny import NAMES, cohort_of, same

LONG = bool(os.environ.get("FEDDRAW_LONG"))
METHODS = {name: make_method(Experiment(method=name)) for name in catalog.names("methods")}
CAN = [name for name, method in METHODS.items() if not why_not_secure(method)]
CANNOT = [name for name in METHODS if name not in CAN]
ROUNDS = 15


@cache
def a_round(name: str) -> tuple[Model, State, list[Update]]:
    """The model and state after a first round, and the updates of the second."""
    method, kept = METHODS[name], list[list[Update]]()

    def keep(updates: list[Update]) -> list[Update]:
        kept.append([tiny.copied(update) for update in updates])
        return updates

    engine = tiny.Altered(tiny.bench(method), keep)
    first, _ = tiny.train(method, rounds=2, engine=engine)
    return first.next_model, first.state, kept[1]


def plain_round(
    method: Method,
    sent: Model,
    state: State,
    updates: Sequence[Update],
    round: int = 1,
    policy: Policy | None = None,
) -> RoundResult:
    return tiny.together(method, sent, state, updates, round=round, rounds=ROUNDS, policy=policy)


def hidden_round(
    method: Method,
    sent: Model,
    state: State,
    updates: Sequence[Update],
    round: int = 1,
    drops: Drops | None = None,
    policy: Policy | None = None,
    clear_weights: bool = True,
) -> RoundResult:
    """A round under masks, with weights in clear as well, so that they can be compared."""
    collect = Secure(
        clients=NAMES,
        sizes=[int(update.size) for update in by_client(updates)],
        labelled=[update.labelled for update in by_client(updates)],
        policy=policy or Policy(),
        clear_weights=clear_weights,
        drops=lambda _: drops or {},
    )
    return collect(Round(round, ROUNDS, sent, method, state, NAMES, range(len(NAMES))), updates)


def by_client(updates: Sequence[Update]) -> list[Update]:
    return sorted(updates, key=lambda update: update.client)


def stated(sent: Vector, moves: NDArray[np.float64], clients: int) -> NDArray[np.float64]:
    """How far a secure round may be from the plain one, by parameter: the bound of
    docs/privacy.md.
    """
    longest = np.abs(moves).max(axis=0)
    return np.asarray(SECURE_PRECISION + 2.0**-24 * ((clients + 4) * longest + 2 * np.abs(sent)))


def within(
    plain: Model, hidden: Model, sent: Model, updates: Sequence[Update], times: float = 1.0
) -> bool:
    moves = np.stack([update.model.params.astype(np.float64) - sent.params for update in updates])
    away = np.abs(plain.params.astype(np.float64) - hidden.params)
    return bool((away <= times * stated(sent.params, moves, len(updates))).all())


# ------------------------------------------------------------------------------------- every method


@pytest.mark.parametrize("round", [0, 7, 14])
@pytest.mark.parametrize("name", CAN)
def test_every_method_that_can_gives_the_plain_round_within_the_stated_bound(
    name: str, round: int
) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    plain = plain_round(method, sent, state, updates, round)
    hidden = hidden_round(method, sent, state, updates, round)
    # A server with a step of its own rounds there too.
    times = 1.0 if type(rules_of_method.server_of(method)) is Server else 4.0
    assert within(plain.next_model, hidden.next_model, sent, updates, times)
    np.testing.assert_allclose(
        hidden.next_model.buffers, plain.next_model.buffers, rtol=1e-6, atol=1e-7
    )
    assert np.array_equal(hidden.next_model.counters, plain.next_model.counters)
    if rules_of_method.factored_server(method) is None:  # else each client's factor is hidden
        assert hidden.weights == pytest.approx(
            plain.weights, abs=1e-10 if secure_sums(method) == 1 else 1e-8
        )
    assert hidden.loss == pytest.approx(plain.loss, abs=1e-9)
    as_usual = hidden_round(method, sent, state, updates, round, clear_weights=False)
    assert same(as_usual.next_model, hidden.next_model)
    assert as_usual.loss == hidden.loss


@pytest.mark.parametrize("name", CANNOT)
def test_a_method_that_cannot_is_refused_in_one_line_that_says_why(name: str) -> None:
    why = why_not_secure(METHODS[name])
    assert why
    assert "\n" not in why
    with pytest.raises(UserError, match="cannot run under secure sums"):
        complete_settings(small(secure=True, method=name))
    sent, _, updates = a_round("fedavg")
    with pytest.raises(UserError, match="cannot run under secure sums"):
        UpdatePart(METHODS[name], _announced(updates), NAMES[0], sent, updates[0])


def test_those_that_need_every_clients_parameters_are_among_the_refused() -> None:
    assert {"krum", "median", "fedadp", "fedawa", "random_effects", "scaffold"} <= set(CANNOT)
    secure = {"feddraw", "fedavg", "uniform", "fedprox", "moon", "feddyn", "fednova"}
    assert secure <= set(CAN)
    two = [name for name in CAN if secure_sums(METHODS[name]) == 2]
    assert {"feddisco"} <= set(two)
    assert {"fedcav", "fedeba"} <= set(CANNOT)  # a weight would say the loss
    shown = {row["name"]: row["secure"] for row in listed_methods()}
    assert shown["feddraw"] == "one sum"
    assert shown["feddisco"] == "two sums"
    assert shown["krum"].startswith("no: ")


def test_a_variant_that_needs_the_mean_number_of_steps_gets_it_by_a_first_sum() -> None:
    method, (sent, state, updates) = feddraw_variant(signal="per_step"), a_round("feddraw")
    plain = plain_round(method, sent, state, updates)
    hidden = hidden_round(method, sent, state, updates)
    assert hidden.weights == pytest.approx(plain.weights, abs=1e-9)
    assert within(plain.model, hidden.model, sent, updates)


def test_no_method_that_can_sums_moves_or_gradients_twice() -> None:
    """Of clients of two sizes, the difference of two sums under other weights can be the move of a
    single one.
    """
    by_gradients = scaffold(option="I", space="gradient")
    refused = (METHODS["random_effects"], METHODS["scaffold"], by_gradients)
    for method in refused:
        assert "a single client's as their difference" in why_not_secure(method)
    for name in (name for name in CAN if secure_sums(METHODS[name]) == 2):
        rule = rules_of_method.weighting_of(METHODS[name])
        assert isinstance(rule, AfterFirstSum)
        assert rule.contributes == "numbers"
        sent, _, updates = a_round(name)
        told = _announced(updates, name=name)
        model = replace(updates[0].model, params=updates[0].model.params + 1)
        ones, others = (
            UpdatePart(METHODS[name], told, NAMES[0], sent, update).first(told)
            for update in (updates[0], replace(updates[0], model=model))
        )
        assert np.array_equal(ones, others), name
        assert len(ones) <= sent.layout.outputs + 2, name


@pytest.mark.parametrize(
    "name", ["feddraw+fednova", "feddraw+qfedavg", "feddisco+fedavgm", "feddisco+moon"]
)
def test_a_mixture_is_hidden_as_its_halves_are(name: str) -> None:
    METHODS.setdefault(name, make_method(Experiment(method=name)))
    method, (sent, state, updates) = METHODS[name], a_round(name)
    plain = plain_round(method, sent, state, updates, 7)
    hidden = hidden_round(method, sent, state, updates, 7)
    assert within(plain.next_model, hidden.next_model, sent, updates, 4.0)


def test_a_mixture_whose_server_needs_the_clients_memory_is_refused() -> None:
    with pytest.raises(UserError, match="what each client remembers"):
        complete_settings(small(secure=True, method="feddraw+feddyn"))


def test_a_server_rule_of_others_that_wants_single_models_is_refused_when_it_asks() -> None:
    @dataclass(frozen=True)
    class Curious(Server):
        def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
            return sums.moved_by(np.array([1.0, 0.0, 0.0, 0.0]), slice(0, 3)), state

    sent, state, updates = a_round("uniform")
    method = tiny.with_server(METHODS["uniform"], Curious())
    with pytest.raises(UserError, match="under other weights than were summed"):
        hidden_round(method, sent, state, updates)


def test_a_part_of_a_weight_that_the_ledger_does_not_know_ends_the_round() -> None:
    @dataclass(frozen=True)
    class Explained(Equal):
        def score(
            self, client: ClientView, facts: Facts, place: int
        ) -> tuple[float, dict[str, float]]:
            return 0.0, {"charm": 1.0}

    sent, state, updates = a_round("uniform")
    method = replace(METHODS["uniform"], aggregation=Weighted(Explained(), Server()))
    with pytest.raises(UserError, match="the ledger has no column for 'charm'"):
        tiny.together(method, sent, state, updates)
    with pytest.raises(UserError, match="the ledger has no column for 'charm'"):
        hidden_round(method, sent, state, updates)  # and leaves no client out for it


# ---------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("name", ["feddraw", "feddyn", "qfedavg", "feddisco", "feddraw_by_class"])
def test_masks_and_the_order_of_arrival_change_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    with monkeypatch.context() as unmasked:
        unmasked.setattr("feddraw.secure.sums.client.apply_masks", lambda masks, words: None)
        unmasked.setattr("feddraw.secure.sums.server.apply_masks", lambda masks, words: None)
        bare = hidden_round(method, sent, state, updates)
    for order in (updates, updates[::-1]):
        hidden = hidden_round(method, sent, state, order)
        assert same(bare.next_model, hidden.next_model)
        assert str(bare.ledger) == str(hidden.ledger)


def test_bits_are_the_same_for_any_number_of_workers_and_the_ledger_is_as_usual(
    tmp_path: Path,
) -> None:
    ways = (
        {"engine": "serial"},
        {"engine": "processes", "workers": 2},
        {"engine": "serial", "stream": True},
    )
    found = [
        run(small(secure=True, rounds=2, **way), tmp_path / str(n)).last
        for n, way in enumerate(ways)
    ]
    assert all(same(found[0].model, one.model) for one in found)
    ledgers = [(tmp_path / str(number) / "weights.csv").read_text() for number in range(3)]
    assert ledgers[0] == ledgers[1] == ledgers[2]
    assert [entry.status for entry in found[0].ledger] == ["weighted"] * 3


def test_a_killed_secure_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    experiment = small(secure=True, method="feddyn", rounds=2)
    whole = run(experiment, tmp_path / "whole").last
    rounds = iterate(experiment, tmp_path / "cut")
    next(rounds)
    rounds.close()
    assert same(whole.model, run(experiment, tmp_path / "cut", resume=True).last.model)


def random_round(seed: int) -> tuple[Method, Model, list[Update], int, dict[str, tuple[str, int]]]:
    """A round by chance, of a network that is one classifier: clients, sizes, moves, and who falls
    silent.
    """
    rng = np.random.default_rng(seed)
    clients, length = int(rng.integers(3, 8)), int(rng.integers(1, 40))
    sizes = rng.integers(1, 5000, clients).tolist()
    scale = 10.0 ** rng.uniform(-6, 2)
    sent = rng.normal(size=length).astype(np.float32)
    rows = sent + scale * rng.normal(size=(clients, length)).astype(np.float32)
    cohort = cohort_of(rows, sizes, sent=sent, steps=rng.integers(1, 50, clients).tolist())
    name = str(
        rng.choice(
            ["feddraw", "fedavg", "uniform", "size_then_uniform", "fedavgm", "inverse_steps"]
        )
    )
    silent = rng.permutation(clients)[: rng.integers(0, clients - (2 * clients // 3 + 1) + 1)]
    drops = {f"C{client}": (MOVES_SUM, int(rng.integers(0, 5))) for client in silent}
    return METHODS[name], cohort.sent, list(cohort.updates), int(rng.integers(0, ROUNDS)), drops


@pytest.mark.parametrize("seed", range(1000 if LONG else 60))
def test_random_rounds_with_silent_clients_give_the_plain_sum(seed: int) -> None:
    method, sent, updates, round, drops = random_round(seed)
    names = [f"C{client}" for client in range(len(updates))]
    sizes = {update.client: int(update.size) for update in updates}
    collect = Secure(names, list(sizes.values()), clear_weights=True, drops=lambda _: drops)
    state = method.init(sent)
    this_round = Round(round, ROUNDS, sent, method, state, names, range(len(updates)))
    hidden = collect(this_round, updates)
    silent_from = {
        update.client: drops.get(names[update.client], (MOVES_SUM, 5))[1] for update in updates
    }
    there = [update for update in updates if silent_from[update.client] > 2]
    # The prior is over those that said their size.
    known = {client: size for client, size in sizes.items() if silent_from[client] > 1}
    plain = tiny.streamed(
        method, sent, state, there, sizes=known, round=round, rounds=ROUNDS, clients=names
    )
    assert hidden.weights == pytest.approx(plain.weights, rel=1e-6)
    assert within(plain.next_model, hidden.next_model, sent, there)


# ----------------------------------------------------------------------------------- silent clients


@pytest.mark.parametrize(
    ("name", "sums"), [("feddraw", [MOVES_SUM]), ("feddisco", [FIRST_SUM, MOVES_SUM])]
)
@pytest.mark.parametrize("stage", range(5))
def test_a_client_that_falls_silent_leaves_a_round_of_the_others(
    name: str, sums: list[str], stage: int
) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    whole = hidden_round(method, sent, state, updates).weights
    for sum in sums:
        outcome = hidden_round(method, sent, state, updates, drops={"East": (sum, stage)})
        counts = sum == MOVES_SUM and stage > 2  # its values were there already
        assert set(outcome.weights) == (set(NAMES) if counts else set(NAMES) - {"East"})
        if stage > 1 and sum == MOVES_SUM:  # its size was known: the prior is over all
            ratio = outcome.weights["North"] / outcome.weights["West"]
            assert ratio == pytest.approx(whole["North"] / whole["West"], rel=1e-12)
        assert outcome.ledger[1].status == ("weighted" if counts else "missing")


def test_where_too_many_fall_silent_the_model_stays_and_the_ledger_says_why() -> None:
    sent, state, updates = a_round("feddraw")
    drops = {"East": (MOVES_SUM, 2), "West": (MOVES_SUM, 3)}
    found = hidden_round(METHODS["feddraw"], sent, state, updates, drops=drops)
    assert found.next_model is sent
    assert not found.weights
    assert found.ledger[0].status.startswith("unused: the secure sum 'train: moves' failed: ")
    assert found.refusals == {}


def test_where_every_client_is_refused_under_a_policy_the_model_stays() -> None:
    sent, state, updates = a_round("feddraw")
    broken = [
        replace(update, model=replace(update.model, params=update.model.params * np.nan))
        for update in updates
    ]
    found = hidden_round(METHODS["feddraw"], sent, state, broken, policy=Policy(cap=0.5))
    assert same(found.next_model, sent)
    assert not any(entry.weighted for entry in found.ledger)


def test_a_client_keeps_a_move_that_is_not_finite_or_too_long_to_itself() -> None:
    sent, state, updates = a_round("feddraw")
    for value, why in (
        (np.nan, "not finite"),
        (np.float32(1e9), "too large for a secure sum"),
    ):
        params = updates[1].model.params.copy()
        params[3] = value
        broken = [
            updates[0],
            replace(updates[1], model=replace(updates[1].model, params=params)),
            *updates[2:],
        ]
        found = hidden_round(METHODS["feddraw"], sent, state, broken)
        assert why in found.ledger[1].status
        assert len(found.weights) == 3


# ------------------------------------------------------------------------------------- what is said


def _announced(
    updates: Sequence[Update],
    policy: Policy | None = None,
    name: str = "feddraw",
    *,
    clear_weights: bool = True,
) -> Announcement:
    sums = rules_of_method.sums_of(METHODS[name])
    terms = terms_of_training(
        {"name": name}, sums, 1, ROUNDS, policy or Policy(), clear_weights=clear_weights
    )
    parties = [Party.of(NAMES[update.client], update.size, update.labelled) for update in updates]
    return Announcement(terms, tuple(parties))


def parts_of(
    name: str, policy: Policy | None = None, *, clear_weights: bool = True
) -> tuple[Announcement, dict[str, UpdatePart], tuple[Model, State]]:
    """Each client's side of a round."""
    sent, state, updates = a_round(name)
    told = _announced(updates, policy, name, clear_weights=clear_weights)
    parts = {}
    for client, update in zip(NAMES, updates, strict=True):
        parts[client] = UpdatePart(METHODS[name], told, client, sent, update)
    return told, parts, (sent, state)


def rules_for(name: str, state: State | None = None) -> TrainingRules:
    sent, before, _ = a_round(name)
    return TrainingRules(METHODS[name], Gate(), sent.layout, state or before)


def test_what_is_said_is_read_back_as_it_was() -> None:
    told, clients, _ = parts_of("feddraw")
    weights = dict.fromkeys(NAMES, (0.25, 1 / 3))
    terms = replace(told.terms, policy={"cap": 0.5})
    told = replace(told, terms=terms, concluded=(0.1, 1e-17), weights=weights)
    again = Announcement.of(told.to_json())
    assert again == told
    assert again.digest == told.digest
    said = clients["East"].state(told)
    assert Statement.of(said.to_json()) == said
    assert Terms.of(json.loads(terms.to_json())) == terms


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:-1], "cannot be read"),
        (lambda text: text.replace('"size":40', '"size":-40'), "not a positive number"),
        (lambda text: text.replace('"size":40', f'"size":{"9" * 400}'), "not a positive number"),
        (lambda text: text.replace('"name":"East"', '"name":"North"'), "twice"),
        (lambda text: text.replace('round\\":1,', 'round\\":15,'), "round 15 of 15"),
        (lambda text: text.replace('"concluded":[]', '"concluded":[NaN]'), "cannot be read"),
        (lambda text: text.replace('"concluded":[]', '"more":[]'), "cannot be read"),
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(change: Any, why: str) -> None:
    text = _announced(a_round("feddraw")[2]).to_json()
    assert change(text) != text
    with pytest.raises(UserError, match=why):
        Announcement.of(change(text))


@pytest.mark.parametrize("name", ["feddraw", "fedavg", "uniform", "feddisco", "feddraw_by_class"])
def test_a_client_cannot_claim_more_than_full_similarity_gives_at_its_size(name: str) -> None:
    told, clients, _ = parts_of(name)
    if secure_sums(METHODS[name]) == 2:
        told = replace(told, concluded=(0.5,))
    rules = rules_for(name)
    for place, client in enumerate(NAMES):
        said = clients[client].state(told)
        rules.check_statement(told, client, said)
        ranges = rules_of_method.ranges_of_client(
            METHODS[name], said.own_weights, told.facts, place, outputs=()
        )
        greedy = replace(said, own_weights=(1.01 * ranges[0][1], *said.own_weights[1:]))
        with pytest.raises(UserError, match="its size allows"):
            rules.check_statement(told, client, greedy)


@pytest.mark.parametrize("size", [1e-300, 1e-9, 9_999_999])
@pytest.mark.parametrize("name", ["feddraw", "fedavg", "feddisco", "size_then_uniform"])
def test_a_size_that_would_make_every_check_fail_is_refused_by_name(name: str, size: float) -> None:
    told = _announced(a_round(name)[2], name=name)
    parties = (replace(told.parties[0], size=size), *told.parties[1:])
    misfits = rules_for(name).misfits(replace(told, parties=parties))
    if name == "fedavg" or size < 1e-100:  # others' weights depend less on it
        assert set(misfits) == {"North"}
    assert rules_for(name).misfits(told) == {}


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), 10**400, True, "many", None])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(UserError, match="not a positive number"):
        rules_for("feddraw").party("North", Joined(size, None, {}))


def summed(
    told: Announcement, clients: Mapping[str, UpdatePart], statements: dict[str, Statement]
) -> Opened:
    words = np.add.reduce([part.words(told) for part in clients.values()], dtype=np.uint64)
    return Opened(words, tuple(sorted(clients)), told, statements)


def result_of(name: str, told: Announcement, opened: Opened) -> RoundResult:
    sent, state, _ = a_round(name)
    this_round = Round(1, ROUNDS, sent, METHODS[name], state, NAMES, range(len(NAMES)))
    numbers = {client: number for number, client in enumerate(NAMES)}
    outcome = SecureOutcome(told.terms, told.parties, opened, {})
    return result_of_outcome(this_round, rules_for(name), outcome, numbers)


def test_weights_in_the_sum_that_were_not_announced_count_for_nobody() -> None:
    told, clients, (sent, _) = parts_of("feddraw")
    said = {name: part.state(told) for name, part in clients.items()}
    assert len(result_of("feddraw", told, summed(told, clients, said)).weights) == 4
    said["West"] = replace(said["West"], own_weights=(said["West"].own_weights[0] + 2.0**-40,))
    outcome = result_of("feddraw", told, summed(told, clients, said))
    assert outcome.next_model is sent
    assert all("not those that the clients announced" in entry.status for entry in outcome.ledger)


def test_a_sum_longer_than_all_lengths_in_it_counts_for_nobody() -> None:
    told, clients, (sent, _) = parts_of("feddraw")
    said = {name: part.state(told) for name, part in clients.items()}
    for part in clients.values():
        part._length /= 20
    outcome = result_of("feddraw", told, summed(told, clients, said))
    assert outcome.next_model is sent
    assert "that were summed with it allow" in outcome.ledger[0].status


def test_the_ledger_explains_weights_as_far_as_they_do_and_says_what_is_hidden(
    tmp_path: Path,
) -> None:
    sent, state, updates = a_round("feddraw")
    plain = plain_round(METHODS["feddraw"], sent, state, updates, 7)
    hidden = hidden_round(METHODS["feddraw"], sent, state, updates, 7)
    shown = ("prior", "similarity", "gamma", "beta", "reputation", "weight", "size", "steps")
    for here, there in zip(hidden.ledger, plain.ledger, strict=True):
        for column in shown:
            assert getattr(here, column) == pytest.approx(getattr(there, column), rel=1e-6), column
    last = hidden_round(METHODS["feddraw"], sent, state, updates, 14)
    # Equal weights say nothing about it.
    assert all(np.isnan(entry.similarity) for entry in last.ledger)
    run(small(secure=True, rounds=1), tmp_path / "run")
    lines = (tmp_path / "run" / "weights.csv").read_text().splitlines()
    column = lines[0].split(",").index("influence")
    assert {line.split(",")[column] for line in lines[1:]} == {"hidden"}
    assert np.isnan(
        LedgerTable.of(read_ledger(tmp_path / "run" / "weights.csv"))["influence"]
    ).all()


def probed_at_crafted_models(clear_weights: bool) -> list[float]:
    """What North says of itself where the compared layer is almost zero, in one direction after
    the other; and the part of its move in this direction.
    """
    method = METHODS["feddraw"]
    found = []
    for place in range(6):
        sent = np.zeros(6, np.float32)
        sent[place] = 1e-5
        cohort = cohort_of(np.vstack([MOVE, OTHERS]) + sent, [20, 20, 30, 40], sent=sent)
        told = _announced(cohort.updates, clear_weights=clear_weights)
        part = UpdatePart(method, told, NAMES[0], cohort.sent, cohort.updates[0])
        own = np.array(part.state(told).own_weights)
        rule = rules_of_method.weighting_of(method)
        if len(own):
            found.append(float(np.asarray(rule.parts_of(own, told.facts, [0])["similarity"])[0]))
    return found


MOVE = np.random.default_rng(0).normal(size=6).astype(np.float32)
OTHERS = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)


def test_own_weights_at_crafted_models_show_the_direction_of_a_move_only_where_they_are_said() -> (
    None
):
    """In clear, `e` is one number for each model that is sent; hidden, it is nothing."""
    found = probed_at_crafted_models(clear_weights=True)
    cosine = np.dot(found, MOVE) / np.linalg.norm(found) / np.linalg.norm(MOVE)
    assert cosine > 0.999
    assert probed_at_crafted_models(clear_weights=False) == []


def test_weights_that_follow_from_what_is_announced_are_said_and_in_the_ledger() -> None:
    """By size and steps alone; FedDRAW's in its first and last round."""
    for name in ("fedavg", "uniform", "inverse_steps"):
        told, clients, _ = parts_of(name, clear_weights=False)
        assert all(len(part.state(told).own_weights) == 1 for part in clients.values()), name
    method, (sent, state, updates) = METHODS["feddraw"], a_round("feddraw")
    for round in (0, 14):
        plain = plain_round(method, sent, state, updates, round)
        hidden = hidden_round(method, sent, state, updates, round, clear_weights=False)
        assert hidden.weights == pytest.approx(plain.weights, abs=1e-10)


@pytest.mark.parametrize("name", ["feddraw", "feddisco", "feddraw_by_class"])
def test_where_weights_are_hidden_the_ledger_says_so(name: str, tmp_path: Path) -> None:
    sent, state, updates = a_round(name)
    result = hidden_round(METHODS[name], sent, state, updates, 7, clear_weights=False)
    assert set(result.weights) == set(NAMES)
    unknown = {"weight", "influence", "reputation"} | (
        {"similarity"} if name == "feddraw" else set()
    )
    for entry in result.ledger:
        assert entry.hidden >= unknown, entry
        assert all(math.isnan(getattr(entry, column)) for column in unknown), entry
        assert entry.prior == pytest.approx(entry.size / sum(update.size for update in updates))
    assert bool(result.pieces) == (name == "feddraw_by_class")
    assert all(entry.hidden == {"weight"} for entry in result.pieces)
    # Copies in other memory say it as well: what is hidden is in no object's identity.
    copies = [replace(entry, round=0, weight=float("nan")) for entry in result.ledger]
    write_whole(tmp_path / "weights.csv", csv_text([LEDGER_COLUMNS, *ledger_rows(copies)]).encode())
    read = read_ledger(tmp_path / "weights.csv")
    assert [entry.hidden for entry in read] == [entry.hidden for entry in result.ledger]
    assert LedgerTable.of(read).hidden("weight").all()
    assert not LedgerTable.of(read).hidden("prior").any()


@pytest.mark.parametrize("name", ["feddraw", "feddisco", "feddraw_by_class"])
def test_where_weights_are_hidden_who_labels_other_findings_than_most_is_left_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the weights of one row, summed without it, and those of the whole model show its own."""
    sent, state, updates = a_round(name)
    part = [*updates[:2], replace(updates[2], labelled=np.array([True, False])), updates[3]]
    method, odd = METHODS[name], NAMES[updates[2].client]
    result = hidden_round(method, sent, state, part, 7, clear_weights=False)
    assert set(result.weights) == set(NAMES) - {odd}
    statuses = {entry.client: entry.status for entry in result.ledger}
    assert "label the same findings" in statuses[odd]
    clear = hidden_round(method, sent, state, part, 7, clear_weights=True)
    assert set(clear.weights) == set(NAMES)
    alike = [replace(update, labelled=np.array([True, False])) for update in updates]
    result = hidden_round(method, sent, state, alike, 7, clear_weights=False)
    assert set(result.weights) == set(NAMES)
    monkeypatch.setattr(TrainingRules, "misfits", lambda rules, announcement: {})  # it lies
    result = hidden_round(method, sent, state, part, 7, clear_weights=False)
    assert not result.weights
    assert all("label the same findings" in entry.status for entry in result.ledger)


@pytest.mark.parametrize("factor", [1.5, 0.0, -1.0])
def test_hidden_weights_that_no_sizes_allow_count_for_nobody(factor: float) -> None:
    """Nobody says its weight; all together cannot be more than the method gives them."""
    told, clients, (sent, _) = parts_of("feddraw", clear_weights=False)
    said = {name: part.state(told) for name, part in clients.items()}
    assert all(statement.own_weights == () for statement in said.values())
    assert len(result_of("feddraw", told, summed(told, clients, said)).weights) == 4
    opened = summed(told, clients, said)
    words = opened.words.copy()
    words[-1] = np.int64(factor * 4 * 2.0**40).astype(np.uint64)
    outcome = result_of("feddraw", told, replace(opened, words=words))
    assert outcome.next_model is sent
    assert all("not such as the clients' sizes allow" in entry.status for entry in outcome.ledger)


@pytest.mark.parametrize("name", ["qfedavg", "fednova"])
@pytest.mark.parametrize("total", [0.0, -3.0])
def test_a_hidden_term_that_one_site_takes_to_zero_or_below_counts_for_nobody(
    name: str, total: float
) -> None:
    """The step is divided by the mean term: it would not be finite, or go backwards."""
    told, clients, (sent, _) = parts_of(name)
    said = {client: part.state(told) for client, part in clients.items()}
    opened = summed(told, clients, said)
    assert len(result_of(name, told, summed(told, clients, said)).weights) == 4
    span = WordLayout.of(METHODS[name], sent.layout, told.facts).spans()["term"]
    words = opened.words.copy()
    words[span] = np.array([int(total * 2**40)], np.int64).view(np.uint64)
    outcome = result_of(name, told, replace(opened, words=words))
    assert outcome.next_model is sent
    assert all("do not give a step" in entry.status for entry in outcome.ledger)


def test_a_client_that_says_a_hidden_weight_is_refused() -> None:
    told, clients, _ = parts_of("feddraw", clear_weights=False)
    with pytest.raises(UserError, match="stays hidden"):
        rules_for("feddraw").check_statement(told, "North", Statement((0.5,), 3))
    rules_for("feddraw").check_statement(told, "North", clients["North"].state(told))


@pytest.mark.parametrize("name", ["feddraw", "feddisco"])
def test_no_policy_limits_weights_that_are_hidden(name: str) -> None:
    """Neither the settings nor a client accept it: the policy's exchange says weights in clear."""
    with pytest.raises(UserError, match="cannot limit what is hidden"):
        prepare(small(secure=True, method=name, **{"policy.cap_times": 1.5}))
    with pytest.raises(UserError, match="cannot limit what is hidden"):
        parts_of(name, Policy(cap_times=1.5), clear_weights=False)
    parts_of(name, Policy(max_size=30), clear_weights=False)


def test_all_that_a_client_says_beside_its_words_is_its_weight_and_its_steps() -> None:
    told, clients, _ = parts_of("fednova")
    assert set(json.loads(clients["North"].state(told).to_json())) == {"own_weights", "steps"}


# ------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize("name", ["feddraw", "fedavg", "feddisco", "feddraw_by_class"])
def test_a_policy_holds_under_secure_sums(name: str) -> None:
    policy, method, (sent, state, updates) = (
        Policy(cap_times=1.2, max_size=30),
        METHODS[name],
        a_round(name),
    )
    plain = plain_round(method, sent, state, updates, 0, policy)
    hidden = hidden_round(method, sent, state, updates, 0, policy=policy)
    assert max(hidden.weights.values()) <= 0.3 + 1e-9
    assert hidden.weights == pytest.approx(plain.weights, abs=1e-9)
    assert [entry.clause for entry in hidden.ledger] == [entry.clause for entry in plain.ledger]
    assert hidden.ledger[0].status.split(":")[0] == "weighted"
    assert "policy.max_size" in hidden.ledger[0].status
    assert within(plain.model, hidden.model, sent, updates)


def test_a_client_masks_nothing_under_weights_that_the_policy_does_not_give() -> None:
    policy = Policy(cap_times=1.2)
    told, clients, (sent, _) = parts_of("fedavg", policy)
    proposed = {name: part.state(told) for name, part in clients.items()}
    right = announce_weights_under_policy(METHODS["fedavg"], told, sent.layout, proposed)
    clients["North"].words(right)
    wrong = replace(right, weights=right.weights | {"North": (0.9,), "West": (0.0,)})
    with pytest.raises(UserError, match="not those that the policy gives"):
        clients["North"].words(wrong)
    other = replace(right, proposed=right.proposed | {"North": (0.5,)})
    with pytest.raises(UserError, match="another weight than this client proposed"):
        clients["North"].words(other)


@pytest.mark.parametrize("fixed", ["North=1", "North=0.6, South=0.4", "North=0.9999999"])
def test_no_policy_gives_all_the_weight_to_one_or_two(fixed: str) -> None:
    """The sum would be theirs.

    The server refuses, and so does every client where the server does not.
    """
    method, policy, (sent, state, updates) = (
        METHODS["fedavg"],
        Policy(fixed=fixed),
        a_round("fedavg"),
    )
    hidden = hidden_round(method, sent, state, updates, policy=policy)
    assert all("have all the weight" in entry.status for entry in hidden.ledger)
    assert same(hidden.model, sent)
    told, clients, _ = parts_of("fedavg", policy)
    right = announce_weights_under_policy(
        method, told, sent.layout, {name: part.state(told) for name, part in clients.items()}
    )
    with pytest.raises(UserError, match="have all the weight"):
        right.check_summed(NAMES, members=len(NAMES))
    with pytest.raises(UserError, match="have all the weight"):
        Announcement.of(right.to_json())


# ----------------------------------------------------------------------------------- partial labels


@pytest.mark.parametrize("name", ["feddraw", "fedavg", "feddraw_by_class", "fedadam"])
@pytest.mark.parametrize("policy", [None, Policy(cap_times=1.2)])
def test_a_row_is_divided_among_those_that_label_its_finding(
    name: str, policy: Policy | None
) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    part = [*updates[:2], replace(updates[2], labelled=np.array([True, False])), updates[3]]
    plain = plain_round(method, sent, state, part, policy=policy)
    hidden = hidden_round(method, sent, state, part, policy=policy)
    assert within(plain.model, hidden.model, sent, part, 4.0)
    weights = {(entry.piece, entry.client): entry.weight for entry in plain.pieces}
    found = {(entry.piece, entry.client): entry.weight for entry in hidden.pieces}
    assert {key: found[key] for key in weights} == pytest.approx(weights, abs=1e-9)


def test_feddyn_with_partial_labels_is_refused_before_training() -> None:
    sent, state, updates = a_round("feddyn")
    part = [replace(updates[0], labelled=np.array([True, False])), *updates[1:]]
    found = hidden_round(METHODS["feddyn"], sent, state, part)
    assert "needs all clients' moves everywhere" in found.ledger[0].status


def test_a_row_that_nobody_labels_stays_as_it_was_sent() -> None:
    sent, state, updates = a_round("feddraw")
    part = [replace(update, labelled=np.array([True, False])) for update in updates]
    found = hidden_round(METHODS["feddraw"], sent, state, part)
    for row in sent.layout.rows_of(1):
        assert np.array_equal(found.model.params[row], sent.params[row])


def test_a_row_that_one_or_two_clients_label_is_not_summed() -> None:
    """Its sum would show them."""
    method, (sent, state, updates) = METHODS["feddraw"], a_round("feddraw")
    part = [replace(update, labelled=np.array([True, False])) for update in updates[:2]] + updates[
        2:
    ]
    early = hidden_round(method, sent, state, part)
    assert early.next_model is sent
    assert "finding 1 is labelled by 2 client(s) only" in early.ledger[0].status
    late = [replace(updates[0], labelled=np.array([True, False])), *updates[1:]]
    found = hidden_round(method, sent, state, late, drops={"West": (MOVES_SUM, 2)})
    assert found.next_model is sent
    assert "labelled by 2 client(s) only" in found.ledger[1].status


# ----------------------------------------------------------------------------------------- settings


def test_settings_whose_smallest_weight_loses_precision_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"in round 1 a client may weigh .* a secure sum is exact to 1\.5e-05"
    ):
        prepare(small(secure=True, **{"method.beta_max": 100.0}))
    sent, _, updates = a_round("feddraw")
    with pytest.raises(UserError, match="smaller beta_max"):
        UpdatePart(feddraw(beta_max=30.0), _announced(updates), "North", sent, updates[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate.norm": "refuse"}, "cannot leave out or clip"),
        ({"gate.clip": 2.0}, "cannot leave out or clip"),
        ({"engine": "flower"}, "give the strategy secure=True"),
        ({"stream": True, "method": "feddisco"}, "more than one exchange"),
        (
            {"stream": True, "policy.cap_times": 1.5, "method": "fedavg"},
            "more than one exchange",
        ),
    ],
)
def test_what_secure_sums_cannot_do_is_refused_before_training(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        complete_settings(small(secure=True, **changes))


def test_rounds_with_fewer_than_three_clients_are_refused_before_training() -> None:
    with pytest.raises(UserError, match="a secure round needs at least 3 clients, not 2"):
        prepare(
            small(
                secure=True, **{"participation.sampler": "uniform", "participation.fraction": 0.5}
            )
        )


# ----------------------------------------------------------------------------------- what is hidden


def transcript(words_of: Mapping[str, NDArray[np.uint64]]) -> NDArray[np.float64]:
    """All bits that the server gets in one sum."""
    names = tuple(words_of)
    session, seen = Session(bytes(32), MOVES_SUM, 0, names), list[bytes]()
    collector = SecureSumServer(session, DIRECTORY)
    members = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in names}

    def heard(content: bytes) -> bytes:
        seen.append(content)
        return content

    for name in names:
        collector.take_advertised(name, heard(members[name].advertise()))
    advertised = collector.close_keys()
    for name in names:
        shares = members[name].share(advertised)
        for content in (*shares.closed.values(), shares.signature):
            heard(content)
        collector.take_shares(name, shares)
    for name in names:
        masked = members[name].mask(collector.shares_for(name), words_of[name])
        collector.take_masked(name, np.frombuffer(heard(masked.tobytes()), np.uint64))
    for name in names:
        collector.take_signature(name, heard(members[name].sign(collector.close_values())))
    signatures = collector.close_signatures()
    for name in names:
        collector.take_revealed(
            name, heard(members[name].reveal(collector.close_values(), signatures))
        )
    collector.open_total()
    return np.unpackbits(np.frombuffer(b"".join(seen), np.uint8)).astype(np.float64)


KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES[:3]}
DIRECTORY = {name: key.public_key() for name, key in KEYS.items()}


def two_worlds() -> tuple[dict[str, NDArray[np.uint64]], dict[str, NDArray[np.uint64]], str]:
    """Three hospitals with the same three models, dealt in two ways: equal sums, and equal in all
    that is said.
    """
    moves = np.random.default_rng(3).normal(size=(3, 5))
    moves = (moves / np.linalg.norm(moves, axis=1, keepdims=True)).astype(np.float32)
    worlds, said = [], []
    for order in ([0, 1, 2], [1, 2, 0]):
        cohort = cohort_of(moves[order], [100, 100, 100], steps=[3, 3, 3])
        told = _announced(cohort.updates, name="fedavg")
        sides = {
            NAMES[i]: UpdatePart(METHODS["fedavg"], told, NAMES[i], cohort.sent, update)
            for i, update in enumerate(cohort.updates)
        }
        said.append(str([side.state(told) for side in sides.values()]))
        worlds.append({name: side.words(told) for name, side in sides.items()})
    assert said[0] == said[1]
    sums = [np.add.reduce(list(world.values())) for world in worlds]
    assert np.array_equal(sums[0], sums[1])
    return worlds[0], worlds[1], said[0]


def accuracy(features: NDArray[np.float64], world: NDArray[np.int64]) -> float:
    """Of a linear classifier, trained on one half and tested on the other."""
    half = len(world) // 2
    spread = features[:half].std(axis=0)
    scaled = (features - features[:half].mean(axis=0)) / np.where(spread > 0, spread, 1)
    target = 2.0 * world - 1
    # ridge regression in its dual form: there are more bits than transcripts
    kernel = scaled[:half] @ scaled[:half].T
    found = np.linalg.solve(kernel + 10.0 * np.eye(half), target[:half])
    return float(np.mean(np.sign(scaled[half:] @ (scaled[:half].T @ found)) == target[half:]))


def test_a_trained_classifier_cannot_tell_two_worlds_with_equal_sums_apart() -> None:
    first, second, _ = two_worlds()
    count = 4000 if LONG else 200
    world = np.random.default_rng(0).integers(0, 2, count)
    masked = np.stack([transcript(second if one else first) for one in world])
    bare = np.stack(
        [np.concatenate(list((second if one else first).values())) for one in world]
    ).view(np.uint8)
    assert (
        accuracy(np.unpackbits(bare, axis=1).astype(np.float64), world) == 1.0
    )  # it learns what there is to learn
    assert abs(accuracy(masked, world) - 0.5) < 4 * 0.5 / np.sqrt(count / 2)


def test_nothing_that_a_server_gets_is_close_to_a_clients_move() -> None:
    """Each client's masked words, read as numbers, are as far from its move as random words are."""
    sent, state, updates = a_round("feddraw")
    told, clients, _ = parts_of("feddraw")
    length = WordLayout.of(METHODS["feddraw"], sent.layout, told.facts).params
    arrived: dict[str, NDArray[np.uint64]] = {}

    class Curious(SecureSumServer):
        def take_masked(self, name: str, words: Any, seal: bytes | None = None) -> None:
            arrived[name] = words.copy()
            super().take_masked(name, words, seal)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feddraw.secure.rounds.driver.SecureSumServer", Curious)
        assert len(hidden_round(METHODS["feddraw"], sent, state, updates).weights) == 4
    for name, masked in arrived.items():
        bare = clients[name].words(told)
        away = (masked - bare)[:length].view(np.int64).astype(np.float64)
        # More than one in fixed point, where moves are below a tenth.
        assert np.abs(away).min() > 2.0**40
        pair = bare[:length].view(np.int64), masked[:length].view(np.int64)
        assert abs(np.corrcoef(*pair)[0, 1]) < 0.4


def test_a_client_weighs_itself_as_the_server_would_from_its_parameters() -> None:
    told, clients, (sent, state) = parts_of("feddraw")
    own = np.array([clients[name].state(told).own_weights[0] for name in NAMES])
    plain = plain_round(METHODS["feddraw"], sent, state, a_round("feddraw")[2])
    weights = np.array([plain.weights[name] for name in NAMES])
    np.testing.assert_allclose(own / own.sum(), weights, rtol=1e-10)
