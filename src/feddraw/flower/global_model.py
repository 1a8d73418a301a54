"""The global model at the server: as vectors, which are aggregated, and as the record that travels.

Flower hands a strategy the model of each round. Mostly it is the one that the strategy has just
made; a wrapper (such as Flower's for differential privacy) or a subclass may have changed it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord

from feddraw.core import Layout, Model, State
from feddraw.core.classifier_layer import classifier_in_words, looks_at_classifier
from feddraw.flower import reply_intake
from feddraw.flower.array_records import arrays_to_model, model_to_arrays
from feddraw.flower.reply_intake import Reply
from feddraw.flower.strategy_options import StrategyOptions
from feddraw.server.state_dict import layout_of_arrays
from feddraw.text import safe_line

log = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """The model that is sent next, with the state of the method's rules."""

    model: Model
    state: State
    arrays: ArrayRecord  # the model as it travels
    made_here: bool  # by this strategy, so that its state belongs to it
    classifier: str | Sequence[str]  # as it was named; empty: found by its shape

    @classmethod
    def first(cls, arrays: ArrayRecord, options: StrategyOptions) -> GlobalModel:
        """The model that the user begins with."""
        layout = _layout(arrays, options.classifier, options)
        options.method.check(layout)
        log.info("classifier: %s", classifier_in_words(layout.classifier, layout.outputs))
        model = arrays_to_model(arrays, layout)
        return cls(
            model=model,
            state=options.method.init(model),
            arrays=arrays,
            made_here=False,
            classifier=options.classifier,
        )

    def replaced_by(self, arrays: ArrayRecord, options: StrategyOptions) -> GlobalModel:
        """A model that another made; the rules keep their state."""
        layout = _layout(arrays, self.classifier, options)
        model = arrays_to_model(arrays, layout)
        return replace(self, model=model, arrays=arrays, made_here=False)

    def stepped_to(self, model: Model, state: State) -> GlobalModel:
        """A model that this strategy made, or read from its own checkpoint."""
        return replace(
            self, model=model, state=state, arrays=model_to_arrays(model), made_here=True
        )

    def cut_to(self, tensors: Collection[str], options: StrategyOptions) -> GlobalModel:
        """Only these tensors, with the same classifier; the rules begin anew."""
        classifier = self.model.layout.classifier
        shared = ArrayRecord({name: self.arrays[name] for name in self.arrays if name in tensors})
        layout = _layout(shared, classifier, options)
        options.method.check(layout)
        model = arrays_to_model(shared, layout)
        return GlobalModel(
            model=model,
            state=options.method.init(model),
            arrays=shared,
            made_here=False,
            classifier=classifier,
        )


def _layout(
    arrays: ArrayRecord, classifier: str | Sequence[str], options: StrategyOptions
) -> Layout:
    layout = layout_of_arrays(
        arrays,
        classifier,
        outputs=len(options.findings),
        ask=looks_at_classifier(options.method),
    )
    return replace(layout, frozen=options.frozen)


def tensors_that_all_share(
    replies: Sequence[Reply], arrays_key: str, sent: GlobalModel
) -> frozenset[str] | None:
    """The tensors that are in every reply, where all clients keep the same ones private, as with
    FedBN; None where they do not, or where a part of the classifier would be private.
    """
    held = {reply_intake.tensors_in_reply(reply, arrays_key) for reply in replies}
    if len(held) != 1:
        return None
    shared = next(iter(held))
    everything = set(sent.arrays)
    if not shared or not shared < everything:
        return None
    layout = sent.model.layout
    if any(layout.in_classifier(name) for name in everything - shared):
        return None
    private = sorted(everything - shared)
    log.warning(
        "all replies hold %d of %d tensors, without %s: only these are averaged, and sent from"
        " now on",
        len(shared),
        len(everything),
        safe_line(", ".join(private[:3])) + (" and others" if len(private) > 3 else ""),
    )
    return shared
