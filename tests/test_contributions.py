"""Rules that weigh clients by what they contribute: numbers from the authors' code, and second
implementations over ten rounds in which clients come, go and lose updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from feddraw import catalog
from feddraw.core import Cohort, Entry, Job, Layout, Memory, Model, Update, addressed, own_row
from feddraw.core import why_not_first as first
from feddraw.core import why_not_second as second
from feddraw.errors import UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.federation import client_seed
from feddraw.methods.fedce import COEFFICIENTS, fedce, model_without
from feddraw.methods.feddg_ga import feddg_ga
from feddraw.methods.fedpidavg import fedpidavg
from feddraw.methods.shapfed import shapfed
from quadratics import Lossy
from tiny import NAMES, bench, build, examples, federate, initial, method_of, shards, weighting_of

SIZES = (40, 24, 16, 9, 31)
# Who counts in each of ten rounds: 4 joins late, 1 is alone once, and nobody is always there.
COUNTED = [
    (0, 1, 2),
    (0, 1, 2, 3),
    (0, 2),
    (1,),
    (0, 1, 2, 3),
    (0, 2, 3, 4),
    (1, 4),
    (0, 1, 2, 3, 4),
    (2, 3, 4),
    (0, 1, 2, 3, 4),
]
OUTPUTS = 2
LAYOUT = Layout(
    (
        Entry("body.weight", "param", (3,), 0),
        Entry("classifier.weight", "param", (OUTPUTS, 2), 3),
        Entry("classifier.bias", "param", (OUTPUTS,), 7),
    ),
    "classifier",
)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a server saw in one round, by client."""

    round: int
    clients: tuple[int, ...]
    sizes: np.ndarray
    moves: np.ndarray  # (clients, parameters)
    loss: np.ndarray  # of the model that was sent
    trained: np.ndarray  # of the client's own model


def history(seed: int) -> Iterator[Seen]:
    rng = np.random.default_rng(seed)
    for round, clients in enumerate(COUNTED):
        count = len(clients)
        yield Seen(
            round,
            clients,
            np.array([SIZES[client] for client in clients], float),
            rng.normal(size=(count, 9)).astype(np.float32) + np.float32(0.4),
            rng.uniform(0.2, 0.9, count).astype(np.float32),
            rng.uniform(0.1, 0.8, count).astype(np.float32),
        )


def cohort(seen: Seen, rounds: int = len(COUNTED), population: int = len(SIZES)) -> Cohort:
    empty = np.zeros(0, np.float32), np.zeros(0, np.int64)
    sent = Model(np.zeros(9, np.float32), *empty, LAYOUT)
    updates = [
        Update(
            client,
            replace(sent, params=seen.moves[place].astype(np.float32)),
            seen.sizes[place],
            1,
            {"loss": 0.0},
            {"loss": seen.loss[place : place + 1], "trained loss": seen.trained[place : place + 1]},
        )
        for place, client in enumerate(seen.clients)
    ]
    return Cohort(seen.round, rounds, sent, updates, population)


def everybody(
    round: int,
    *,
    moves: object = None,
    loss: Sequence[float] = (0, 0, 0),
    trained: Sequence[float] = (0, 0, 0),
    sizes: Sequence[float] = (1, 1, 1),
) -> Seen:
    """A round in which three clients count."""
    rows = np.zeros((3, 9)) if moves is None else np.asarray(moves, float)
    asked = np.array(loss, np.float32), np.array(trained, np.float32)
    return Seen(round, (0, 1, 2), np.array(sizes, float), rows, *asked)


# -------------------------------------------------------------------------------------- FedPIDAvg


