"""`feddraw.aggregate`, for a training loop of one's own: the bits of the package's loop, from plain
state dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddraw
import tiny
from feddraw.core import Job
from feddraw.errors import UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.federation import client_seed

ROUNDS = 2


def as_kind(kind: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return (
        {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()}
        if kind == "torch"
        else dict(arrays)
    )


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("feddraw", "numpy"),
        ("feddraw", "torch"),
        ("fedadam", "numpy"),
        ("feddraw+scaffold", "torch"),
        ("feddyn", "numpy"),
    ],
)
def test_a_loop_of_ones_own_has_the_bits_of_the_federation(
    method: str, kind: str, tmp_path: Path
) -> None:
    rule = combined_method(method, {})
    expected = tiny.train(rule, ROUNDS)
    engine, sent, broadcast = (
        tiny.bench(rule),
        as_kind(kind, tiny.initial().arrays()),
        rule.broadcast(rule.init(tiny.initial())),
    )
    model, state = tiny.initial(), None
    for round in range(ROUNDS):
        updates = []
        for client in (2, 0, 3, 1):  # the order of arrival does not matter
            job = Job(round, ROUNDS, client, client_seed(0, round, client), model, broadcast)
            (one,) = map(tiny.copied, engine.train([job]))
            trained = as_kind(kind, one.model.arrays())
            updates.append(
                feddraw.ClientUpdate(trained, one.size, tiny.NAMES[client], one.steps, one.extra)
            )
        engine.commit(range(4))
        result = feddraw.aggregate(
            sent,
            updates,
            round=round,
            rounds=ROUNDS,
            method=method,
            state=state,
            clients=tiny.NAMES,
        )
        result.state.save(tmp_path / "state.safetensors")  # as if the server had been restarted
        state, sent, broadcast = (
            feddraw.AggregationState.load(tmp_path / "state.safetensors"),
            result.next_model,
            result.broadcast,
        )
        model = expected[round].next_model
        assert str(result.ledger) == str(expected[round].ledger)
        for found, wanted in ((result.next_model, model), (result.model, expected[round].model)):
            for name, array in wanted.arrays().items():
                assert isinstance(found[name], torch.Tensor if kind == "torch" else np.ndarray)
                assert np.asarray(found[name]).dtype == array.dtype
                assert np.array_equal(np.asarray(found[name]), array), name


def moved(sent: dict[str, Any], by: float) -> dict[str, Any]:
    return {
        name: array + by if array.dtype.kind == "f" else array + 1 for name, array in sent.items()
    }


def test_pairs_of_state_dict_and_size_are_enough() -> None:
    sent = tiny.initial().arrays()
    result = feddraw.aggregate(
        sent, [(moved(sent, 0.1), 300), (moved(sent, 0.2), 100)], round=0, rounds=15
    )
    assert result.weights == pytest.approx({"C1": 0.75, "C2": 0.25}, abs=1e-15)
    assert np.allclose(result.model["classifier.bias"], sent["classifier.bias"] + 0.125)


def test_variants_of_feddraw_need_steps_only_where_they_count_them() -> None:
    sent = tiny.initial().arrays()
    updates = [(moved(sent, 0.1), 300), (moved(sent, 0.2), 100)]
    plain, variant = (
        feddraw.aggregate(sent, updates, round=3, rounds=15, method=name)
        for name in ("feddraw", "feddraw_variant")
    )
    assert variant.weights == plain.weights
    assert [entry.steps for entry in plain.ledger] == [None, None]  # not 1: nobody said


def test_one_client_that_does_not_tell_its_steps_is_refused_where_they_count() -> None:
    sent = tiny.initial().arrays()
    updates = [
        feddraw.ClientUpdate(moved(sent, 0.1), 300, "North", steps=10),
        feddraw.ClientUpdate(moved(sent, 0.2), 100, "South"),
        feddraw.ClientUpdate(moved(sent, 0.3), 100, "West", steps=30),
    ]
    with pytest.warns(UserWarning, match=r"South: .* give it as ClientUpdate\(model, size, steps="):
        result = feddraw.aggregate(sent, updates, round=0, rounds=15, method="inverse_steps")
    assert result.weights == pytest.approx({"North": 0.75, "West": 0.25})


def test_types_that_numpy_lacks_stay_as_they_are() -> None:
    sent = {
        "fc.weight": torch.ones(2, 3, dtype=torch.bfloat16),
        "fc.bias": torch.zeros(2, dtype=torch.bfloat16),
    }
    result = feddraw.aggregate(
        sent, [({name: t + 1 for name, t in sent.items()}, 3)], round=0, rounds=2
    )
    assert {t.dtype for t in result.model.values()} == {torch.bfloat16}
    assert torch.equal(result.model["fc.weight"], sent["fc.weight"] + 1)


@pytest.mark.filterwarnings("ignore:round 0")
def test_of_two_updates_of_one_client_neither_counts_if_one_is_broken() -> None:
    sent = tiny.initial().arrays()
    one, two = (
        feddraw.ClientUpdate(moved(sent, 0.1), 10, "one"),
        feddraw.ClientUpdate(moved(sent, 0.9), 10, "two"),
    )
    broken = feddraw.ClientUpdate({"other": np.zeros(3)}, 10, "two")
    alone = feddraw.aggregate(sent, [one], round=0, rounds=15, clients=["one", "two"])
    for updates in ([one, broken, two], [one, two, broken]):
        result = feddraw.aggregate(sent, updates, round=0, rounds=15, clients=["one", "two"])
        assert (result.ledger[1].status.startswith("refused: "), result.weights) == (
            True,
            {"one": 1.0},
        )
        assert all(np.array_equal(result.model[name], array) for name, array in alone.model.items())


@pytest.mark.filterwarnings("ignore:round 0")
def test_a_broken_update_is_refused_by_name_and_the_others_count() -> None:
    sent = tiny.initial().arrays()
    bad = [{"other": np.zeros(3)}, moved(sent, np.nan), "nothing"]
    updates = [
        feddraw.ClientUpdate(model, 10, f"site {place}")
        for place, model in enumerate([moved(sent, 0.1), *bad])
    ]
    result = feddraw.aggregate(
        sent, updates, round=0, rounds=15, clients=[*(f"site {i}" for i in range(4)), "absent"]
    )
    status = [entry.status for entry in result.ledger]
    assert status[0] == "weighted"
    assert all(one.startswith("refused: ") for one in status[1:4])
    assert status[4] == "missing"
    assert result.weights == {"site 0": 1.0}


def wrong_shape(sent: dict[str, Any]) -> dict[str, Any]:
    return moved(sent, 0.1) | {"classifier.bias": np.zeros(7, np.float32)}


@pytest.mark.parametrize(
    ("model", "size", "says"),
    [
        (lambda sent: moved(sent, np.nan), 10, "are not finite"),
        (wrong_shape, 10, r"classifier.bias of shape \(7,\) where \(\d,\) was sent"),
        (lambda sent: {}, 10, r"it has no tensors where \d+ were sent"),
        (
            lambda sent: {f"module.{name}": array for name, array in sent.items()},
            10,
            r"were not sent, such as module\.",
        ),
        (lambda sent: torch.nn.Linear(3, 2), 10, r"of type Linear, .* give its state_dict\(\)"),
        (lambda sent: moved(sent, 0.1), "10", "size 10 of type str"),
        (lambda sent: moved(sent, 0.1), True, "size True of type bool"),
    ],
)
def test_a_refusal_is_a_warning_and_an_error_where_no_update_is_left(
    model: Callable[[dict[str, Any]], Any], size: Any, says: str
) -> None:
    sent = tiny.initial().arrays()
    broken = feddraw.ClientUpdate(model(sent), size, "broken")
    sound = feddraw.ClientUpdate(moved(sent, 0.1), 10, "sound")
    with pytest.warns(UserWarning, match=f"round 4: broken: refused: .*{says}") as warned:
        result = feddraw.aggregate(sent, [broken, sound], round=4, rounds=15)
    assert len(warned) == 1
    assert result.weights == {"sound": 1.0}
    with pytest.raises(feddraw.NoUpdateUsed, match=f"no update was used .*broken: .*{says}") as no:
        feddraw.aggregate(sent, [broken], round=4, rounds=15)
    kept = no.value.result
    assert all(np.array_equal(kept.next_model[name], array) for name, array in sent.items())
    assert kept.state.next_round == 5


def test_a_round_that_nobody_answered_is_an_error_too() -> None:
    sent = tiny.initial().arrays()
    with pytest.raises(feddraw.NoUpdateUsed, match="no client has answered"):
        feddraw.aggregate(sent, [], round=0, rounds=15, clients=["north", "south"])


def test_a_sent_model_that_is_not_finite_is_no_clients_mistake() -> None:
    sent = tiny.initial().arrays()
    update = (dict(sent), 10)
    name = next(name for name, array in sent.items() if array.dtype == np.float32)
    sent[name] = np.full_like(sent[name], np.nan)
    with pytest.raises(UserError, match=rf"the sent model is not finite \({name}\)"):
        feddraw.aggregate(sent, [update], round=0, rounds=15)


def test_a_network_in_place_of_the_sent_state_dict_is_said_in_one_line() -> None:
    network = torch.nn.Linear(3, 2)
    update = (network.state_dict(), 10)
    with pytest.raises(UserError, match=r"the sent model is of type Linear"):
        feddraw.aggregate(network, [update], round=0, rounds=15)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "fedlaw"}, "labelled images at the server"),
        ({"method": "centralised"}, "averages no models"),
        ({"method": "scaffold"}, "'control_change'"),
        ({"method": "fedcav"}, "asks every client for 'loss'"),
        ({"method": "random_effects"}, "asks every client for 'classifier gradient mean'"),
        ({"method": "inverse_steps"}, "steps="),
        (
            {"method": "fednova"},
            r"'progress' \(a number: with plain SGD its number of optimiser steps\)",
        ),
        ({"method": "fedporx"}, "did you mean fedprox"),
        ({"method": {"name": "feddraw", "eeta": 1}}, "no setting 'eeta'"),
        ({"round": 15}, "rounds count from 0 to 14"),
        ({"round": 0, "rounds": 0}, "rounds must be at least 1, not 0"),
        ({"round": 1.5}, "round must be a whole number, not 1.5"),
        ({"rounds": "5"}, "rounds must be a whole number, not '5'"),
        ({"classifier": "clasifier"}, "did you mean classifier"),
        ({"clients": ["North"]}, "no 'C1' among the clients"),
        (
            {"clients": ["C1", "North"], "policy": {"fixed": "Nroth=0.5"}},
            "no 'Nroth' among the clients: did you mean",
        ),
        ({"method": {"name": "feddraw_variant", "signal": "per_step"}}, "steps="),
    ],
)
def test_what_cannot_be_aggregated_is_said_in_one_line(options: dict[str, Any], says: str) -> None:
    sent = tiny.initial().arrays()
    with pytest.raises(UserError, match=says):
        feddraw.aggregate(sent, [(moved(sent, 0.1), 10)], **{"round": 0, "rounds": 15} | options)


def test_a_state_goes_on_where_it_was_and_nowhere_else(tmp_path: Path) -> None:
    sent = tiny.initial().arrays()
    updates = [(moved(sent, 0.1), 10)]
    state = feddraw.aggregate(sent, updates, round=3, rounds=15, method="fedadam").state
    with pytest.raises(UserError, match="after round 3"):
        feddraw.aggregate(sent, updates, round=3, rounds=15, method="fedadam", state=state)
    with pytest.raises(UserError, match="the state is of the method fedadam"):
        feddraw.aggregate(sent, updates, round=4, rounds=15, state=state)
    with pytest.raises(UserError, match=r"state is what .*result\.state.*, not a dict$"):
        feddraw.aggregate(sent, updates, round=4, rounds=15, state={"round": 3})  # type: ignore[arg-type]
    state.save(path := tmp_path / "state.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        feddraw.AggregationState.load(path)
    with pytest.raises(UserError, match="cannot read"):
        feddraw.AggregationState.load(tmp_path / "none")
