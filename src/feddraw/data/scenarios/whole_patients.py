"""Whole patients for each client: no patient at two clients, sizes and quotas still exact.

Patients with most images are placed first, because single images fill any gap that is left. A
patient goes to a client drawn in proportion to what the client still needs. Where that leaves gaps,
a client gets a part of a patient that nobody has, whose other images stay out of the federation.
Packing is greedy: it may fail where an exact answer exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError

NOBODY = -1


def assign_whole_patients(
    patients: NDArray[np.intp],
    marked: NDArray[np.bool_],
    needs: NDArray[np.intp],
    raw: NDArray[np.uint64],
) -> NDArray[np.intp]:
    """The client of every image, or NOBODY.

    `needs` (clients, 2): how many marked and unmarked images each must get.
    """
    marked_images = np.bincount(patients, marked)
    other_images = np.bincount(patients, ~marked)
    placement = _Placement(needs, np.column_stack([marked_images, other_images]).astype(np.intp))
    placement.place_whole(raw)
    placement.fill_gaps()
    placement.require_full()
    used = placement.used[patients, np.where(marked, 0, 1)]
    turn = _turn_among_patients_images(patients, marked)
    return np.where(turn < used, placement.owner[patients], NOBODY)


def _turn_among_patients_images(
    patients: NDArray[np.intp], marked: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """How many images of the same patient and mark come before this one."""
    kind = patients * 2 + marked
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], kind[order])
    turn = np.empty_like(kind)
    turn[order] = np.arange(len(kind)) - starts
    return turn


class _Placement:
    """Who has which patient, while they are placed one by one."""

    def __init__(self, needs: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        surplus = counts.sum(axis=0) - needs.sum(axis=0)
        # the last one stands for leaving images out
        self.needs = [(int(marked), int(rest)) for marked, rest in [*needs, surplus]]
        self.left = [list(need) for need in self.needs]
        self.counts = [(int(marked), int(rest)) for marked, rest in counts]
        self.order = np.argsort(-counts.sum(axis=1), kind="stable").tolist()
        self.owner = np.full(len(counts), NOBODY)
        self.used = np.zeros_like(counts)

    def place_whole(self, raw: NDArray[np.uint64]) -> None:
        """Each patient to somebody who can take all of its images."""
        for patient, chance in zip(self.order, raw.tolist(), strict=False):
            takers = self._takers(patient)
            if takers:
                heaps = list(accumulate(missing for _, missing in takers))
                drawn = chance % heaps[-1]
                turn = next(turn for turn, heap in enumerate(heaps) if drawn < heap)
                client, _ = takers[turn]
                self._give(patient, client, self.counts[patient])

    def _takers(self, patient: int) -> list[tuple[int, int]]:
        """Clients that can take the patient, and how many images each still lacks of the patient's
        scarcer kind.
        """
        marked, rest = self.counts[patient]
        able = [
            client
            for client, (marked_left, rest_left) in enumerate(self.left)
            if marked <= marked_left and rest <= rest_left
        ]
        if marked:
            # a patient's unmarked images must not fill a client faster than the marked ones fill
            # its quota
            steady = [client for client in able if self._keeps_pace(client, marked, rest)]
            able = steady or able
        kind = 0 if marked else 1
        return [(client, self.left[client][kind]) for client in able]

    def _keeps_pace(self, client: int, marked: int, rest: int) -> bool:
        marked_need, rest_need = self.needs[client]
        marked_left, rest_left = self.left[client]
        return (rest_left - rest) * marked_need >= (marked_left - marked) * rest_need

    def _give(self, patient: int, client: int, images: Sequence[int]) -> None:
        self.left[client][0] -= images[0]
        self.left[client][1] -= images[1]
        if client < len(self.left) - 1:
            self.owner[patient] = client
            self.used[patient] = images

    def fill_gaps(self) -> None:
        """Clients that are still short take what they need of patients that nobody has."""
        clients = range(len(self.left) - 1)
        for patient in self.order:
            short = [client for client in clients if any(self.left[client])]
            if not short:
                return
            if self.owner[patient] == NOBODY:
                takes = {
                    client: list(map(min, self.counts[patient], self.left[client]))
                    for client in short
                }
                best = max(short, key=lambda client: sum(takes[client]))
                if sum(takes[best]):
                    self._give(patient, best, takes[best])

    def require_full(self) -> None:
        marked = sum(marked for marked, _ in self.left[:-1])
        rest = sum(rest for _, rest in self.left[:-1])
        if marked or rest:
            short = f"{rest:,} images"
            if marked:
                short = f"{marked:,} positives and {rest:,} other images"
            raise UserError(
                f"whole patients do not add up to these clients, {short} are missing: use a lower"
                " share or scale, or leave patient_disjoint out"
            )