def test_fedpidavg_by_hand() -> None:
    """Sizes 1 : 1 : 2. Losses fall by .2, .3 and not at all; their sums are .8, 1.3 and 1.5."""
    rule = weighting_of(fedpidavg())
    first_round = everybody(0, trained=(0.5, 0.8, 0.7), sizes=(1, 1, 2))
    weights, state = rule.weigh(cohort(first_round), rule.init())
    past = np.array([0.5, 0.8, 0.7]) / 2
    size = np.array([0.25, 0.25, 0.5])
    assert weights.values == pytest.approx(0.9 * size + 0.1 * past)
    second_round = everybody(1, trained=(0.3, 0.5, 0.8), sizes=(1, 1, 2))
    weights, _ = rule.weigh(cohort(second_round), state)
    expected = 0.45 * size + 0.45 * np.array([0.4, 0.6, 0]) + 0.1 * np.array([0.8, 1.3, 1.5]) / 3.6
    assert weights.values == pytest.approx(expected, abs=1e-6)


def test_without_the_past_and_with_ratios_it_is_fedcostwavg() -> None:
    """Losses fall to a half, to a quarter, and not at all: 2 : 4 : 1."""
    rule = weighting_of(fedpidavg(drop=0.5, past=0.0, change="ratio"))
    state = rule.init()
    for round, losses in enumerate([(0.8, 0.8, 0.8), (0.4, 0.2, 0.8)]):
        weights, state = rule.weigh(cohort(everybody(round, trained=losses)), state)
    assert weights.values == pytest.approx(0.5 / 3 + 0.5 * np.array([2, 4, 1]) / 7, abs=1e-6)


def fedpidavg_again(rounds: Iterator[Seen], ratio: bool) -> Iterator[list[float]]:
    losses: dict[int, list[float]] = {}
    for seen in rounds:
        falls = {}
        for client, loss in zip(seen.clients, seen.trained.tolist(), strict=True):
            if client in losses:
                before = losses[client][-1]
                falls[client] = before / loss if ratio else max(0.0, before - loss)
            losses.setdefault(client, []).append(loss)
        typical = sum(falls.values()) / len(falls) if falls else 0.0
        fall = [falls.get(client, typical) for client in seen.clients]
        high = [sum(losses[c][-6:]) / len(losses[c][-6:]) for c in seen.clients]
        weights = []
        for place, size in enumerate(seen.sizes):
            share = size / sum(seen.sizes)
            by_fall = fall[place] / sum(fall) if sum(fall) else share
            weights.append(0.45 * share + 0.45 * by_fall + 0.1 * high[place] / sum(high))
        yield weights


@pytest.mark.parametrize("change", ["difference", "ratio"])
def test_fedpidavg_is_the_same_written_twice(change: str) -> None:
    rule = weighting_of(fedpidavg(change=change))
    for seed in range(3):
        state = rule.init()
        again = fedpidavg_again(history(seed), change == "ratio")
        for seen, expected in zip(history(seed), again, strict=True):
            weights, state = rule.weigh(cohort(seen), state)
            assert weights.values == pytest.approx(expected, abs=1e-9)


def test_fedpidavg_remembers_six_losses() -> None:
    rule = weighting_of(fedpidavg(drop=0.0, past=1.0))
    state = rule.init()
    for round in range(9):
        old = 100.0 if round < 3 else 1.0
        weights, state = rule.weigh(cohort(everybody(round, trained=(old, 1, 1))), state)
    assert weights.values == pytest.approx([1 / 3] * 3)


def test_shares_of_more_than_one_are_refused() -> None:
    with pytest.raises(UserError, match="the shares of both are at most 1"):
        fedpidavg(drop=0.8, past=0.4)


# ---------------------------------------------------------------------------------------- ShapFed

# By round, client and class: the moves of two weights and a bias. The contributions were computed
# by compute_cssv_cifar of the authors' main_cifar10.py (5771a37).
SHAPFED_MOVES = [
    [[[4, 1, 2], [4, 1, 2]], [[3, -2, -4], [-2, -2, 3]], [[4, -4, 0], [3, -3, 3]]],
    [[[-3, 0, 3], [-2, -1, -2]], [[2, -2, 4], [0, 0, 0]], [[1, 0, 0], [4, 3, 3]]],
    [[[2, 1, -1], [4, 0, -3]], [[3, -3, 3], [1, -3, -4]], [[0, -4, -3], [0, 4, 0]]],
]
SHAPFED_WEIGHTS = [
    [0.2912691534, 0.2887921631, 0.4199386537],
    [0.2726095617, 0.2991762161, 0.4282141924],
    [0.2764343619, 0.3031647205, 0.4204009175],
]


