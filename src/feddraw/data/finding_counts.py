"""How many images of each split show each finding, and whether these are enough for an AUC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Dataset, Labels
from feddraw.text import join_names

# positive or negative test images below which an AUC says little: one image moves it by 0.1 or more
FEW_FOR_AUC = 10
NAMED_FINDINGS = 4  # of a client that lacks a class, in a line


def findings_per_split(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """What each split holds: images, patients and sites where they are known, and each finding's
    images by label.
    """
    splits: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        rows = dataset.rows[split]
        labels = dataset.labels.take(rows)
        splits[split] = _participants(labels)
        if labels.sites is not None:
            sites, images = np.unique(labels.sites, return_counts=True)
            splits[split]["sites"] = dict(zip(sites.tolist(), images.tolist(), strict=True))
            splits[split]["by_site"] = {
                site: _participants(labels.take(np.flatnonzero(labels.sites == site)))
                for site in sites.tolist()
            }
    return splits


def _participants(labels: Labels) -> dict[str, Any]:
    """Of some images: how many patients, where they are known, and each finding's images by
    label.
    """
    positives = labels.values.sum(axis=0, dtype=np.int64)
    known = labels.known_counts(np.arange(len(labels)))
    counts: dict[str, Any] = {
        "images": len(labels),
        "positives": positives.tolist(),
        "negatives": (known - positives).tolist(),
    }
    if labels.patients is not None:
        counts["patients"] = len(np.unique(labels.patients))
    return counts


def too_few_for_auc(split: Mapping[str, Any], place: int) -> bool:
    """Whether the AUC of a finding on these images says little."""
    return rarer_label_in_split(split, place) < FEW_FOR_AUC


def rarer_label_in_split(split: Mapping[str, Any], place: int) -> int:
    """Images of the rarer label of a finding."""
    return min(int(split["positives"][place]), int(split["negatives"][place]))


def dealt_in_words(images: int, dealt: int) -> str:
    """That clients get a part of the training images only; empty where they get all."""
    if dealt >= images:
        return ""
    return f"Train: the whole split; clients get {dealt:,} of its {images:,} images"


@dataclass(frozen=True)
class LabelWords:
    """How labels are spoken of: a task's columns are findings, classes, or something else."""

    one: str  # "finding"
    many: str
    all_show: str  # of a client's images, followed by the only label that they have
    none_shows: str
    without_positives: str  # what some clients lack, followed by their names
    without_negatives: str
    one_kind: str  # why a metric of a label is undefined
    counts: str  # its images in a split, with {positives} and {negatives}
    counts_header: str  # over such counts
    counts_note: str  # what they are, in a sentence
    both_counts: str  # over "positives / negatives" where a label is told from all else
    few: str  # when its metrics say little, with {few}
    no_positive: str  # what a group of images lacks, with {names}
    no_negative: str
    one_image: str  # when a metric has no interval, and when it is undefined


FINDING_WORDS = LabelWords(
    one="finding",
    many="findings",
    all_show="all show",
    none_shows="none shows a finding",
    without_positives="no positive training image of a finding",
    without_negatives="no negative training image of a finding",
    one_kind="only positives or only negatives",
    counts="{positives:,} / {negatives:,}",
    counts_header="positive / negative",
    counts_note="Positive / negative images",
    both_counts="positive / negative",
    few="fewer than {few} positive or {few} negative test images",
    no_positive="no positive image of {names}",
    no_negative="no negative image of {names}",
    one_image=(
        "None where a single image has the finding, or a single one has not. Undefined: none of"
        " them has it, or all have it."
    ),
)
CLASS_WORDS = LabelWords(
    one="class",
    many="classes",
    all_show="all are",
    none_shows="none has a class",
    without_positives="no training image of a class",
    without_negatives="training images of one class only",
    one_kind="no image of the class, or none of another,",
    counts="{positives:,}",
    counts_header="images of",
    counts_note="Images of each class",
    both_counts="of the class / of others",
    few="fewer than {few} test images of the class, or of all others",
    no_positive="no image of {names}",
    no_negative="images of {names} only",
    one_image=(
        "None where a single image is of the class, or a single one is not. Undefined: none of"
        " them is, or all are."
    ),
)


@dataclass(frozen=True)
class ClientCounts:
    """How many images a client has, and how many of them have and show each finding's label."""

    client: str
    images: int
    known: Sequence[int]  # by finding
    positives: Sequence[int]

    @staticmethod
    def of(client: str, labels: Labels, rows: NDArray[np.intp]) -> ClientCounts:
        """Of the client's rows."""
        positives = labels.values[rows].sum(axis=0, dtype=np.int64)
        return ClientCounts(
            client, len(rows), labels.known_counts(rows).tolist(), positives.tolist()
        )

    @property
    def one_class(self) -> bool:
        """Whether no finding has both positive and negative images here."""
        columns = zip(self.positives, self.known, strict=True)
        return all(positive in (0, known) for positive, known in columns)


def one_class_clients(
    clients: Sequence[ClientCounts], findings: Sequence[str], words: LabelWords = FINDING_WORDS
) -> Iterator[str]:
    """A sentence for each client whose images all have the same labels, which cannot teach what
    tells them apart.
    """
    every = sum(client.images for client in clients)
    for client in clients:
        if not client.one_class or len(clients) < 2:
            continue
        shown = [name for name, count in zip(findings, client.positives, strict=True) if count]
        which = f"{words.all_show} {join_names(shown)}" if shown else words.none_shows
        yield (
            f"{client.client} has one class only: {client.images:,} images"
            f" ({100 * client.images / every:.0f} % of all), {which}"
        )


def findings_of_one_class(
    clients: Sequence[ClientCounts], findings: Sequence[str], words: LabelWords = FINDING_WORDS
) -> str:
    """One line with the findings of which a client has no positive, or no negative image, though it
    has both of another finding; empty where there are none.
    """
    no_positive = []
    no_negative = []
    for client in clients:
        if client.one_class:
            continue  # it has a sentence of its own
        columns = list(zip(findings, client.positives, client.known, strict=True))
        if without := [name for name, positive, known in columns if known and not positive]:
            no_positive.append(f"{client.client} ({join_names(without, NAMED_FINDINGS)})")
        if without := [name for name, positive, known in columns if known and positive == known]:
            no_negative.append(f"{client.client} ({join_names(without, NAMED_FINDINGS)})")
    if len(clients) < 2:
        return ""
    said = []
    if no_positive:
        said.append(f"{words.without_positives}: {', '.join(no_positive)}")
    if no_negative:
        said.append(f"{words.without_negatives}: {', '.join(no_negative)}")
    return "; ".join(said)


def class_notes(
    clients: Sequence[ClientCounts], findings: Sequence[str], words: LabelWords = FINDING_WORDS
) -> list[str]:
    """What users should know of clients that lack a class, of all findings or of some."""
    notes = list(one_class_clients(clients, findings, words))
    if partly := findings_of_one_class(clients, findings, words):
        notes.append(partly)
    return notes


def split_counts_in_words(split: Mapping[str, Any], place: int, words: LabelWords) -> str:
    """Images of a label in a split, and those of which it is not known."""
    positives = split["positives"][place]
    negatives = split["negatives"][place]
    unknown = split["images"] - positives - negatives
    counts = words.counts.format(positives=positives, negatives=negatives)
    return counts + (f", {unknown:,} unknown" if unknown else "")


def few_in_words(words: LabelWords) -> str:
    few = words.few.format(few=FEW_FOR_AUC)
    return f"{few}: one image moves its AUC by {1 / FEW_FOR_AUC:g} or more"
