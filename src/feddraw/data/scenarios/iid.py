"""Independent and identically distributed: a random split into clients of equal size."""

from __future__ import annotations

from feddraw.data.scenarios.client_sizes import apportion
from feddraw.data.scenarios.image_deck import Deck
from feddraw.data.scenarios.partition import ClientRows, numbered_clients


def iid(deck: Deck, scale: float, *, clients: int = 4) -> ClientRows:
    """Random split into equal clients (sizes differ by at most one image)."""
    deck = deck.sample(scale, clients)
    return numbered_clients(deck.deal(apportion(len(deck), [1] * clients)))
