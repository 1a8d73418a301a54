"""What studies/work-weights-similarity.md says of its runs, from the tables in docs/data alone.

    python -m benchmarks.work_study tables

The splits share patients, so their differences are not independent: intervals and p are those of
Nadeau and Bengio (2003), with 1/n + test images / training images in place of 1/n. However many
splits there are, an interval cannot be shorter than that of the second term, its floor.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.work_study import (
    PARTITIONS,
    RULES,
    SHARES,
    VARIED_PARTITIONS,
    VARIED_TIMES,
    WORKS,
    Cell,
    Outcome,
    Where,
    read_rows,
)
from feddraw.analysis.statistics import holm

Floats = NDArray[np.float64]
Results = Mapping[Where, Mapping[int, Outcome]]  # by split
Name = TypeVar("Name", bound=Hashable)

LEVEL = 0.05
OVERLAP = SHARES[2] / SHARES[0]  # test images by training images
EQUIVALENT = 0.002  # of AUC: similarity makes no difference that matters if it is smaller
ADMINISTERED = 0.01  # of the weight: similarity that moves less was no treatment
# Of the steps of the largest site: with equal epochs its share may be so much below that of its
# images, with equal steps so far from an equal one.
STEPS_BELOW = 0.05
STEPS_APART = 0.01

# Similarity: a rule beside the same one without it.
SIMILARITY = (
    ("feddraw", "constant"),
    ("feddraw", "shuffled"),
    ("move", "constant"),
    ("alone x 10", "alone, constant"),
    ("alone x 50", "alone, constant"),
)
# Rules that measure how much the sites differ, beside both rules that they choose between.
DIAGNOSTICS = tuple(
    product(("random_effects", "random_effects+fednova", "label_gate"), ("fedavg", "uniform"))
)


# ------------------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Estimate:
    """A mean difference over splits."""

    mean: float
    low: float  # 95 %, Nadeau and Bengio
    high: float
    p: float
    spread: float  # standard deviation over splits
    floor: float  # half-width that no number of splits goes below
    splits: int
    holm_p: float = math.nan

    def verdict(self) -> str:
        """Of a difference, after Holm's correction."""
        if math.isnan(self.holm_p) or self.holm_p >= LEVEL:
            return "not decided"
        return "higher" if self.mean > 0 else "lower"


def nadeau_bengio(differences: Floats) -> Estimate:
    """Mean, interval and p of paired differences over splits that share patients."""
    count = len(differences)
    mean = float(differences.mean())
    spread = float(differences.std(ddof=1))
    quantile = float(stats.t.ppf(1 - LEVEL / 2, count - 1))
    error = spread * math.sqrt(1 / count + OVERLAP)
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    reach = quantile * error
    floor = quantile * spread * math.sqrt(OVERLAP)
    return Estimate(mean, mean - reach, mean + reach, p, spread, floor, count)


def corrected(estimates: Mapping[Name, Estimate]) -> dict[Name, Estimate]:
    """With Holm's p over a family."""
    p = holm([estimate.p for estimate in estimates.values()]).tolist()
    return {
        name: replace(estimate, holm_p=value)
        for (name, estimate), value in zip(estimates.items(), p, strict=True)
    }


def by_cell(rows: Sequence[tuple[Cell, Outcome]]) -> Results:
    """The runs of the main stage, by what was compared and split."""
    results: dict[Where, dict[int, Outcome]] = {}
    for cell, outcome in rows:
        results.setdefault((cell.partition, cell.work, cell.rule), {})[cell.split] = outcome
    return results


def difference(
    results: Results, partition: str, work: str, first: str, second: str
) -> dict[int, float]:
    """Test AUC of the first rule minus the second, by split that has both and where both are
    numbers.
    """
    ours = results.get((partition, work, first), {})
    theirs = results.get((partition, work, second), {})
    gaps = {
        split: ours[split].test_auc - theirs[split].test_auc for split in ours if split in theirs
    }
    return {split: gap for split, gap in gaps.items() if math.isfinite(gap)}


def difference_of_work(results: Results, partition: str) -> dict[int, float]:
    """What uniform weights gain over those by size with equal epochs, minus the same with equal
    steps.
    """
    epochs = difference(results, partition, "epochs", "uniform", "fedavg")
    steps = difference(results, partition, "steps", "uniform", "fedavg")
    return {split: epochs[split] - steps[split] for split in epochs if split in steps}


