"""Rounds under secure sums: what the server gets is the round as it would have been, or one line
that says why not.
"""

from __future__ import annotations

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

from feddraw import catalog
from feddraw.cli.listing import listed_methods
from feddraw.core import (
    ONE_SUM,
    Cohort,
    Local,
    Method,
    Model,
    Server,
    State,
    Update,
    Vector,
    Weights,
)
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment, complete, make_method
from feddraw.methods.feddraw import DualReputationAnnealing, feddraw
from feddraw.methods.feddraw_variant import feddraw_variant
from feddraw.methods.scaffold import scaffold
from feddraw.methods.uniform import Uniform
from feddraw.secure.rounds.announcement import (
    FIRST_SUM,
    MOVES_SUM,
    Announcement,
    ClientAnnouncement,
    announced_fingerprint,
)
from feddraw.secure.rounds.client import SecureRoundClient
from feddraw.secure.rounds.in_process import Drops, InProcessSecureRounds
from feddraw.secure.rounds.round_weights import SECURE_PRECISION, announce_weights_under_policy
from feddraw.secure.rounds.server import check_client_announcement, secure_round_result
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import Session
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult, aggregate_round
from feddraw.server.streaming import aggregate_stream
from small import small
from tiny import NAMES, Altered, bench, cohort_of, copied, same, train

LONG = bool(os.environ.get("FEDDRAW_LONG"))
METHODS = {name: make_method(Experiment(method=name)) for name in catalog.names("methods")}
METHODS["scaffold by gradients"] = scaffold(option="I", space="gradient")
CAN = [name for name, method in METHODS.items() if method.secure.sums]
CANNOT = [name for name in METHODS if name not in CAN]
ROUNDS = 15


@cache
def a_round(name: str) -> tuple[Model, State, list[Update]]:
    """The model and state after a first round, and the updates of the second."""
    method, kept = METHODS[name], list[list[Update]]()
    engine = Altered(bench(method), lambda updates: kept.append([*map(copied, updates)]) or updates)
    first, _ = train(method, rounds=2, engine=engine)
    return first.next_model, first.state, kept[1]


def hidden_round(
    method: Method,
    sent: Model,
    state: State,
    updates: Sequence[Update],
    round: int = 1,
    rounds: type[InProcessSecureRounds] = InProcessSecureRounds,
    sizes: Sequence[int] = (),
    drops: Drops | None = None,
    **more: Any,
) -> RoundResult:
    labelled = [update.labelled for update in updates]
    secure = rounds(
        NAMES, sizes or [int(update.size) for update in updates], {"name": "any"}, labelled
    )
    secure.drops = lambda _: drops or {}
    return secure.round(round, ROUNDS, sent, method, state, updates, range(len(NAMES)), **more)


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
    plain = aggregate_round(round, ROUNDS, sent, method, state, updates, NAMES)
    hidden = hidden_round(method, sent, state, updates, round)
    times = (
        1.0 if type(method.server).step is Server.step else 4.0
    )  # a server with a step of its own rounds there too
    assert within(plain.next_model, hidden.next_model, sent, updates, times)
    np.testing.assert_allclose(
        hidden.next_model.buffers, plain.next_model.buffers, rtol=1e-6, atol=1e-7
    )
    assert np.array_equal(hidden.next_model.counters, plain.next_model.counters)
    if name != "qfedavg":  # there the loss's factor is in the sum, and hidden
        assert hidden.weights == pytest.approx(
            plain.weights, abs=1e-10 if method.secure.sums == 1 else 1e-8
        )


@pytest.mark.parametrize("name", CANNOT)
def test_a_method_that_cannot_is_refused_in_one_line_that_says_why(name: str) -> None:
    why = METHODS[name].secure.why_not
    assert why
    assert "\n" not in why
    assert "does not say" not in why
    assert "does not declare" not in why
    with pytest.raises(UserError, match="cannot run under secure sums"):
        complete(small(secure=True, method=name))
    sent, _, updates = a_round("fedavg")
    with pytest.raises(UserError, match="cannot run under secure sums"):
        SecureRoundClient(
            METHODS[name], _announced(updates, name="fedavg"), NAMES[0], sent, updates[0]
        )


