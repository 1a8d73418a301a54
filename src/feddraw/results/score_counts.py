"""Counts of images by score, as the server of a federation keeps them in `counts.safetensors` where
it has no images of its own: by split, label and finding, for all images and for subgroups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddraw.results.run_folder import RunFolder

# Bins of the logit, which spreads rare findings' small probabilities out; beyond NARROW they grow
# with it, as few scores are there.
BINS = 2048
REACH = 16.0
NARROW = 4.0
_STEPS = np.linspace(-1, 1, 2 * BINS + 1) * np.arcsinh(REACH / NARROW)
BIN_EDGES = NARROW * np.sinh(_STEPS[2:-1:2])
MOST_COUNTS_BYTES = 2**30
# Of a split's images, once for each finding: measures are made of a row for each.
MOST_COUNTED = 5_000_000

Histograms = NDArray[np.int64]  # (2, findings, bins): negative and positive images
# (subgroups, 2, findings, bins)
SubgroupHistograms = NDArray[np.int64]
Calls = NDArray[np.int64]  # (classes, classes): images by class and called class


def bin_scores() -> NDArray[np.float64]:
    """The probability in the middle of each bin."""
    logits = NARROW * np.sinh(_STEPS[1::2])
    return np.asarray(1 / (1 + np.exp(-logits)))


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """The sums over the sites' counts after the last round."""

    findings: tuple[str, ...]
    by_split: Mapping[str, Histograms]
    # names and values of the groupings whose subgroups are counted, in the order of the counts
    groupings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subgroups_by_split: Mapping[str, SubgroupHistograms] = field(default_factory=dict)
    # of each site in clear, by split; none under secure sums
    by_site: Mapping[str, Mapping[str, Histograms]] = field(default_factory=dict)
    # of tasks that call one class: images by class and called class, of all and of each site
    calls_by_split: Mapping[str, Calls] = field(default_factory=dict)
    calls_by_site: Mapping[str, Mapping[str, Calls]] = field(default_factory=dict)
    least_patients: int = 0  # a site leaves out a finding of a subgroup with fewer
    secure: bool = False

    def subgroups(self, split: str) -> list[tuple[str, str, Histograms]]:
        """Grouping, value and counts of each subgroup."""
        names = [(name, value) for name, values in self.groupings.items() for value in values]
        counted = self.subgroups_by_split.get(split)
        if counted is None:
            return []
        return [(name, value, counted[place]) for place, (name, value) in enumerate(names)]

    def content(self) -> bytes:
        """As a file."""
        arrays = {f"{split}.counts": counts for split, counts in self.by_split.items()}
        for split, counts in self.subgroups_by_split.items():
            arrays[f"{split}.subgroups"] = counts
        for number, (site, of_site) in enumerate(self.by_site.items()):
            for split, counts in of_site.items():
                arrays[f"{split}.site.{number}"] = counts
            for split, calls in self.calls_by_site.get(site, {}).items():
                arrays[f"{split}.site.{number}.calls"] = calls
        for split, calls in self.calls_by_split.items():
            arrays[f"{split}.calls"] = calls
        notes = {
            "findings": self.findings,
            "splits": list(self.by_split),
            "groupings": {name: list(values) for name, values in self.groupings.items()},
            "sites": list(self.by_site),
            "least_patients": self.least_patients,
            "secure": self.secure,
        }
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(contiguous, {"feddraw": json.dumps(notes)})

    def why_unmeasured(self, split: str) -> str:
        """Why no measures are made of a split's counts; empty if they are."""
        counted = int(self.by_split[split].sum())
        if counted <= MOST_COUNTED:
            return ""
        return (
            f"the sites counted {counted:,} scores of {split} images, and measures are made of at"
            f" most {MOST_COUNTED:,}"
        )

    @property
    def shapes_fit(self) -> bool:
        """Whether the arrays belong together and hold counts."""
        one = (2, len(self.findings), BINS)
        parts = sum(len(values) for values in self.groupings.values())
        square = (len(self.findings), len(self.findings))
        every = [
            *((calls, square) for calls in self.calls_by_split.values()),
            *((calls, square) for of in self.calls_by_site.values() for calls in of.values()),
            *((counts, one) for counts in self.by_split.values()),
            *((counts, (parts, *one)) for counts in self.subgroups_by_split.values()),
            *((counts, one) for of_site in self.by_site.values() for counts in of_site.values()),
        ]
        return all(
            counts.shape == shape and counts.dtype.kind in "iu" and not (counts < 0).any()
            for counts, shape in every
        )


def read_score_counts(run: Path) -> ScoreCounts | None:
    """What a run's folder holds, where it holds counts as a server writes them."""
    path = RunFolder(run).counts
    with suppress(
        SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError
    ):
        if not path.is_file() or path.stat().st_size > MOST_COUNTS_BYTES:
            return None
        with safe_open(path, "np") as file:
            notes: Any = json.loads(file.metadata()["feddraw"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        splits = [str(split) for split in notes["splits"]]
        counts = ScoreCounts(
            findings=tuple(map(str, notes["findings"])),
            by_split={split: arrays[f"{split}.counts"] for split in splits},
            groupings={
                str(name): tuple(map(str, values)) for name, values in notes["groupings"].items()
            },
            subgroups_by_split={
                split: arrays[f"{split}.subgroups"]
                for split in splits
                if f"{split}.subgroups" in arrays
            },
            by_site={
                str(site): {split: arrays[f"{split}.site.{number}"] for split in splits}
                for number, site in enumerate(notes["sites"])
            },
            calls_by_split={
                split: arrays[f"{split}.calls"] for split in splits if f"{split}.calls" in arrays
            },
            calls_by_site={
                str(site): {
                    split: arrays[f"{split}.site.{number}.calls"]
                    for split in splits
                    if f"{split}.site.{number}.calls" in arrays
                }
                for number, site in enumerate(notes["sites"])
            },
            least_patients=int(notes["least_patients"]),
            secure=bool(notes["secure"]),
        )
        return counts if counts.shapes_fit else None
    return None