def test_shapfed_gives_the_weights_of_the_authors_code() -> None:
    rule = weighting_of(shapfed())
    state = rule.init()
    for round, expected in enumerate(SHAPFED_WEIGHTS):
        by_class = np.array(SHAPFED_MOVES[round], float)
        body = np.full((3, 3), 7.0)  # no part of the classifier
        rows = [body, by_class[:, :, :2].reshape(3, 4), by_class[:, :, 2]]
        seen = everybody(round, moves=np.concatenate(rows, axis=1))
        weights, state = rule.weigh(cohort(seen), state)
        assert weights.values == pytest.approx(expected, abs=1e-6)


def shapfed_again(rounds: Iterator[Seen], momentum: float) -> Iterator[list[float]]:
    contribution: dict[int, float] = {}

    def shares(clients: Sequence[int]) -> list[float]:
        known = [max(0.0, contribution[c]) for c in clients if c in contribution]
        if sum(known) == 0:
            return [1 / len(clients)] * len(clients)
        usual = sum(known) / len(known)
        amounts = [max(0.0, contribution.get(client, usual)) for client in clients]
        return [amount / sum(amounts) for amount in amounts]

    for seen in rounds:
        before = shares(seen.clients)
        for place, client in enumerate(seen.clients):
            cosines = []
            for output in range(OUTPUTS):
                row = seen.moves[:, [3 + 2 * output, 4 + 2 * output, 7 + output]].astype(float)
                common = sum(share * own for share, own in zip(before, row, strict=True))
                lengths = np.linalg.norm(common) * np.linalg.norm(row[place])
                cosines.append(common @ row[place] / lengths)
            now = float(np.mean(cosines))
            was = contribution.get(client)
            contribution[client] = now if was is None else momentum * was + (1 - momentum) * now
        yield shares(seen.clients)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_shapfed_is_the_same_written_twice(momentum: float) -> None:
    rule = weighting_of(shapfed(momentum))
    for seed in range(3):
        state = rule.init()
        for seen, expected in zip(
            history(seed), shapfed_again(history(seed), momentum), strict=True
        ):
            weights, state = rule.weigh(cohort(seen), state)
            assert weights.values == pytest.approx(expected, abs=1e-6)


def test_who_moves_against_all_others_counts_nothing_under_shapfed() -> None:
    rows = np.array([np.ones(9), np.ones(9), -np.ones(9)])
    rule = weighting_of(shapfed())
    weights, _ = rule.weigh(cohort(everybody(0, moves=rows)), rule.init())
    assert weights.values == pytest.approx([0.5, 0.5, 0.0])


def test_a_class_that_a_client_does_not_label_says_nothing_of_it() -> None:
    """It moves with the others in the class that it labels; its row of the other did not move."""
    rows = np.ones((3, 9))
    rows[2, [5, 6, 8]] = 0.0
    seen = cohort(everybody(0, moves=rows))
    updates = [*seen.updates[:2], replace(seen.updates[2], labelled=np.array([True, False]))]
    rule = weighting_of(shapfed())
    weights, _ = rule.weigh(replace(seen, updates=updates), rule.init())
    assert weights.values == pytest.approx([1 / 3] * 3)


# ---------------------------------------------------------------------------------------- FedDG-GA

TRAINED = [(0.5, 0.4, 0.6), (0.3, 0.35, 0.5), (0.25, 0.3, 0.45)]
OF_COMMON = [(0.7, 0.5, 0.65), (0.4, 0.6, 0.55), (0.2, 0.5, 0.6)]
# By refine_weight_dict_by_GA of the authors' utils/weight_adjust.py (8d03a24), with a step of
# 0.2 - (i - 1) · 0.2 / 4 after rounds 0, 1 and 2, as in their training loop.
GA_WEIGHTS = [
    [0.363636364, 0.327272727, 0.309090909],
    [0.352683461, 0.355969332, 0.291347207],
    [0.316449731, 0.377645890, 0.305904379],
]