def test_those_that_need_every_clients_parameters_are_among_the_refused() -> None:
    assert {"krum", "median", "fedadp", "fedawa"} <= set(CANNOT)
    assert {
        "feddraw",
        "fedavg",
        "uniform",
        "fedprox",
        "moon",
        "scaffold by gradients",
        "fednova",
    } <= set(CAN)
    two = [name for name in CAN if METHODS[name].secure.sums == 2]
    assert {"random_effects", "feddisco"} <= set(two)
    shown = {row["name"]: row["secure"] for row in listed_methods()}
    assert shown["feddraw"] == "one sum"
    assert shown["random_effects"] == "two sums"
    assert shown["krum"].startswith("no: distances between clients")


def test_a_variant_that_needs_the_mean_number_of_steps_gets_it_by_a_first_sum() -> None:
    method, (sent, state, updates) = feddraw_variant(signal="per_step"), a_round("feddraw")
    plain = aggregate_round(1, ROUNDS, sent, method, state, updates, NAMES)
    hidden = hidden_round(method, sent, state, updates)
    assert hidden.weights == pytest.approx(plain.weights, abs=1e-9)
    assert within(plain.model, hidden.model, sent, updates)


def test_no_method_that_can_sums_moves_twice() -> None:
    """Of clients of two sizes, the difference of two sums under other weights can be the move of a
    single one.
    """
    for method in (feddraw_variant(signal="move"), METHODS["move_effects"], METHODS["scaffold"]):
        assert "a single client's as their difference" in method.secure.why_not
    for name in (name for name in CAN if METHODS[name].secure.sums == 2):
        sent, _, updates = a_round(name)
        told = _announced(updates, name=name)
        model = replace(updates[0].model, params=updates[0].model.params + 1)
        one, other = (
            SecureRoundClient(METHODS[name], told, NAMES[0], sent, update).first(told)
            for update in (updates[0], replace(updates[0], model=model))
        )
        assert np.array_equal(one, other), name


@pytest.mark.parametrize(
    "name", ["feddraw+fednova", "feddraw+qfedavg", "random_effects+fedavgm", "feddisco+moon"]
)
def test_a_mixture_is_hidden_as_its_halves_are(name: str) -> None:
    METHODS.setdefault(name, make_method(Experiment(method=name)))
    method, (sent, state, updates) = METHODS[name], a_round(name)
    plain = aggregate_round(7, ROUNDS, sent, method, state, updates, NAMES)
    hidden = hidden_round(method, sent, state, updates, 7)
    assert within(plain.next_model, hidden.next_model, sent, updates, 4.0)


def test_a_mixture_whose_server_needs_the_clients_memory_is_refused() -> None:
    with pytest.raises(UserError, match="what each client remembers"):
        complete(small(secure=True, method="feddraw+feddyn"))


def test_a_server_rule_of_others_that_wants_single_models_is_refused_when_it_asks() -> None:
    @dataclass(frozen=True)
    class Silent(Server):
        def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
            return cohort.params[0], state

    class Curious(Silent):
        secure = ONE_SUM

    sent, state, updates = a_round("uniform")
    assert "Silent does not declare" in Method(Local(), Uniform(), Silent()).secure.why_not
    with pytest.raises(UserError, match="needs single clients' parameters"):
        hidden_round(Method(Local(), Uniform(), Curious()), sent, state, updates)


# ---------------------------------------------------------------------------------------- exactness


class PlainSum:
    """The words added without masks."""

    def __init__(self) -> None:
        self.words = np.zeros(0, np.uint64)

    def add(self, name: str, words: NDArray[np.uint64]) -> bool:
        self.words = words if not len(self.words) else self.words + words
        return True

    def total(self) -> NDArray[np.uint64]:
        return self.words


class Unmasked(InProcessSecureRounds):
    def new_sum(self, sum: str, announcement: Announcement) -> PlainSum:
        return PlainSum()


