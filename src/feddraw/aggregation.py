"""One round of aggregation for a training loop of your own: state dicts in, the next state dict and
the ledger out.

    result = feddraw.aggregate(sent, [(state_dict, images), …], round=0, rounds=15)

Any of the methods, with the gate and the policy of every other way to run them. numpy only; torch
tensors are taken and given back where the sent state dict has them.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from feddraw.core import ASKED, Extent, Layout, Method, Model, State, Update, Vector
from feddraw.core.capabilities import why_not_averaged
from feddraw.core.classifier_layer import looks_at_classifier
from feddraw.errors import UserError, in_one_line, unknown
from feddraw.experiment.method_by_name import combined_method, method_section, method_with_defaults
from feddraw.results.checkpoint import array_tree_bytes, read_array_tree
from feddraw.server import state_dict
from feddraw.server.collectors import Together
from feddraw.server.gate import NO_STEPS, Gate
from feddraw.server.ledger import LedgerEntry, with_refusals
from feddraw.server.policy import Policy, policy_of
from feddraw.server.round import Round
from feddraw.server.status import StatusKind
from feddraw.system.file_writing import write_whole
from feddraw.text import safe_line, with_article

StateDict = Mapping[str, Any]  # name to numpy array or torch tensor

EXTENTS_IN_WORDS: Mapping[Extent, str] = {
    "params": "a state dict of its parameters, or one vector of them",
    "model": "one vector of its parameters and floating buffers",
    "number": "a number",
    "findings": "one number per finding",
    "groups": "counts for two groups of patients",
    "classifier": "one vector of the classifier's parameters",
    "spread": "the number of images measured and the variance of one image's gradient",
}


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """What one client sends after its training.

    `(model, size)` is short for a client without a name.
    """

    model: StateDict  # the trained model, whole, not the difference
    size: float  # its number of training images
    client: str = ""  # empty: C1, C2, … by its position in the list
    steps: int | None = None  # optimiser steps, for the methods that look at them
    # What the method asks for beside the model, by name.
    extra: Mapping[str, Any] = field(default_factory=dict)
    # By output of the classifier, whether the client labels it; None = all.
    labelled: Sequence[bool] | None = None


@dataclass(frozen=True, eq=False)
class AggregationState:
    """What a method remembers between rounds. Save it with the model to go on after a restart."""

    method: str  # with its settings
    clients: tuple[str, ...]
    next_round: int
    values: State

    def save(self, path: Path | str) -> None:
        """Write it as safetensors, whole or not at all."""
        clients = {str(index): name for index, name in enumerate(self.clients)}
        write_whole(Path(path), array_tree_bytes({**vars(self), "clients": clients}))

    @staticmethod
    def load(path: Path | str) -> AggregationState:
        """What `save` wrote; a damaged file is refused."""
        tree = read_array_tree(Path(path))
        try:
            clients = tuple(
                str(tree["clients"][str(index)]) for index in range(len(tree["clients"]))
            )
            return AggregationState(
                str(tree["method"]), clients, int(tree["next_round"]), dict(tree["values"])
            )
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{path} is not the state of an aggregation") from None


@dataclass(frozen=True, eq=False)
class AggregationResult:
    """What a round gave: models, the ledger of who counted how much, and the state for the next
    round.
    """

    model: dict[str, Any]  # the one to evaluate and to keep
    next_model: dict[str, Any]  # the one to send next: the same, but for methods such as FedDyn
    ledger: tuple[LedgerEntry, ...]
    state: AggregationState
    # What clients get beside the next model, for methods such as SCAFFOLD.
    broadcast: dict[str, Vector]

    @property
    def weights(self) -> dict[str, float]:
        """Client to weight, for those that counted."""
        return {entry.client: entry.weight for entry in self.ledger if entry.weighted}


class NoUpdateUsed(UserError):
    """No update of a round counted; `result` has the model and the state as they were, and the
    ledger, for a loop that goes on with the next round.
    """

    def __init__(self, message: str, result: AggregationResult) -> None:
        super().__init__(message)
        self.result = result


def aggregate(  # noqa: PLR0913 - the settings of one call
    sent: StateDict,
    updates: Sequence[ClientUpdate | tuple[StateDict, float]],
    *,
    round: int,
    rounds: int,
    method: str | Mapping[str, Any] | Method = "feddraw",
    state: AggregationState | None = None,
    clients: Sequence[str] | None = None,
    classifier: str | Sequence[str] = "",
    outputs: int = 0,
    gate: Gate | None = None,
    policy: Policy | Mapping[str, Any] | Path | str | None = None,
    everyone: bool = True,
) -> AggregationResult:
    """Aggregate one round of a training loop of your own.

    `sent` is the state dict that the clients started from, `updates` are their trained state dicts
    with their numbers of images. Rounds count from 0. Pass `state` of the result to the next round.
    `method` is a name, a table with a name and settings, or a `Method`. `clients` names all
    clients, in the order of the ledger; left out, they are those that have answered so far. Where
    more may come, `everyone` is False, and the policy is not checked against them. `classifier`
    names the layer that gives the scores, or several in the order of the findings; left out, it is
    found by its shape and by `outputs`, the number of findings, and asked for where that does not
    decide. An update that is broken is refused by name, in a warning and in the ledger, and the
    others count; where none counts, `NoUpdateUsed` is raised.
    """
    rule, name = method_to_aggregate(method)
    limits = policy_of(policy)
    limits.check_method(rule)
    rule = replace(rule, limited=limits.limits_weights)
    named = [_named(update, index) for index, update in enumerate(updates)]
    check_aggregation_suffices(rule, name, named)
    _check_round(round, rounds, name, state)
    known = state.clients if state else ()
    names = _client_names({update.client for update in named}, known, clients)
    if clients is not None and everyone:
        limits.check_clients(names)
    sent_model = _sent_model(sent, rule, named, classifier, outputs)
    readable, refused = _read_updates(named, names, sent_model.layout, rule)
    this_round = Round(
        number=round,
        rounds=rounds,
        sent=sent_model,
        method=rule,
        state=rule.init(sent_model) if state is None else state.values,
        clients=names,
        sampled=range(len(names)),
    )
    collect = Together(gate=gate or Gate(), policy=limits)
    result = collect(this_round, readable)
    aggregated = AggregationResult(
        model=state_dict.state_dict_like(result.model, sent),
        next_model=state_dict.state_dict_like(result.next_model, sent),
        ledger=with_refusals(result.ledger, refused),
        state=AggregationState(name, names, round + 1, result.state),
        broadcast=rule.broadcast(result.state),
    )
    _tell_refusals(round, aggregated)
    return aggregated


def _tell_refusals(round: int, aggregated: AggregationResult) -> None:
    """Warn of each update that was not used; where none was, that is an error."""
    refusals = [
        safe_line(f"{entry.client}: {entry.status}")
        for entry in aggregated.ledger
        if entry.kind in (StatusKind.REFUSED, StatusKind.UNUSED)
    ]
    if not aggregated.weights:
        reasons = "; ".join(refusals) or "no client has answered"
        raise NoUpdateUsed(f"round {round}: no update was used ({reasons})", aggregated)
    for refusal in refusals:
        warnings.warn(f"round {round}: {refusal}", stacklevel=3)


def method_to_aggregate(method: str | Mapping[str, Any] | Method) -> tuple[Method, str]:
    """The method, and how its state is told from another's."""
    if isinstance(method, Method):
        return method, repr(method)
    settings = method_section({"name": method} if isinstance(method, str) else method)
    if not isinstance(name := settings.pop("name", None), str):
        raise UserError("method needs a name, such as {'name': 'feddraw', 'beta_max': 3.0}")
    recorded = {
        key: value for key, value in method_with_defaults(name, settings).items() if key != "name"
    }
    return combined_method(name, settings), f"{name} {json.dumps(recorded, sort_keys=True)}"