def test_feddg_ga_gives_the_weights_of_the_authors_code() -> None:
    rule = weighting_of(feddg_ga(step=0.2))
    seen = everybody(0, trained=TRAINED[0])
    weights, state = rule.weigh(cohort(seen, rounds=4, population=3), rule.init())
    assert weights.values == pytest.approx([1 / 3] * 3)
    for round in (1, 2, 3):
        trained = TRAINED[round] if round < 3 else (1, 1, 1)
        seen = everybody(round, loss=OF_COMMON[round - 1], trained=trained)
        weights, state = rule.weigh(cohort(seen, rounds=4, population=3), state)
        assert weights.values == pytest.approx(GA_WEIGHTS[round - 1], abs=1e-6)


def feddg_ga_again(rounds: Iterator[Seen], step: float) -> Iterator[list[float]]:
    clients = range(len(SIZES))
    share = dict.fromkeys(clients, 1 / len(clients))
    trained: dict[int, float] = {}
    for seen in rounds:
        loss = dict(zip(seen.clients, seen.loss.tolist(), strict=True))
        gaps = {c: loss[c] - trained[c] for c in seen.clients if c in trained}
        largest = max((abs(gap) for gap in gaps.values()), default=1.0)
        size = step * (1 - (seen.round - 2) / len(COUNTED)) / len(clients)
        for client, gap in gaps.items():
            share[client] = min(1.0, max(0.0, share[client] + size * gap / largest))
        total = sum(share.values())
        share = {client: own / total for client, own in share.items()}
        trained |= dict(zip(seen.clients, seen.trained.tolist(), strict=True))
        present = [share[client] for client in seen.clients]
        if not any(present):
            present = [1.0] * len(present)
        yield [own / sum(present) for own in present]


@pytest.mark.parametrize("step", [0.2, 3.0])
def test_feddg_ga_is_the_same_written_twice(step: float) -> None:
    """Also with a step that takes clients' shares to zero."""
    rule = weighting_of(feddg_ga(step))
    for seed in range(3):
        state = rule.init()
        for seen, expected in zip(history(seed), feddg_ga_again(history(seed), step), strict=True):
            weights, state = rule.weigh(cohort(seen), state)
            assert weights.values == pytest.approx(expected, abs=1e-9)


def test_a_step_that_takes_all_to_zero_leaves_equal_weights() -> None:
    rule = weighting_of(feddg_ga(step=9.0))
    _, state = rule.weigh(cohort(everybody(0, trained=(1, 1, 1)), population=3), rule.init())
    weights, _ = rule.weigh(cohort(everybody(1, trained=(1, 1, 1)), population=3), state)
    assert weights.values == pytest.approx([1 / 3] * 3)


def test_the_loss_after_training_is_that_of_the_model_which_comes_back() -> None:
    """A client alone is sent what it trained: its next loss is the one that it told."""
    method = method_of("feddg_ga")
    told = []
    rounds = federate(
        initial(),
        method,
        bench(method, shards((24,))),
        ["Alone"],
        rounds=2,
        seed=0,
        on_update=lambda _, update: told.append({k: float(v[0]) for k, v in update.extra.items()}),
    )
    assert len(list(rounds)) == 2
    assert told[1]["loss"] == told[0]["trained loss"] != told[0]["loss"]


# ------------------------------------------------------------------------------------------ FedCE

# The moves of three clients in three rounds, and the error of the model without each. The weights
# are those of the authors' FedCEAssembler (NVFlare 29b993d9), which gets the errors as their means.
CE_MOVES = [
    [[-3, -3, 3], [0, 1, 1], [2, -4, 0]],
    [[0, -4, 0], [-3, 2, 4], [4, 1, 3]],
    [[-1, 1, 4], [-2, 3, -3], [-1, 3, -2]],
]
CE_ERRORS = [(0.2, 0.4, 0.9), (0.4, 0.2, 0.5), (0.7, 0.5, 0.5)]
CE_WEIGHTS = {
    "plus": [
        (0.182805632, 0.363166047, 0.454028321),
        (0.276958183, 0.303968566, 0.419073251),
        (0.353498512, 0.293959671, 0.352541817),
    ],
    "times": [
        (0.091524983, 0.362245957, 0.546229060),
        (0.233796946, 0.266922695, 0.499280359),
        (0.387366859, 0.251418186, 0.361214955),
    ],
}