@pytest.mark.parametrize(
    "name", ["feddraw", "scaffold by gradients", "qfedavg", "random_effects", "feddraw_by_class"]
)
def test_masks_and_the_order_of_arrival_change_no_bit(name: str) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    bare = hidden_round(method, sent, state, updates, rounds=Unmasked)
    for order in (updates, updates[::-1]):
        hidden = hidden_round(
            method, sent, state, order, sizes=[int(update.size) for update in updates]
        )
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
    assert [entry.status for entry in found[0].ledger] == ["counted"] * 3


def test_a_killed_secure_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    by_gradients = {"method.option": "I", "method.space": "gradient"}
    experiment = small(secure=True, method="scaffold", rounds=2, **by_gradients)
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
    return METHODS[name], cohort.model, list(cohort.updates), int(rng.integers(0, ROUNDS)), drops


@pytest.mark.parametrize("seed", range(1000 if LONG else 60))
def test_random_rounds_with_silent_clients_give_the_plain_sum(seed: int) -> None:
    method, sent, updates, round, drops = random_round(seed)
    names = [f"C{client}" for client in range(len(updates))]
    sizes = {update.client: int(update.size) for update in updates}
    secure = InProcessSecureRounds(
        names, list(sizes.values()), {"name": "any"}, drops=lambda _: drops
    )
    state = method.init(sent)
    hidden = secure.round(round, ROUNDS, sent, method, state, updates, range(len(updates)))
    there = [update for update in updates if drops.get(names[update.client], (MOVES_SUM, 5))[1] > 2]
    plain = aggregate_stream(
        round, ROUNDS, sent, method, state, there, names, sizes
    )  # its prior is over those asked
    assert hidden.weights == pytest.approx(plain.weights, rel=1e-6)
    assert within(plain.next_model, hidden.next_model, sent, there)


# ----------------------------------------------------------------------------------- silent clients


@pytest.mark.parametrize(
    ("name", "sums"), [("feddraw", [MOVES_SUM]), ("random_effects", [FIRST_SUM, MOVES_SUM])]
)
@pytest.mark.parametrize("stage", range(5))
def test_a_client_that_falls_silent_changes_no_ratio_of_the_others(
    name: str, sums: list[str], stage: int
) -> None:
    method, (sent, state, updates) = METHODS[name], a_round(name)
    whole = hidden_round(method, sent, state, updates).weights
    for sum in sums:
        found = hidden_round(method, sent, state, updates, drops={"East": (sum, stage)})
        counts = sum == MOVES_SUM and stage > 2  # its values were there already
        assert set(found.weights) == (set(NAMES) if counts else set(NAMES) - {"East"})
        assert sum == FIRST_SUM or found.weights["North"] / found.weights["West"] == pytest.approx(
            whole["North"] / whole["West"], rel=1e-12
        )
        assert found.ledger[1].status == ("counted" if counts else "missing")


def test_where_too_many_fall_silent_the_model_stays_and_the_ledger_says_why() -> None:
    sent, state, updates = a_round("feddraw")
    drops = {"East": (MOVES_SUM, 2), "West": (MOVES_SUM, 3)}
    found = hidden_round(METHODS["feddraw"], sent, state, updates, drops=drops)
    assert found.next_model is sent
    assert not found.weights
    assert "signatures" in found.ledger[0].status or "values" in found.ledger[0].status


def test_where_every_client_is_refused_under_a_policy_the_model_stays() -> None:
    sent, state, updates = a_round("feddraw")
    broken = [
        replace(update, model=replace(update.model, params=update.model.params * np.nan))
        for update in updates
    ]
    found = hidden_round(METHODS["feddraw"], sent, state, broken, policy=Policy(cap=0.5))
    assert same(found.next_model, sent)
    assert not any(entry.counted for entry in found.ledger)