def _estimated(gaps: Mapping[Name, Mapping[int, float]]) -> dict[Name, Estimate]:
    """A family with its correction; what has fewer than two splits is left out."""
    enough = {name: by_split for name, by_split in gaps.items() if len(by_split) > 1}
    if not enough:
        return {}
    return corrected(
        {name: nadeau_bengio(np.array(list(values.values()))) for name, values in enough.items()}
    )


# ------------------------------------------------------------------------------------- the answers

W3 = "W3: W1 − W2, what is work"


def weights_and_work(results: Results) -> dict[str, dict[str, Estimate]]:
    """W1 to W3, each a family over the partitions."""
    return {
        "W1: uniform − FedAvg, equal epochs": _estimated(
            {p: difference(results, p, "epochs", "uniform", "fedavg") for p in PARTITIONS}
        ),
        "W2: uniform − FedAvg, equal steps": _estimated(
            {p: difference(results, p, "steps", "uniform", "fedavg") for p in PARTITIONS}
        ),
        W3: _estimated({p: difference_of_work(results, p) for p in PARTITIONS}),
        "W4: FedNova − FedAvg, equal epochs": _estimated(
            {p: difference(results, p, "epochs", "fednova", "fedavg") for p in PARTITIONS}
        ),
    }


def work_was_manipulated(results: Results, partition: str) -> bool:
    """Whether the largest site took steps by its size with equal epochs, and an equal share of
    them with equal steps.
    """
    by_size = (partition, "epochs", "fedavg")
    of_images = _mean_share(results, by_size, "largest_weight")
    of_epochs = _mean_share(results, by_size, "largest_steps")
    equal = _mean_share(results, (partition, "steps", "uniform"), "largest_weight")
    of_steps = _mean_share(results, (partition, "steps", "fedavg"), "largest_steps")
    return of_epochs > of_images - STEPS_BELOW and abs(of_steps - equal) < STEPS_APART


class Contrast(NamedTuple):
    """Two rules, first minus second, under the same partition and work."""

    first: str
    second: str
    partition: str
    work: str

    def words(self) -> str:
        return f"{self.first} − {self.second}; {self.partition}, {self.work}"


def contrasts(results: Results, pairs: Sequence[tuple[str, str]]) -> dict[Contrast, Estimate]:
    """These pairs of rules under every partition and work, one family."""
    family = [
        Contrast(*pair, partition, work)
        for pair, partition, work in product(pairs, PARTITIONS, WORKS)
    ]
    return _estimated(
        {
            contrast: difference(
                results, contrast.partition, contrast.work, contrast.first, contrast.second
            )
            for contrast in family
        }
    )


def similarity_verdict(estimate: Estimate, moved: float) -> str:
    """What can be said of similarity, which moved this share of the weight."""
    if moved < ADMINISTERED:
        return "not administered"
    if estimate.verdict() != "not decided":
        return estimate.verdict()
    if estimate.low > -EQUIVALENT and estimate.high < EQUIVALENT:
        return f"within {EQUIVALENT:g}"
    return "not decided"


# -------------------------------------------------------------------------------- where it varies


@dataclass(frozen=True)
class Sources:
    """Variances of a difference by what was drawn anew."""

    split: float
    head: float
    order: float


def variance_by_source(values: Floats) -> Sources:
    """From values by (split, head, order), each head and order drawn within the one before: the
    estimates of the nested analysis of variance, which may be below zero.
    """
    splits, heads, orders = values.shape
    of_head = values.mean(axis=2)
    of_split = of_head.mean(axis=1)
    within_head = float(((values - of_head[:, :, None]) ** 2).sum()) / (
        splits * heads * (orders - 1)
    )
    within_split = (
        orders * float(((of_head - of_split[:, None]) ** 2).sum()) / (splits * (heads - 1))
    )
    between = heads * orders * float(of_split.var(ddof=1))
    return Sources(
        split=(between - within_split) / (heads * orders),
        head=(within_split - within_head) / orders,
        order=within_head,
    )


def varied_differences(rows: Sequence[tuple[Cell, Outcome]], partition: str, work: str) -> Floats:
    """Uniform minus FedAvg by (split, head, order); only whole splits."""
    found: dict[tuple[int, int, int], dict[str, float]] = {}
    for cell, outcome in rows:
        if (cell.partition, cell.work) == (partition, work):
            place = (cell.split, cell.head, cell.order)
            found.setdefault(place, {})[cell.rule] = outcome.test_auc
    gaps: dict[int, list[float]] = {}
    for (split, _, _), by_rule in sorted(found.items()):
        if {"uniform", "fedavg"} <= by_rule.keys():
            gaps.setdefault(split, []).append(by_rule["uniform"] - by_rule["fedavg"])
    whole = [values for values in gaps.values() if len(values) == VARIED_TIMES**2]
    return np.array(whole).reshape(len(whole), VARIED_TIMES, VARIED_TIMES)


