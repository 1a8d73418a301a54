"""Which layer gives the findings' scores: the only place that decides it, from names and shapes
alone.

Whoever has the network itself sees which layers its scores come from
(`training.classifier_by_trial`). A choice is checked against the number of findings where that is
known, and what cannot be decided is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from feddraw.core import Entry, Heads, Method, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError, unknown

MOST_LAYERS_NAMED = 6  # candidates in a message
HOW_TO_NAME_IT = (
    "that gives the findings' scores: classifier = NAME, or a list of layers in the order of the"
    " findings"
)


@dataclass(frozen=True)
class ScoringLayer:
    """A layer that may give scores: a matrix, or a kernel of one pixel."""

    name: str
    rows: int  # its outputs
    columns: int  # its inputs
    biased: bool


def choose_classifier(
    params: Sequence[Entry], named: str | Sequence[str] = "", outputs: int = 0
) -> Heads:
    """The classifier of a network with these parameters: as named, or found; `outputs` is 0 where
    it is not known.
    """
    if not params:
        raise UserError("the network has no parameters, so there is nothing to train")
    if named:
        return _checked_classifier(
            params, (named,) if isinstance(named, str) else tuple(named), outputs
        )
    candidates = candidate_classifiers(params, outputs)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        may_be = _listed_classifiers(candidates)
        raise UserError(
            f"cannot identify the classifier: it may be {may_be}. Name the layer {HOW_TO_NAME_IT}"
        )
    if outputs:
        last = [f"{layer.name} with {layer.rows}" for layer in scoring_layers(params)[-3:]]
        there = f"there is {_listed_classifiers(last) or 'no layer at all'}"
        raise UserError(
            f"no layer has {outputs} output(s), one for each finding ({there}): name the layer"
            f" {HOW_TO_NAME_IT}"
        )
    return layer_of(params[-1])  # a network without a matrix


def likely_classifier(params: Sequence[Entry], outputs: int = 0) -> Heads:
    """For methods that never look at the classifier: what is most likely it, without asking."""
    if candidates := candidate_classifiers(params, outputs):
        return candidates[-1]
    layers = scoring_layers(params)
    if not layers:
        return layer_of(params[-1])
    return _biased_or_all(layers)[-1].name


def candidate_classifiers(params: Sequence[Entry], outputs: int = 0) -> list[Heads]:
    """The layers, or several layers together, that may be the classifier; one where it is clear,
    none where no layers give that many outputs (0: not known how many).
    """
    layers = scoring_layers(params)
    tail = _classifier_tail(params, layers)
    if not outputs:
        ends = _last_scoring_layers(tail or layers)
        return [layer.name for layer in _biased_or_all(ends)]
    fitting = _last_scoring_layers([layer for layer in layers if layer.rows == outputs])
    if fitting:
        return [layer.name for layer in fitting]
    heads_of_tail = _last_scoring_layers(tail)
    if sum(layer.rows for layer in heads_of_tail) == outputs:
        return [tuple(layer.name for layer in heads_of_tail)]
    single_outputs = [layer for layer in layers if layer.rows == 1]
    if len(single_outputs) == outputs:
        return [tuple(layer.name for layer in single_outputs)]
    return []


def scoring_layers(params: Sequence[Entry]) -> list[ScoringLayer]:
    """All layers that map features to numbers, one by one, in the network's order."""
    shapes = {entry.name: entry.shape for entry in params}
    matrices_of_layer = Counter(layer_of(entry) for entry in params if len(entry.shape) > 1)
    layers = []
    for entry in params:
        if len(entry.shape) < 2 or math.prod(entry.shape[2:]) != 1:
            continue  # neither a matrix nor a kernel of one pixel
        name = layer_of(entry)
        is_only_matrix = matrices_of_layer[name] == 1 and f"{name}.weight" not in shapes
        if entry.name.rpartition(".")[2] == "weight" or is_only_matrix:
            outputs, inputs = entry.shape[:2]
            biased = shapes.get(f"{entry.name.removesuffix('weight')}bias") == (outputs,)
            layers.append(ScoringLayer(name, rows=outputs, columns=inputs, biased=biased))
    return layers


def _biased_or_all(layers: Sequence[ScoringLayer]) -> Sequence[ScoringLayer]:
    """Those with a bias, as classifiers have one; where none has, all."""
    return [layer for layer in layers if layer.biased] or layers


def _classifier_tail(params: Sequence[Entry], layers: Sequence[ScoringLayer]) -> list[ScoringLayer]:
    """The scoring layers after the last that is none: kernels and norms are the body's."""
    names = {layer.name for layer in layers}
    body = [number for number, entry in enumerate(params) if layer_of(entry) not in names]
    after = {layer_of(entry) for entry in params[(body[-1] + 1 if body else 0) :]}
    return [layer for layer in layers if layer.name in after]


def _last_scoring_layers(layers: Sequence[ScoringLayer]) -> list[ScoringLayer]:
    """Without those whose outputs are as many as a later one's inputs: they come before it."""
    return [
        layer
        for number, layer in enumerate(layers)
        if all(later.columns != layer.rows for later in layers[number + 1 :])
    ]


def _checked_classifier(params: Sequence[Entry], names: tuple[str, ...], outputs: int) -> Heads:
    rows = 0
    for name in names:
        entries = [entry for entry in params if in_layer(entry.name, name)]
        if not entries:
            raise unknown("layers", name, {layer_of(entry) for entry in params})
        rows += entries[0].shape[0] if entries[0].shape else 1
    if outputs and rows != outputs:
        fitting = candidate_classifiers(params, outputs)
        hint = f": did you mean {_listed_classifiers(fitting)}?" if fitting else ""
        raise UserError(
            f"the classifier {_listed_classifiers(names)} has {rows} output(s) for {outputs}"
            f" finding(s){hint}"
        )
    return names[0] if len(names) == 1 else names


def classifier_in_words(heads: Heads, outputs: int) -> str:
    """For people: `head, 5 outputs`."""
    names = head_names(heads)
    return f"{_listed_classifiers(names)}, {outputs} output{'s' * (outputs != 1)}"


def layer_of(entry: Entry) -> str:
    return entry.name.rpartition(".")[0] or entry.name


def _listed_classifiers(names: Sequence[Heads]) -> str:
    shown = [
        name if isinstance(name, str) else " + ".join(name) for name in names[:MOST_LAYERS_NAMED]
    ]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


def looks_at_classifier(method: Method) -> bool:
    """Whether a method must know which layer gives the findings' scores, and which of its rows is
    whose.
    """
    asked = {"classifier", "findings", "groups"} & set(method.sends.values())
    return method.needs.layers == "classifier" or bool(asked)
