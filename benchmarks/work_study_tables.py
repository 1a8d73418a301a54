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

from benchmarks.registration import registration_lines
from benchmarks.work_study import (
    HEAD,
    PARTITIONS,
    RULES,
    SHARES,
    VARIED_PARTITIONS,
    VARIED_TIMES,
    WORKS,
    Cell,
    Design,
    Outcome,
    Where,
    chosen_rates,
    read_rows,
)
from feddraw.analysis.statistics import holm

Floats = NDArray[np.float64]
Results = Mapping[Where, Mapping[int, Outcome]]  # by split
Name = TypeVar("Name", bound=Hashable)

REGISTRATION = "studies/work-weights-similarity.md"
ANSWERED = "natural"  # the partition that the question is answered from
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


def estimated(gaps: Mapping[Name, Mapping[int, float]]) -> dict[Name, Estimate]:
    """A family with its correction; what has fewer than two splits is left out."""
    enough = {name: by_split for name, by_split in gaps.items() if len(by_split) > 1}
    if not enough:
        return {}
    return corrected(
        {name: nadeau_bengio(np.array(list(values.values()))) for name, values in enough.items()}
    )


# ------------------------------------------------------------------------------------- the answers

W1 = "W1: uniform − FedAvg, equal epochs"
W2 = "W2: uniform − FedAvg, equal steps"
W3 = "W3: W1 − W2, what is work"
W4 = "W4: FedNova − FedAvg, equal epochs"


def weights_and_work(results: Results) -> dict[str, dict[str, Estimate]]:
    """W1 to W4, each a family over the partitions."""
    return {
        W1: estimated(
            {p: difference(results, p, "epochs", "uniform", "fedavg") for p in PARTITIONS}
        ),
        W2: estimated(
            {p: difference(results, p, "steps", "uniform", "fedavg") for p in PARTITIONS}
        ),
        W3: estimated({p: difference_of_work(results, p) for p in PARTITIONS}),
        W4: estimated(
            {p: difference(results, p, "epochs", "fednova", "fedavg") for p in PARTITIONS}
        ),
    }


def work_was_manipulated(results: Results, partition: str) -> bool:
    """Whether the largest site took steps by its size with equal epochs, and an equal share of
    them with equal steps.
    """
    by_size = (partition, "epochs", "fedavg")
    of_images = mean_share(results, by_size, "largest_weight")
    of_epochs = mean_share(results, by_size, "largest_steps")
    equal = mean_share(results, (partition, "steps", "uniform"), "largest_weight")
    of_steps = mean_share(results, (partition, "steps", "fedavg"), "largest_steps")
    return of_epochs > of_images - STEPS_BELOW and abs(of_steps - equal) < STEPS_APART