@pytest.mark.parametrize("join", ["plus", "times"])
def test_fedce_gives_the_weights_of_the_authors_code(join: str) -> None:
    rule = weighting_of(fedce(join))
    state = rule.init()
    for round, expected in enumerate(CE_WEIGHTS[join]):
        rows = np.zeros((3, 9))
        rows[:, :3] = CE_MOVES[round]
        seen = cohort(everybody(round, moves=rows))
        updates = [
            replace(update, extra={"error without": np.array([error], np.float32)})
            for update, error in zip(seen.updates, CE_ERRORS[round], strict=True)
        ]
        weights, state = rule.weigh(replace(seen, updates=updates), state)
        assert weights.values == pytest.approx(expected, abs=1e-6)


def error_of(model: Model, rows: np.ndarray) -> float:
    """The share of the labels of some images that a model gets wrong."""
    module, _ = build()
    arrays = {name: torch.from_numpy(array.copy()) for name, array in model.arrays().items()}
    module.load_state_dict(arrays)
    module.eval()
    images, targets = examples().batch(rows, torch.device("cpu"))
    with torch.no_grad():
        wrong = (module(images) >= 0) != (targets >= 0.5)
    return float(wrong.double().mean())


class FedceAgain:
    """FedCE from the paper's formulas, on whole vectors and with lists of the past."""

    def __init__(self, join: str) -> None:
        self.join = join
        self.cosines: dict[int, list[float]] = {}
        self.errors: dict[int, list[float]] = {}
        self.weight: dict[int, float] = {}
        self.counted: dict[int, float] = {}  # in the last round
        self.last: dict[int, np.ndarray] = {}

    def weights(self, sent: Model, updates: Sequence[Update]) -> list[float]:
        clients = [update.client for update in updates]
        moves = {u.client: u.model.params.astype(float) - sent.params for u in updates}
        known = [self.weight[c] for c in clients if c in self.weight]
        usual = sum(known) / len(known) if known else 1.0
        before = {client: self.weight.get(client, usual) for client in clients}
        errors = {
            client: error_of(self.without(sent, client), shards()[client]) for client in clients
        }
        if len(clients) == 1:
            found = [1.0]
        else:
            for client in clients:
                others = sum(before[c] * moves[c] for c in clients if c != client)
                lengths = np.linalg.norm(others) * np.linalg.norm(moves[client])
                self.cosines.setdefault(client, []).append(moves[client] @ others / lengths)
                self.errors.setdefault(client, []).append(errors[client])
            novelty = shares([1 - float(np.mean(self.cosines[client])) for client in clients])
            need = shares([float(np.mean(self.errors[client])) for client in clients])
            pairs = list(zip(novelty, need, strict=True))
            joined = [a + b if self.join == "plus" else a * b for a, b in pairs]
            found = shares(joined)
            found = [weight / sum(found) for weight in found]
            self.weight |= dict(zip(clients, found, strict=True))
        self.counted = dict(zip(clients, found, strict=True))
        self.last |= {update.client: update.model.joined().copy() for update in updates}
        return found

    def without(self, sent: Model, client: int) -> Model:
        share = self.counted.get(client, 0.0)
        if share in (0.0, 1.0):
            return sent
        return sent.with_joined(
            ((sent.joined() - share * self.last[client]) / (1 - share)).astype(np.float32)
        )


def shares(amounts: Sequence[float]) -> list[float]:
    total = sum(amounts)
    return [max(1e-3, amount / total) for amount in amounts]


