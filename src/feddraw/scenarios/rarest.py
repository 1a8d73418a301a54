"""One class for an image with several: its rarest finding, for partitions that were made for single labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feddraw.scenarios.dealing import Deck


def rarest_findings(deck: Deck, units: NDArray[np.intp]) -> NDArray[np.intp]:
    """Per image or patient: 0 for the rarest class of the data, 1 for the next, …, the number of classes for none."""
    values = deck.labels.values
    from_rarest = np.argsort(values.sum(axis=0), kind="stable")
    present = values[deck.rows][:, from_rarest].astype(bool)
    finding = np.where(present.any(axis=1), present.argmax(axis=1), present.shape[1])
    rarest = np.full(units.max() + 1, present.shape[1])
    np.minimum.at(rarest, units, finding)
    return rarest
