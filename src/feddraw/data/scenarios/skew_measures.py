"""How unequal clients are: measures of their sizes, of their label mix, and of patients they share.

The label mix of several images with several findings each is the distribution of their positives
over the classes, with images that have no finding as one class more. An unknown label is not a
positive, and an image is one without a finding only if all its labels are known. Distances are from
each client's mix to that of all clients together: Jensen–Shannon is the square root of the
divergence to base 2; earth mover's costs 1 between any two classes, so that it is half the sum of
absolute differences (Zhao et al., 2018, give the sum). Both lie between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Labels
from feddraw.data.scenarios.partition import Partition

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class SizeMeasures:
    """What the clients' sizes alone say."""

    size_ratio: float  # largest to smallest
    gini: float
    smallest_share: float
    effective_clients: (
        float  # 1 / sum of squared shares: the number of equal clients as concentrated as these
    )


@dataclass(frozen=True)
class Skew:
    """All measures of a partition."""

    sizes: SizeMeasures
    jensen_shannon: tuple[float, ...]  # per client
    earth_movers: tuple[float, ...]
    # Patients with images at two clients or more; None if patients are not known.
    shared_patients: int | None


def measure_skew(partition: Partition, labels: Labels) -> Skew:
    """All measures of a partition of these labels."""
    mixes = label_mixes(partition, labels)
    pool = label_counts(partition, labels).sum(axis=0)
    together: Numbers = pool / max(pool.sum(), 1)
    divergent = tuple(jensen_shannon(mix, together) for mix in mixes)
    moved = tuple(earth_movers(mix, together) for mix in mixes)
    return Skew(
        measure_sizes(partition.sizes.tolist()),
        divergent,
        moved,
        shared_patients(partition, labels),
    )


def measure_sizes(sizes: Sequence[int]) -> SizeMeasures:
    """The measures that need no labels."""
    shares = np.asarray(sizes) / np.sum(sizes)
    size_ratio = float(max(sizes) / min(sizes))
    effective_clients = float(1 / (shares**2).sum())
    return SizeMeasures(size_ratio, gini(sizes), float(shares.min()), effective_clients)


def gini(sizes: Sequence[int]) -> float:
    """Mean absolute difference over twice the mean: 0 for equal clients."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(np.abs(values[:, None] - values).mean() / (2 * values.mean()))


def label_counts(partition: Partition, labels: Labels) -> NDArray[np.intp]:
    """Images of each client with each class, and, in the last column, with none."""
    clients = [labels.truth(shard.rows) for shard in partition.shards]
    return np.array(
        [[*(truth == 1).sum(axis=0), (truth == 0).all(axis=1).sum()] for truth in clients],
        dtype=np.intp,
    )


def label_mixes(partition: Partition, labels: Labels) -> Numbers:
    """Each client's distribution over classes and none; rows sum to 1."""
    table = label_counts(partition, labels)
    # a client without a known positive or known negative image has no mix: that of all clients, at
    # distance 0
    totals = table.sum(axis=1, keepdims=True)
    mixes: Numbers = np.where(totals > 0, table, table.sum(axis=0)) / np.where(
        totals > 0, totals, max(table.sum(), 1)
    )
    return mixes


def jensen_shannon(p: Numbers, q: Numbers) -> float:
    """The distance between two distributions: 0 if equal, 1 if they have no class in common."""
    from scipy.special import rel_entr

    middle = (p + q) / 2
    nats = float(rel_entr(p, middle).sum() + rel_entr(q, middle).sum()) / 2
    return float(np.sqrt(max(nats / np.log(2), 0.0)))


def earth_movers(p: Numbers, q: Numbers) -> float:
    """The share of one distribution that must move to another class to make the other."""
    return float(np.abs(p - q).sum() / 2)


def shared_patients(partition: Partition, labels: Labels) -> int | None:
    """How many patients have images at two clients or more."""
    if labels.patients is None:
        return None
    everyone = np.concatenate(
        [np.unique(labels.patients[shard.rows]) for shard in partition.shards]
    )
    _, clients = np.unique(everyone, return_counts=True)
    return int((clients > 1).sum())