def _named(update: ClientUpdate | tuple[StateDict, float], index: int) -> ClientUpdate:
    if isinstance(update, ClientUpdate):
        return update if update.client else replace(update, client=f"C{index + 1}")
    if not (isinstance(update, tuple) and len(update) == 2):
        raise UserError(
            "an update is a ClientUpdate, or a state dict with its number of images: (state_dict,"
            " 1200)"
        )
    return ClientUpdate(update[0], update[1], f"C{index + 1}")


def check_aggregation_suffices(rule: Method, name: str, updates: Sequence[ClientUpdate]) -> None:
    """Refuse a method that needs what no update brings."""
    name = name.partition(" ")[0] if "(" not in name else "this method"
    if why_not_averaged(rule):
        raise UserError(
            f"{name} averages no models, so there is nothing to aggregate: choose another method"
        )
    if rule.needs.server_images:
        raise UserError(
            f"{name} weighs clients by labelled images at the server, which aggregate() does not"
            " have: run it with feddraw.run, or choose another method"
        )
    if not updates:
        return
    for extra, asked in rule.extras.items():
        if not any(_sends(update, extra) for update in updates):
            meaning = f": {asked.meaning}" if asked.meaning else ""
            whose = (
                "asks every client for"
                if extra in ASKED
                else "changes local training, and its clients send"
            )
            raise UserError(
                f"{name} {whose} '{extra}' ({EXTENTS_IN_WORDS[asked.extent]}{meaning}): give it as "
                f"ClientUpdate(model, size, extra={{'{extra}': …}}), or choose another method"
            )
    if rule.needs.steps and all(update.steps is None for update in updates):
        raise UserError(
            f"{name} looks at the clients' optimiser steps: give them as ClientUpdate(model, size,"
            " steps=…)"
        )