@pytest.mark.parametrize("join", ["plus", "times"])
def test_fedce_is_the_same_written_twice_where_clients_come_go_and_lose_updates(join: str) -> None:
    method = fedce(join)
    present = [(0, 1, 2), (0, 1, 2, 3), (0, 2, 3), (1,), (0, 1, 2, 3)] * 2
    lost = {(1, 2), (4, 0), (5, 1), (7, 3)}
    engine = Lossy(bench(method), lambda round, client: (round, client) in lost)
    again = FedceAgain(join)
    arrived: list[Update] = []
    sent = initial()
    rounds = federate(
        sent,
        method,
        engine,
        NAMES,
        rounds=len(present),
        seed=0,
        efforts=lambda round: dict.fromkeys(present[round], 1.0),
        on_update=lambda _, update: arrived.append(update),
    )
    absences_measured = 0
    for round, result in enumerate(rounds):
        updates = sorted(arrived, key=lambda update: update.client)
        assert [u.client for u in updates] == [c for c in present[round] if (round, c) not in lost]
        absences_measured += sum(u.client in again.counted for u in updates)
        expected = again.weights(sent, updates)
        assert [result.weights[NAMES[u.client]] for u in updates] == pytest.approx(
            expected, abs=1e-5
        )
        assert len(result.state["server"][COEFFICIENTS]) == 2 * len(NAMES)  # in every round
        sent = result.next_model
        arrived.clear()
    assert absences_measured > 10


def test_a_client_takes_its_own_part_out_of_the_model_that_it_receives() -> None:
    """(x - w y) / (1 - w) of three clients is the mean of the two others."""
    rng = np.random.default_rng(0)
    models = [
        replace(
            initial(),
            params=rng.normal(size=len(initial().params)).astype(np.float32),
            buffers=rng.uniform(1, 2, len(initial().buffers)).astype(np.float32),
        )
        for _ in range(3)
    ]
    weights = np.array([0.2, 0.3, 0.5])
    received = initial().with_joined(
        sum(w * model.joined() for w, model in zip(weights, models, strict=True))
    )
    tags = np.array([0.25, 0.5, 0.75], np.float32)
    job = Job(1, 2, 0, 0, received, {COEFFICIENTS: addressed(tags, weights, room=4)})
    memory: Memory = {"last": models[1].joined(), "tag": tags[1:2]}
    others = (weights[0] * models[0].joined() + weights[2] * models[2].joined()) / 0.7
    assert model_without(job, memory).joined() == pytest.approx(others, abs=1e-5)
    stranger: Memory = {"last": models[1].joined(), "tag": np.array([0.1], np.float32)}
    assert model_without(job, stranger) is received


def test_a_row_is_found_by_its_tag_and_no_row_where_two_drew_the_same() -> None:
    table = addressed(np.array([0.1, 0.2, 0.2], np.float32), np.arange(6.0).reshape(3, 2), room=5)
    found = own_row(table, np.array([0.1], np.float32), length=2)
    assert found is not None
    assert found.tolist() == [0, 1]
    assert len(table) == 5 * 3
    assert own_row(table, np.array([0.2], np.float32), length=2) is None
    assert own_row(table, np.array([0.3], np.float32), length=2) is None
    with pytest.raises(UserError, match="table cannot be read"):
        own_row(table[1:], np.array([0.1], np.float32), length=2)


def test_tags_are_drawn_anew_in_each_round_and_for_each_client() -> None:
    method = fedce()
    engine = bench(method)
    tags = []
    for round in (0, 1):
        jobs = [Job(round, 2, c, client_seed(0, round, c), initial()) for c in range(len(NAMES))]
        tags += [float(update.extra["tag"][0]) for update in engine.train(jobs)]
    assert len(set(tags)) == 2 * len(NAMES)


def test_a_weighting_that_asks_its_own_clients_is_no_half_of_a_mixture() -> None:
    names = [n for n in catalog.names("methods") if "own clients" in first(method_of(n))]
    assert names == ["fedce"]
    assert second(method_of("fedce"))
    for mixture in ("fedce+fedprox", "fedavg+fedce"):
        with pytest.raises(UserError, match="fedce"):
            combined_method(mixture, {})
