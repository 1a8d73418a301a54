"""Dealing whole patients: no patient at two clients, sizes and quotas still exact.

Patients with most images are placed first, because single images fill any gap that is left. A
patient goes to a client drawn in proportion to what the client still needs. Where that leaves gaps,
patients that nobody has are dealt in part and their other images stay out of the federation.
Packing is greedy: it may fail where an exact answer exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError

NOBODY = -1


def deal_whole_patients(
    patients: NDArray[np.intp],
    marked: NDArray[np.bool_],
    needs: NDArray[np.intp],
    raw: NDArray[np.uint64],
) -> NDArray[np.intp]:
    """The client of every image, or NOBODY.

    `needs` (clients, 2): how many marked and unmarked images each must get.
    """
    counts = np.column_stack(
        [np.bincount(patients, marked), np.bincount(patients, ~marked)]
    ).astype(np.intp)
    packing = _PatientPlacement(needs, counts)
    packing.place_whole(raw)
    packing.fill_gaps()
    packing.require_full()
    used = packing.used[patients, np.where(marked, 0, 1)]
    return np.where(
        _place_among_patients_images(patients, marked) < used, packing.owner[patients], NOBODY
    )


def _place_among_patients_images(
    patients: NDArray[np.intp], marked: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """How many images of the same patient and mark come before this one."""
    kind = patients * 2 + marked
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], kind[order])
    turn = np.empty_like(kind)
    turn[order] = np.arange(len(kind)) - starts
    return turn


class _PatientPlacement:
    """Who has which patient while they are handed out."""

    def __init__(self, needs: NDArray[np.intp], counts: NDArray[np.intp]) -> None:
        surplus = counts.sum(axis=0) - needs.sum(axis=0)
        self.needs = [
            (int(a), int(b)) for a, b in [*needs, surplus]
        ]  # the last one stands for leaving images out
        self.left = [list(need) for need in self.needs]
        self.counts = [(int(a), int(b)) for a, b in counts]
        self.order = np.argsort(-counts.sum(axis=1), kind="stable").tolist()
        self.owner = np.full(len(counts), NOBODY)
        self.used = np.zeros_like(counts)

    def place_whole(self, raw: NDArray[np.uint64]) -> None:
        """Each patient to somebody who can take all of its images."""
        for patient, chance in zip(self.order, raw.tolist(), strict=False):
            if takers := self._takers(patient):
                weights = list(accumulate(weight for _, weight in takers))
                turn = next(i for i, weight in enumerate(weights) if chance % weights[-1] < weight)
                self._give(patient, takers[turn][0], self.counts[patient])

    def _takers(self, patient: int) -> list[tuple[int, int]]:
        """Who has room for the patient, and how much is still missing there of the patient's
        scarcer kind.
        """
        with_mark, without = self.counts[patient]
        kind = 0 if with_mark else 1
        room = [i for i, (a, b) in enumerate(self.left) if with_mark <= a and without <= b]
        # a patient's unmarked images must not use up a client's room faster than the marked ones
        # fill its quota
        steady = [i for i in room if self._keeps_pace(i, with_mark, without)] if with_mark else room
        return [(i, self.left[i][kind]) for i in steady or room]

    def _keeps_pace(self, client: int, with_mark: int, without: int) -> bool:
        (quota, rest), (marked_left, rest_left) = self.needs[client], self.left[client]
        return (rest_left - without) * quota >= (marked_left - with_mark) * rest

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
                offers = [
                    list(map(min, self.counts[patient], self.left[client])) for client in short
                ]
                best = max(range(len(short)), key=lambda i: sum(offers[i]))
                if sum(offers[best]):
                    self._give(patient, short[best], offers[best])

    def require_full(self) -> None:
        marked, rest = (sum(left[kind] for left in self.left[:-1]) for kind in (0, 1))
        if marked or rest:
            short = (
                f"{marked:,} positives and {rest:,} other images" if marked else f"{rest:,} images"
            )
            advice = "use a lower share or scale, or leave patient_disjoint out"
            raise UserError(
                f"whole patients do not add up to these clients, {short} are missing: {advice}"
            )