def _sends(update: ClientUpdate, extra: str) -> bool:
    """Whether it has this beside the model; what a client calls its extras may be anything."""
    return isinstance(update.extra, Mapping) and extra in update.extra


def _check_round(round: int, rounds: int, name: str, state: AggregationState | None) -> None:
    numbers: dict[str, Any] = {"round": round, "rounds": rounds}  # of whatever type they come
    for name_of_number, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise UserError(f"{name_of_number} must be a whole number, not {number!r}")
    if rounds < 1:
        raise UserError(f"rounds must be at least 1, not {rounds}")
    if not 0 <= round < rounds:
        raise UserError(f"round {round} of {rounds}: rounds count from 0 to {rounds - 1}")
    if state is not None and not isinstance(state, AggregationState):
        raise UserError(
            "state is what the result of the round before has (result.state), or"
            f" AggregationState.load(path), not {with_article(type(state).__name__)}"
        )
    if state is not None and state.method != name:
        raise UserError(f"the state is of the method {state.method}, not {name}: begin without one")
    if state is not None and round < state.next_round:
        raise UserError(
            f"the state is that after round {state.next_round - 1}, so round {round} cannot"
            " follow it"
        )


def _client_names(
    answered: set[str], known: tuple[str, ...], clients: Sequence[str] | None
) -> tuple[str, ...]:
    """All clients in a fixed order, whoever answered first; `known` are those of the state."""
    if clients is None:
        if not known and not answered:
            raise UserError("no updates: give at least one")
        return (*known, *sorted(answered - set(known), key=_natural_order))
    names = tuple(map(str, clients))
    if len(set(names)) != len(names):
        raise UserError("two clients have the same name")
    if names[: len(known)] != known:
        raise UserError(
            f"clients must begin with those of the state, in their order: {', '.join(known)}"
        )
    for stranger in sorted(answered - set(names)):
        raise unknown("clients", stranger, names)
    return names


def _natural_order(name: str) -> list[str | int]:
    """C2 before C10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _sent_model(
    sent: StateDict,
    rule: Method,
    updates: Sequence[ClientUpdate],
    classifier: str | Sequence[str],
    outputs: int,
) -> Model:
    """The model that the clients started from, with its classifier if anybody looks at that."""
    try:
        arrays = state_dict.plain_arrays(sent)
    except TypeError as error:
        raise UserError(f"the sent model is {error}") from None
    labels_are_told = any(update.labelled is not None for update in updates)
    layout = state_dict.layout_of_arrays(
        arrays, classifier, outputs=outputs, ask=labels_are_told or looks_at_classifier(rule)
    )
    rule.check(layout)
    model = state_dict.flatten_state_dict(arrays, layout)
    for entry in layout.entries:
        if entry.kind == "param" and not np.isfinite(model.params[entry.span]).all():
            raise UserError(
                f"the sent model is not finite ({entry.name}): go on from the last model that was"
            )
    return model


def _read_updates(
    given: Sequence[ClientUpdate], names: Sequence[str], layout: Layout, rule: Method
) -> tuple[list[Update], dict[str, str]]:
    """The updates as the server sees them, and, by client, why others cannot be read."""
    updates: list[Update] = []
    refused: dict[str, str] = {}
    for update in given:
        try:
            updates.append(_read_update(update, names, layout, rule))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            refused[update.client] = in_one_line(error)
    # Of two updates of one client, one of which cannot be read, neither is used.
    return [update for update in updates if names[update.client] not in refused], refused


def _read_update(given: ClientUpdate, names: Sequence[str], layout: Layout, rule: Method) -> Update:
    """A client's update; raises what it stumbles over in one that cannot be read."""
    # what does not fit becomes infinite, and the gate finds it
    with np.errstate(over="ignore"):
        model: Model = state_dict.flatten_state_dict(state_dict.plain_arrays(given.model), layout)
        wanted = [name for name in rule.sends if name in given.extra]
        extra = {name: _extra_vector(given.extra[name], layout) for name in wanted}
    # the gate checks what it holds
    labelled = None if given.labelled is None else np.array(given.labelled)
    if given.steps is None and rule.needs.steps:
        raise ValueError(f"{NO_STEPS}: give it as ClientUpdate(model, size, steps=…)")
    return Update(
        client=names.index(given.client),
        model=model,
        size=given.size,
        steps=given.steps,
        metrics={"loss": 0.0},
        extra=extra,
        labelled=labelled,
    )


def _extra_vector(value: Any, layout: Layout) -> Vector:
    """What goes up beside a model as one vector, from a number, an array or a state dict of
    parameters.
    """
    if isinstance(value, Mapping):
        arrays = state_dict.plain_arrays(value)
        value = np.concatenate(
            [arrays[entry.name].ravel() for entry in layout.entries if entry.kind == "param"]
        )
    return np.ascontiguousarray(state_dict.as_numpy(value), np.float32).ravel()