# ------------------------------------------------------------------------------------------ tables


def all_tables(folder: Path) -> str:
    """Every table, in Markdown; one that has no runs yet says so."""
    rows = read_rows("run", folder)
    results = by_cell(rows)
    parts = [f"{len(rows):,} runs"]
    for name, estimates in weights_and_work(results).items():
        verdicts = {partition: estimate.verdict() for partition, estimate in estimates.items()}
        if name == W3:
            unmoved = [where for where in estimates if not work_was_manipulated(results, where)]
            verdicts |= dict.fromkeys(unmoved, "not judged")
        parts.append(f"**{name}**\n\n{_estimate_table('partition', estimates, verdicts)}")
    parts.append(f"**S: similarity**\n\n{_similarity_table(results)}")
    measuring = {
        contrast.words(): estimate for contrast, estimate in contrasts(results, DIAGNOSTICS).items()
    }
    found = {words: estimate.verdict() for words, estimate in measuring.items()}
    parts.append(f"**R: rules that measure**\n\n{_estimate_table('rules', measuring, found)}")
    parts.append(f"**What was done to the weights**\n\n{_manipulation_table(results)}")
    parts.append(f"**Where D varies**\n\n{_sources_table(read_rows('vary', folder))}")
    return "\n\n".join(parts) + "\n"


ESTIMATE_COLUMNS = ("difference [95 %]", "Holm's p", "SD", "floor", "splits", "verdict")


def _estimate_cells(estimate: Estimate, verdict: str) -> list[str]:
    return [
        f"{estimate.mean:+.4f} [{estimate.low:+.4f}, {estimate.high:+.4f}]",
        f"{estimate.holm_p:.3f}",
        f"{estimate.spread:.4f}",
        f"± {estimate.floor:.4f}",
        str(estimate.splits),
        verdict,
    ]


def _estimate_table(
    first: str, estimates: Mapping[str, Estimate], verdicts: Mapping[str, str]
) -> str:
    rows = [
        [name, *_estimate_cells(estimate, verdicts[name])] for name, estimate in estimates.items()
    ]
    return _markdown([first, *ESTIMATE_COLUMNS], rows)


def _similarity_table(results: Results) -> str:
    rows = []
    for contrast, estimate in contrasts(results, SIMILARITY).items():
        where = (contrast.partition, contrast.work, contrast.first)
        moved = _mean_share(results, where, "from_constant")
        verdict = similarity_verdict(estimate, moved)
        cells = _estimate_cells(estimate, verdict)
        rows.append([contrast.words(), f"{100 * moved:.2f} %", *cells])
    return _markdown(["rules; partition, work", "weight moved", *ESTIMATE_COLUMNS], rows)


SHARE_COLUMNS = {
    "from_size": "from size",
    "from_equal": "from equal",
    "from_constant": "by similarity",
    "largest_weight": "largest: weight",
    "largest_influence": "influence",
    "largest_steps": "steps",
}


def _manipulation_table(results: Results) -> str:
    rows = []
    for partition in PARTITIONS:
        for work in WORKS:
            for rule in RULES:
                where = (partition, work, rule)
                if where in results:
                    shares = [_mean_share(results, where, name) for name in SHARE_COLUMNS]
                    cells = ["—" if math.isnan(share) else f"{share:.4f}" for share in shares]
                    aucs = [outcome.test_auc for outcome in results[where].values()]
                    rows.append([", ".join(where), f"{np.nanmean(aucs):.4f}", *cells])
    return _markdown(["partition, work, rule", "test AUC", *SHARE_COLUMNS.values()], rows)


def _mean_share(results: Results, where: Where, name: str) -> float:
    return float(np.mean([getattr(outcome, name) for outcome in results[where].values()]))


def _sources_table(rows: Sequence[tuple[Cell, Outcome]]) -> str:
    lines = []
    for partition in VARIED_PARTITIONS:
        for work in WORKS:
            values = varied_differences(rows, partition, work)
            if len(values) > 1:
                sources = variance_by_source(values)
                deviations = [
                    f"{math.copysign(math.sqrt(abs(variance)), variance):.4f}"
                    for variance in vars(sources).values()
                ]
                lines.append([f"{partition}, {work}", *deviations, str(len(values))])
    header = ["partition, work", "SD of splits", "of heads", "of orders", "splits"]
    return _markdown(header, lines)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "not run"
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
