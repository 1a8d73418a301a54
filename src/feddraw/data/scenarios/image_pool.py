"""The images that clients are drawn from: shuffled in the same way on every machine, and split by
exact counts, single or by patient.

Images are put in the order of their names, then ordered by raw 64-bit numbers of PCG64: unlike a
Generator's distribution methods, these do not change between versions of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Labels
from feddraw.data.scenarios.client_sizes import scaled_count
from feddraw.data.scenarios.partition import Rows
from feddraw.data.scenarios.whole_patients import assign_whole_patients
from feddraw.errors import UserError, at_least


@dataclass(frozen=True, eq=False)
class ImagePool:
    """Images in random order, so that whoever takes the first ones takes some at random."""

    labels: Labels
    rows: Rows
    stream: np.random.PCG64  # for what else is left to chance
    by_patient: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def units(self) -> NDArray[np.intp]:
        """What goes to one client as a whole: per image its own number, or that of its patient."""
        if not self.by_patient or self.labels.patients is None:
            return np.arange(len(self))
        _, first, patient = np.unique(
            self.labels.patients[self.rows], return_index=True, return_inverse=True
        )
        # numbered as they turn up in the pool, so that their order is drawn as well
        return np.argsort(np.argsort(first))[patient]

    def raw(self, count: int) -> NDArray[np.uint64]:
        """The next numbers of the stream."""
        return self.stream.random_raw(count).astype(np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The next numbers of the stream as fractions, never 0 or 1."""
        return ((self.raw(count) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53

    def only(self, chosen: NDArray[np.bool_]) -> ImagePool:
        """Some of the images (a mark per image of the pool), in the same order."""
        return replace(self, rows=self.rows[chosen])

    def draw(self, count: int) -> ImagePool:
        """A random part of this many images."""
        if count == len(self):
            return self
        (drawn,) = self.split([count])
        return self.only(np.isin(self.rows, drawn))

    def sample(self, scale: float, clients: int = 1, least: int = 0) -> ImagePool:
        """A random part of the images, at most all; enough for so many clients to have one, or this
        many each.
        """
        wanted = scaled_count(len(self), scale)
        if wanted > len(self):
            raise UserError(
                f"scale {scale:g} needs {wanted:,} images, the data has {len(self):,}: use a scale"
                " of 1 or less"
            )
        at_least("clients", clients, 1)
        if clients > max(wanted, 1):
            raise UserError(
                f"{clients:,} clients cannot share {wanted:,} images: use fewer clients or a larger"
                " scale"
            )
        if clients * least > wanted:
            need = f"{clients} clients of at least {least:,} images need {clients * least:,}"
            raise UserError(f"{need}, and there are {wanted:,}: use fewer clients or more data")
        return self.draw(wanted)

    def rarest_findings(self) -> NDArray[np.intp]:
        """One class per unit, for partitions made for single labels: 0 for the rarest finding of
        the data, 1 for the next, …, the number of findings for none.
        """
        values = self.labels.values
        from_rarest = np.argsort(values.sum(axis=0), kind="stable")
        present = values[self.rows][:, from_rarest].astype(bool)
        none = present.shape[1]
        of_image = np.where(present.any(axis=1), present.argmax(axis=1), none)
        units = self.units
        of_unit = np.full(units.max() + 1, none)
        np.minimum.at(of_unit, units, of_image)
        return of_unit

    def split(self, sizes: Sequence[int]) -> list[Rows]:
        """Random images for each client, exactly as many as it should have."""
        return self.split_by_quota(sizes, [0] * len(sizes), np.zeros(len(self), dtype=bool))

    def split_by_quota(
        self, sizes: Sequence[int], quotas: Sequence[int], marked: NDArray[np.bool_]
    ) -> list[Rows]:
        """Random images for each client, of which exactly its quota is marked (a mark per image of
        the pool).
        """
        needs = np.column_stack([quotas, np.subtract(sizes, quotas)]).astype(np.intp)
        if self.by_patient:
            owner = assign_whole_patients(self.units, marked, needs, self.raw(len(self)))
            return [self.rows[owner == client] for client in range(len(sizes))]
        stops = np.cumsum(needs, axis=0)[:-1]
        with_mark = np.split(self.rows[marked][: needs[:, 0].sum()], stops[:, 0])
        without = np.split(self.rows[~marked][: needs[:, 1].sum()], stops[:, 1])
        return [np.concatenate(parts) for parts in zip(with_mark, without, strict=True)]


def shuffled_pool(labels: Labels, seed: int, patient_disjoint: bool = False) -> ImagePool:
    """All images in an order that depends on their names and the seed only."""
    if patient_disjoint and labels.patients is None:
        raise UserError(
            "patient_disjoint needs the patient of each image, and this data has none: leave it out"
        )
    stream = np.random.PCG64(seed)
    by_name = np.argsort(labels.names, kind="stable")
    keys = stream.random_raw(len(labels)).astype(np.uint64)
    return ImagePool(labels, by_name[np.argsort(keys, kind="stable")], stream, patient_disjoint)