def test_a_client_keeps_a_move_that_is_not_finite_or_too_long_to_itself() -> None:
    sent, state, updates = a_round("feddraw")
    for value, why in (
        (np.nan, "not finite"),
        (np.float32(1e9), "too large for a secure sum of 4 clients"),
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
    updates: Sequence[Update], policy: Policy | None = None, name: str = "feddraw"
) -> Announcement:
    sent = announced_fingerprint(a_round(name)[0])
    secure = InProcessSecureRounds(NAMES, [int(update.size) for update in updates], {"name": "any"})
    return secure.announcement(sent, 1, ROUNDS, range(len(updates)), policy or Policy())


def parts_of(
    name: str, policy: Policy | None = None
) -> tuple[Announcement, dict[str, SecureRoundClient], Any]:
    """Each client's side of a round."""
    sent, state, updates = a_round(name)
    told = _announced(updates, policy, name)
    return (
        told,
        {
            n: SecureRoundClient(METHODS[name], told, n, sent, updates[i])
            for i, n in enumerate(NAMES)
        },
        (sent, state),
    )


def test_what_is_said_is_read_back_as_it_was() -> None:
    told, clients, _ = parts_of("feddraw")
    told = replace(
        told, told=(0.1, 1e-17), weights=dict.fromkeys(NAMES, (0.25, 1 / 3)), policy={"cap": 0.5}
    )
    again = Announcement.of(told.to_json())
    assert again == told
    assert again.digest() == told.digest()
    said = clients["East"].weigh(told)
    assert ClientAnnouncement.of(said.to_json()) == said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:-1], "cannot be read"),
        (lambda text: text.replace('"size":40', '"size":-40'), "not a positive number"),
        (lambda text: text.replace('"name":"East"', '"name":"North"'), "twice"),
        (lambda text: text.replace('"round":1', '"round":15'), "round 15 of 15"),
        (lambda text: text.replace('"version":1', '"version":2'), "another version"),
        (lambda text: text.replace('"told":[]', '"told":[NaN]'), "cannot be read"),
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(change: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Announcement.of(change(_announced(a_round("feddraw")[2]).to_json()))


def test_a_client_takes_no_part_under_another_size_than_its_own() -> None:
    sent, _, updates = a_round("feddraw")
    told = _announced([replace(updates[0], size=4000), *updates[1:]])
    with pytest.raises(UserError, match="size 40 where 4000 was announced"):
        SecureRoundClient(METHODS["feddraw"], told, "North", sent, updates[0])


def test_a_client_that_was_sent_another_model_than_the_others_takes_no_part() -> None:
    """Otherwise a server could give all others a model that does not move, and the sum would be the
    one client's.
    """
    sent, _, updates = a_round("feddraw")
    other = replace(sent, params=sent.params + np.float32(1e-3))
    with pytest.raises(UserError, match="sent another model"):
        SecureRoundClient(METHODS["feddraw"], _announced(updates), "North", other, updates[0])
    vectors = {"control": np.zeros(3, np.float32)}
    assert (
        len(
            {
                announced_fingerprint(sent),
                announced_fingerprint(other),
                announced_fingerprint(sent, vectors),
            }
        )
        == 3
    )


@pytest.mark.parametrize(
    "name", ["feddraw", "fedavg", "uniform", "random_effects", "feddisco", "feddraw_by_class"]
)
def test_a_client_cannot_claim_more_than_full_similarity_gives_at_its_size(name: str) -> None:
    told, clients, (sent, _) = parts_of(name)
    if METHODS[name].secure.sums == 2:
        told = replace(told, told=(0.5,))
    for place, client in enumerate(NAMES):
        said = clients[client].weigh(told)
        check_client_announcement(METHODS[name], told, sent.layout, client, said)
        _, most = METHODS[name].weighting.own_limits(told.facts(), place)
        greedy = replace(said, own=(1.01 * most, *said.own[1:]))
        with pytest.raises(UserError, match="its size allows"):
            check_client_announcement(METHODS[name], told, sent.layout, client, greedy)


def test_what_a_client_must_not_say_counts_for_nobody_once_it_is_in_the_sum() -> None:
    told, clients, (sent, state) = parts_of("fedavg")
    total, said = summed(told, clients)
    said["West"] = replace(said["West"], own=(1.0,))
    found = secure_round_result(METHODS["fedavg"], told, sent, state, total, said, NAMES)
    assert found.next_model is sent
    assert "West is in the sum with what it must not say" in found.ledger[0].status


def summed(
    told: Announcement, clients: Mapping[str, SecureRoundClient]
) -> tuple[NDArray[np.uint64], dict[str, ClientAnnouncement]]:
    said = {name: one.weigh(told) for name, one in clients.items()}
    words = [one.words(told) for one in clients.values()]
    return np.add.reduce(words, axis=0, dtype=np.uint64), said


def test_weights_in_the_sum_that_were_not_announced_count_for_nobody() -> None:
    told, clients, (sent, state) = parts_of("feddraw")
    total, said = summed(told, clients)
    said["West"] = replace(said["West"], own=(said["West"].own[0] + 2.0**-40,))
    found = secure_round_result(METHODS["feddraw"], told, sent, state, total, said, NAMES)
    assert found.next_model is sent
    assert all("not those that the clients announced" in entry.status for entry in found.ledger)


def test_a_sum_longer_than_all_announced_lengths_counts_for_nobody() -> None:
    told, clients, (sent, state) = parts_of("feddraw")
    total, said = summed(told, clients)
    said = {name: replace(one, distance=one.distance / 20) for name, one in said.items()}
    found = secure_round_result(METHODS["feddraw"], told, sent, state, total, said, NAMES)
    assert found.next_model is sent
    assert "announced lengths allow" in found.ledger[0].status


def test_the_ledger_explains_weights_as_far_as_they_do() -> None:
    sent, state, updates = a_round("feddraw")
    plain = aggregate_round(7, ROUNDS, sent, METHODS["feddraw"], state, updates, NAMES)
    hidden = hidden_round(METHODS["feddraw"], sent, state, updates, 7)
    for here, there in zip(hidden.ledger, plain.ledger, strict=True):
        for column in (
            "prior",
            "similarity",
            "gamma",
            "beta",
            "reputation",
            "weight",
            "influence",
            "size",
            "steps",
        ):
            assert getattr(here, column) == pytest.approx(getattr(there, column), rel=1e-6), column
    last = hidden_round(METHODS["feddraw"], sent, state, updates, 14)
    assert all(
        np.isnan(entry.similarity) for entry in last.ledger
    )  # equal weights say nothing about it


def test_only_listed_metrics_leave_a_client() -> None:
    sent, _, updates = a_round("feddraw")
    told = _announced(updates)
    talkative = replace(updates[0], metrics={"loss": 0.5, "patients": 7.0})
    assert SecureRoundClient(METHODS["feddraw"], told, "North", sent, talkative).weigh(
        told
    ).metrics == {"loss": 0.5}


# ------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize("name", ["feddraw", "fedavg", "feddisco", "feddraw_by_class"])
def test_a_policy_holds_under_secure_sums(name: str) -> None:
    policy, method, (sent, state, updates) = (
        Policy(cap_times=1.2, max_size=30),
        METHODS[name],
        a_round(name),
    )
    plain = aggregate_round(0, ROUNDS, sent, method, state, updates, NAMES, policy=policy)
    hidden = hidden_round(method, sent, state, updates, 0, policy=policy)
    assert max(hidden.weights.values()) <= 0.3 + 1e-9
    assert hidden.weights == pytest.approx(plain.weights, abs=1e-9)
    assert [entry.clause for entry in hidden.ledger] == [entry.clause for entry in plain.ledger]
    assert hidden.ledger[0].status.split(":")[0] == "counted"
    assert "policy.max_size" in hidden.ledger[0].status
    assert within(plain.model, hidden.model, sent, updates)


def test_a_client_masks_nothing_under_weights_that_the_policy_does_not_give() -> None:
    policy = Policy(cap_times=1.2)
    told, clients, (sent, _) = parts_of("fedavg", policy)
    proposed = {name: one.weigh(told) for name, one in clients.items()}
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
        method, told, sent.layout, {name: one.weigh(told) for name, one in clients.items()}
    )
    with pytest.raises(UserError, match="have all the weight"):
        right.check_summed(NAMES)
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
    plain = aggregate_round(1, ROUNDS, sent, method, state, part, NAMES, policy=policy)
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
    with pytest.raises(UserError, match=r"finding 1 is labelled by 2 client\(s\) only"):
        hidden_round(method, sent, state, part)
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
        SecureRoundClient(feddraw(beta_max=30.0), _announced(updates), "North", sent, updates[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate.norm": "refuse"}, "cannot leave out or clip"),
        ({"gate.clip": 2.0}, "cannot leave out or clip"),
        ({"engine": "flower"}, "give the strategy secure=True"),
        ({"stream": True, "method": "random_effects"}, "more than one exchange"),
        ({"stream": True, "policy.cap_times": 1.5}, "more than one exchange"),
    ],
)
def test_what_secure_sums_cannot_do_is_refused_before_training(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        complete(small(secure=True, **changes))


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
    session, seen = Session("run", 0, MOVES_SUM, 0, names), list[bytes]()
    collector = SecureSumServer(session, DIRECTORY)
    members = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in names}

    def heard(content: bytes) -> bytes:
        seen.append(content)
        return content

    for name in names:
        collector.take_advertised(name, heard(members[name].advertise()))
    advertised = collector.advertised
    for name in names:
        shares = members[name].share(advertised)
        collector.take_shares(name, {peer: heard(content) for peer, content in shares.items()})
    for name in names:
        masked = members[name].mask(collector.shares_for(name), words_of[name])
        collector.take_masked(name, np.frombuffer(heard(masked.tobytes()), np.uint64))
    for name in names:
        collector.take_signature(name, heard(members[name].sign(collector.survivors)))
    signatures = collector.signatures
    for name in names:
        collector.take_revealed(name, heard(members[name].reveal(collector.survivors, signatures)))
    collector.total()
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
        secure = InProcessSecureRounds(NAMES[:3], [100] * 3, {"name": "fedavg"})
        told = secure.announcement(
            announced_fingerprint(cohort.model), 1, ROUNDS, range(3), Policy()
        )
        sides = [
            SecureRoundClient(METHODS["fedavg"], told, NAMES[i], cohort.model, update)
            for i, update in enumerate(cohort.updates)
        ]
        said.append(
            str([replace(side.weigh(told), distance=round(side.distance, 5)) for side in sides])
        )
        worlds.append({side.name: side.words(told) for side in sides})
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
    told, clients, (sent, _) = parts_of("feddraw")
    names = tuple(clients)
    secure = InProcessSecureRounds(
        NAMES, [int(party.size) for party in told.parties], {"name": "any"}
    )
    local = secure.new_sum(MOVES_SUM, told)
    length = WordLayout.of(METHODS["feddraw"], sent.layout, told.facts()).params
    for name in names:
        bare = clients[name].words(told)
        masked = bare.copy()
        assert local.add(name, masked)
        away = (masked - bare)[:length].view(np.int64).astype(np.float64)
        assert (
            np.abs(away).min() > 2.0**40
        )  # more than one in fixed point, where moves are below a tenth
        assert (
            abs(np.corrcoef(bare[:length].view(np.int64), masked[:length].view(np.int64))[0, 1])
            < 0.4
        )


def test_similarity_is_that_of_the_layer_which_the_client_was_sent() -> None:
    """A client's weight is what the server would have given it from its parameters."""
    told, clients, (sent, _) = parts_of("feddraw")
    rule = DualReputationAnnealing()
    _, _, updates = a_round("feddraw")
    similarity = rule.similarity(Cohort(1, ROUNDS, sent, updates, 4))
    gamma, beta = rule.schedule(1, ROUNDS)
    prior = np.array([update.size for update in updates]) / sum(update.size for update in updates)
    scores = beta * (gamma * prior + (1 - gamma) * similarity)  # type: ignore[operator]
    own = [clients[name].weigh(told).own[0] for name in NAMES]
    np.testing.assert_allclose(own / np.sum(own), np.exp(scores) / np.exp(scores).sum(), rtol=1e-10)