def verdict_of_work(results: Results, partition: str, estimate: Estimate) -> str:
    """Of what is work, which is judged only where the work was as it was meant to be."""
    return estimate.verdict() if work_was_manipulated(results, partition) else "not judged"


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
    return estimated(
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


def moved_share(results: Results, contrast: Contrast) -> float:
    """Of the weight, which similarity moved in the first of two rules."""
    return mean_share(results, (contrast.partition, contrast.work, contrast.first), "from_constant")


# -------------------------------------------------------------------------- the answer in sentences

DECIDED = ("higher", "lower")


def three_sentences(results: Results) -> list[str]:
    """Weights, steps and similarity on the natural sites, by the registration's rules; a fourth
    where none of them is decided.
    """
    families = weights_and_work(results)
    weights = families[W2].get(ANSWERED)
    work = families[W3].get(ANSWERED)
    similarity = {
        contrast: estimate
        for contrast, estimate in contrasts(results, SIMILARITY).items()
        if contrast.partition == ANSWERED
    }
    if weights is None or work is None or not similarity:
        return ["Not answered: there are too few runs."]
    of_work = verdict_of_work(results, ANSWERED, work)
    judged = {
        contrast: similarity_verdict(estimate, moved_share(results, contrast))
        for contrast, estimate in similarity.items()
    }
    sentences = [
        _weights_sentence(weights),
        _steps_sentence(work, of_work),
        _similarity_sentence(results, similarity, judged),
    ]
    verdicts = {weights.verdict(), of_work, *judged.values()}
    if not verdicts & set(DECIDED):
        sentences.append(
            "So this data set cannot tell: no number of splits would decide a difference smaller"
            f" than ± {weights.floor:.4f} between weights, or ± {work.floor:.4f} by steps."
        )
    return sentences


def _weights_sentence(estimate: Estimate) -> str:
    what = (
        "with equal steps for all sites, the AUC of equal weights minus that of weights by size is"
    )
    verdict = estimate.verdict()
    start = f"Weights: {verdict}" if verdict in DECIDED else "Weights are not decided"
    return f"{start}: {what} {_in_words(estimate)}."


def _steps_sentence(estimate: Estimate, verdict: str) -> str:
    what = "equal epochs in place of equal steps change that difference by"
    start = f"Steps: {verdict}" if verdict in DECIDED else f"Steps are {verdict}"
    return f"{start}: {what} {_in_words(estimate)}."


def _similarity_sentence(
    results: Results, estimates: Mapping[Contrast, Estimate], judged: Mapping[Contrast, str]
) -> str:
    decided = [contrast for contrast, verdict in judged.items() if verdict in DECIDED]
    if decided:
        largest = max(decided, key=lambda contrast: abs(estimates[contrast].mean))
        return (
            f"Similarity: decided in {len(decided)} of {len(judged)} contrasts; the largest,"
            f" {largest.words()}, is {_in_words(estimates[largest])}, where similarity moved"
            f" {moved_share(results, largest):.1%} of the weight."
        )
    counts = {verdict: list(judged.values()).count(verdict) for verdict in judged.values()}
    listed = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    low = min(estimate.low for estimate in estimates.values())
    high = max(estimate.high for estimate in estimates.values())
    most = max(moved_share(results, contrast) for contrast in estimates)
    within = f"[{low:+.4f}, {high:+.4f}]".replace("-", "−")
    return (
        f"Similarity is not decided: of {len(judged)} contrasts {listed}; it moved at most"
        f" {most:.1%} of the weight, and all intervals lie within {within}."
    )


def _in_words(estimate: Estimate) -> str:
    p = p_text(estimate.holm_p)
    floor = f"floor ± {estimate.floor:.4f}; {estimate.splits} splits"
    return f"{interval_text(estimate)} (Holm's p {p}; {floor})"


def interval_text(estimate: Estimate) -> str:
    """Mean and interval, with minus signs as the pages have them."""
    text = f"{estimate.mean:+.4f} [{estimate.low:+.4f}, {estimate.high:+.4f}]"
    return text.replace("-", "−")


def p_text(p: float) -> str:
    """Of a table's cell; one that rounds to nothing is an upper bound."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


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
    rows = read_rows(HEAD, "run", folder)
    results = by_cell(rows)
    tables = [f"docs/data/{HEAD.name}-{stage}.csv" for stage in ("choose", "run", "vary")]
    parts = [registration_lines(REGISTRATION, tables), f"{len(rows):,} runs"]
    parts.append("**Answer, from the natural sites**\n\n" + "\n".join(three_sentences(results)))
    for name, estimates in weights_and_work(results).items():
        verdicts = {partition: estimate.verdict() for partition, estimate in estimates.items()}
        if name == W3:
            verdicts = {
                partition: verdict_of_work(results, partition, estimate)
                for partition, estimate in estimates.items()
            }
        parts.append(f"**{name}**\n\n{estimate_table('partition', estimates, verdicts)}")
    parts.append(f"**S: similarity**\n\n{_similarity_table(results)}")
    measuring = contrasts(results, DIAGNOSTICS)
    by_words = {contrast.words(): estimate for contrast, estimate in measuring.items()}
    found = {words: estimate.verdict() for words, estimate in by_words.items()}
    parts.append(f"**R: rules that measure**\n\n{estimate_table('rules', by_words, found)}")
    parts.append(f"**R: lower than neither**\n\n{_lower_than_neither_table(measuring)}")
    parts.append(f"**What was done to the weights**\n\n{manipulation_table(results)}")
    parts.append(f"**Where D varies**\n\n{_sources_table(read_rows(HEAD, 'vary', folder))}")
    parts.append(f"**Chosen learning rates**\n\n{chosen_rate_table(HEAD, folder)}")
    return "\n\n".join(parts) + "\n"


def _lower_than_neither_table(estimates: Mapping[Contrast, Estimate]) -> str:
    """What the rules that measure are good for: a rule must be lower than neither of the two that
    it chooses between. Not decided never means equal.
    """
    verdicts: dict[tuple[str, str], dict[str, str]] = {}
    for contrast, estimate in estimates.items():
        where = f"{contrast.partition}, {contrast.work}"
        by_other = verdicts.setdefault((contrast.first, where), {})
        by_other[contrast.second] = estimate.verdict()
    rows = []
    for (rule, where), by_other in sorted(verdicts.items()):
        fedavg = by_other.get("fedavg", "—")
        uniform = by_other.get("uniform", "—")
        good = "no" if "lower" in (fedavg, uniform) else "yes"
        rows.append([rule, where, fedavg, uniform, good])
    return _markdown(
        ["rule", "partition, work", "− FedAvg", "− uniform", "lower than neither"], rows
    )


def chosen_rate_table(design: Design, folder: Path) -> str:
    """The chosen rates; one at the end of those that were tried is marked."""
    ends = {min(design.rates): " (lowest tried)", max(design.rates): " (highest tried)"}
    rates = chosen_rates(read_rows(design, "choose", folder))
    rows = [
        [", ".join(where), f"{rate:g}{ends.get(rate, '')}"] for where, rate in sorted(rates.items())
    ]
    return _markdown(["partition, work, rule", "learning rate"], rows)


ESTIMATE_COLUMNS = ("difference [95 %]", "Holm's p", "SD", "floor", "splits", "verdict")


def _estimate_cells(estimate: Estimate, verdict: str) -> list[str]:
    return [
        interval_text(estimate),
        p_text(estimate.holm_p),
        f"{estimate.spread:.4f}",
        f"± {estimate.floor:.4f}",
        str(estimate.splits),
        verdict,
    ]


def estimate_table(
    first: str, estimates: Mapping[str, Estimate], verdicts: Mapping[str, str]
) -> str:
    rows = [
        [name, *_estimate_cells(estimate, verdicts[name])] for name, estimate in estimates.items()
    ]
    return _markdown([first, *ESTIMATE_COLUMNS], rows)


def _similarity_table(results: Results) -> str:
    rows = []
    for contrast, estimate in contrasts(results, SIMILARITY).items():
        moved = moved_share(results, contrast)
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


def manipulation_table(results: Results) -> str:
    rows = []
    for partition in PARTITIONS:
        for work in WORKS:
            for rule in RULES:
                where = (partition, work, rule)
                if where in results:
                    shares = [mean_share(results, where, name) for name in SHARE_COLUMNS]
                    cells = ["—" if math.isnan(share) else f"{share:.4f}" for share in shares]
                    aucs = [outcome.test_auc for outcome in results[where].values()]
                    rows.append([", ".join(where), f"{np.nanmean(aucs):.4f}", *cells])
    return _markdown(["partition, work, rule", "test AUC", *SHARE_COLUMNS.values()], rows)


def mean_share(results: Results, where: Where, name: str) -> float:
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
