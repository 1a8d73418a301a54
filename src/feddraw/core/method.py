"""A federated method: what a client changes in its training, and how updates become a model.

`Weighted` takes a weighting and a server rule, each of which fits the other's; `Joint` rules do
both at once. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from feddraw.core.exchange import ASKED, HELD, Extra, State
from feddraw.core.local import Local
from feddraw.core.model import Extent, Layout, Model, Vector
from feddraw.core.server import Joint, Server
from feddraw.core.weighting import LAYERS, BySize, Equal, Needs, Weighting


@dataclass(frozen=True)
class Weighted:
    """Clients are weighed, their moves are summed, and the server rule makes its step."""

    weighting: Weighting = field(default_factory=BySize)
    server: Server = field(default_factory=Server)


@dataclass(frozen=True)
class Method:
    """A federated method."""

    aggregation: Weighted | Joint
    local: Local = field(default_factory=Local)
    centralised: bool = False  # all images in one place: the reference without a federation
    limited: bool = False  # a policy may change the weights, so equal ones may not stay equal

    @property
    def needs(self) -> Needs:
        """All that its rules look at."""
        if isinstance(self.aggregation, Joint):
            return self.aggregation.needs
        weighting = self.aggregation.weighting.needs
        server = self.aggregation.server.needs
        return Needs(
            sizes=weighting.sizes or server.sizes,
            layers=max(weighting.layers, server.layers, key=LAYERS.index),
            steps=weighting.steps or server.steps,
            asks=tuple(dict.fromkeys((*weighting.asks, *server.asks))),
            server_images=weighting.server_images or server.server_images,
            cost=weighting.cost,
        )

    @property
    def asks(self) -> tuple[str, ...]:
        """What every client must answer, by name."""
        asked = {extra.name for extra in self.needs.asks}
        if self.local.held and not self._stays_equal:
            asked.add(HELD.name)
        return tuple(name for name in ASKED if name in asked)

    @property
    def _stays_equal(self) -> bool:
        """Whether all who are present have the same weight in every round, whatever happens."""
        if self.limited or isinstance(self.aggregation, Joint):
            return False
        return isinstance(self.aggregation.weighting, Equal)

    @property
    def extras(self) -> dict[str, Extra]:
        """All vectors that a client sends beside its model, with their bounds."""
        return extras_of(self.local, self.asks)

    @property
    def sends(self) -> dict[str, Extent]:
        """By name, how long each vector is that a client sends beside its model."""
        return {name: extra.extent for name, extra in self.extras.items()}

    def check(self, layout: Layout) -> None:
        """Refuse a network that does not fit the rules."""
        if isinstance(self.aggregation, Joint):
            self.aggregation.check(layout)
        else:
            self.aggregation.weighting.check(layout)

    def init(self, model: Model) -> State:
        """The state before the first round."""
        if isinstance(self.aggregation, Joint):
            return {"weighting": {}, "server": {}}
        weighting = self.aggregation.weighting
        server = self.aggregation.server
        return {"weighting": weighting.init(), "server": server.init(model)}

    def broadcast(self, state: State) -> dict[str, Vector]:
        """Vectors that every client gets beside the model."""
        if isinstance(self.aggregation, Joint):
            return {}
        from_weighting = self.aggregation.weighting.broadcast(state["weighting"])
        from_server = self.aggregation.server.broadcast(state["server"])
        return {**from_weighting, **from_server}

    def shown(self, model: Model, state: State) -> Model:
        """The model to evaluate and to keep, where it is not the one that is sent next."""
        if isinstance(self.aggregation, Joint):
            return model
        return self.aggregation.server.shown(model, state["server"])


def extras_of(local: Local, asks: Sequence[str]) -> dict[str, Extra]:
    """All vectors beside a model: those of the local rule, and the answers to what is asked."""
    of_local = {extra.name: extra for extra in local.sends}
    return {**of_local, **{name: ASKED[name] for name in asks}}
