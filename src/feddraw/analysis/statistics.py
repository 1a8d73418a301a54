"""Do methods differ? Ranks over scenarios, Friedman, Nemenyi, Wilcoxon–Holm, effect sizes, paired bootstrap.

The procedure is Demšar's (Statistical comparisons of classifiers over multiple data sets, JMLR 2006). Where Friedman's
test does not reject, no pair is called different: all methods form one group. Pure functions of numbers.

A table that is printed with one decimal has ties that float arithmetic breaks: 0.3 - 0.2 is not 0.8 - 0.7. So means and
differences are rounded to multiples of the table's own last digit. Numbers of full precision are left as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from feddraw.errors import UserError, positive
from feddraw.old_names import names_moved_from

Floats = NDArray[np.float64]
Truth = NDArray[np.integer[Any]]

Measure = Callable[[Floats, Truth, Floats], Floats]  # of outputs, truth and weights: a value for each row of weights

__getattr__ = names_moved_from(__name__)

_PRINTED = 12  # digits: a number with more was computed, not printed
LARGE = 5_000  # test images from which on a replicate is computed from each image's part in the measure
_WIDE = 200  # columns of a product of matrices: one of ten takes four times as long by column
_BLOCK = 100  # bootstrap replicates at a time: a block of a few thousand images stays small


# ---------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, eq=False)
class Table:
    """One number for each scenario (a row) and method (a column)."""

    scenarios: tuple[str, ...]
    methods: tuple[str, ...]
    values: Floats
    given_steps: float | None = None  # left out: those of the values themselves

    @cached_property
    def steps(self) -> float:
        """All values are multiples of 1/steps; 0 for values of full precision."""
        return steps_in_one(self.values) if self.given_steps is None else self.given_steps

    def rows(self) -> dict[str, dict[str, float]]:
        """By scenario and method."""
        rows = zip(self.scenarios, self.values.tolist(), strict=True)
        return {scenario: dict(zip(self.methods, row, strict=True)) for scenario, row in rows}


def steps_in_one(values: ArrayLike) -> float:
    """10 for values with one decimal, 100 for two, …; 0 where a value has more digits than a printed table would."""
    numbers = np.unique(np.asarray(values, dtype=np.float64))
    decimals = 0
    for number in numbers.tolist():
        _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
        if not isinstance(exponent, int) or len(digits) > _PRINTED:
            return 0.0
        decimals = max(decimals, -exponent)
    steps = 10.0**decimals
    return steps if np.abs(numbers).max(initial=0.0) * steps < 10.0**_PRINTED else 0.0


def to_digits(table: Table, digits: int) -> Table:
    """Values with so many decimals: those that are printed alike are ties."""
    return Table(table.scenarios, table.methods, rounded(table.values, 10.0**digits), 10.0**digits)


def rounded(values: Floats, steps: float) -> Floats:
    """To multiples of 1/steps, the same float for the same number."""
    return np.rint(values * steps) / steps if steps else values


def tabulate(rows: Iterable[tuple[str, str, float]], *, steps: float | None = None) -> Table:
    """The table of tidy rows (scenario, method, value), in the order of first appearance; complete, or refused."""
    rows = list(rows)
    cells = {(scenario, method): value for scenario, method, value in rows}
    scenarios = tuple(dict.fromkeys(scenario for scenario, _ in cells))
    methods = tuple(dict.fromkeys(method for _, method in cells))
    twice = [cell for cell, times in Counter(row[:2] for row in rows).items() if times > 1]
    _refuse("more than one row for", twice, "give one, such as the mean over seeds")
    _refuse("no row for", [(s, m) for s in scenarios for m in methods if (s, m) not in cells], "complete the table")
    broken = [cell for cell, value in cells.items() if not math.isfinite(value)]
    _refuse("no finite number for", broken, "correct these")
    at_least_two("method", methods)
    at_least_two("scenario", scenarios)
    values = np.array([[cells[s, m] for m in methods] for s in scenarios], dtype=np.float64)
    return Table(scenarios, methods, values, steps)


def tabulate_repeats(rows: Iterable[tuple[str, str, str, float]]) -> Table:
    """The table of means over repeats (seeds) of rows (scenario, method, repeat, value); all have the same repeats."""
    cells = by_repeat(rows)
    repeats = list(dict.fromkeys(repeat for cell in cells.values() for repeat in cell))
    missing = [(*names, repeat) for names, cell in cells.items() for repeat in repeats if repeat not in cell]
    _refuse("no row for", missing, "complete the table")
    steps = steps_in_one([value for cell in cells.values() for value in cell.values()])
    means = [(*names, mean_of_repeats(list(cell.values()), steps)) for names, cell in cells.items()]
    return tabulate(means, steps=steps * len(repeats))


def mean_of_repeats(values: Sequence[float], steps: float) -> float:
    return float(np.rint(sum(values) * steps) / (steps * len(values)) if steps else np.mean(values))


def by_repeat(rows: Iterable[tuple[str, str, str, float]]) -> dict[tuple[str, str], dict[str, float]]:
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for scenario, method, repeat, value in rows:
        cell = cells.setdefault((scenario, method), {})
        if repeat in cell:
            raise UserError(f"more than one row for {scenario} {method} {repeat}: give one")
        cell[repeat] = value
    return cells


def _refuse(trouble: str, cells: Sequence[tuple[str, ...]], remedy: str) -> None:
    if cells:
        some = ", ".join(" ".join(cell) for cell in cells[:5])
        more = f" and {len(cells) - 5} more" if len(cells) > 5 else ""
        raise UserError(f"{trouble} {some}{more}: {remedy}")


def at_least_two(what: str, names: Sequence[str]) -> None:
    if len(names) < 2:
        have = f"one {what} only ({names[0]})" if names else f"no {what}"
        raise UserError(f"{have}: a comparison needs at least two")


# ---------------------------------------------------------------------------------------------------- many methods


@dataclass(frozen=True)
class Friedman:
    """Friedman's chi-square, corrected for ties, and Iman and Davenport's less conservative F of the same ranks."""

    statistic: float
    degrees: int
    p: float
    f_statistic: float  # infinite where all scenarios agree
    f_degrees: tuple[int, int]
    f_p: float


def rank(values: Floats, *, lower_is_better: bool = False) -> Floats:
    """Ranks within each row, 1 = best; equal values share their mean rank."""
    return np.asarray(stats.rankdata(values if lower_is_better else -values, axis=1), dtype=np.float64)


def friedman(ranks: Floats) -> Friedman:
    """Whether the methods' ranks differ at all. (scipy's own needs three methods, and fails where all values tie.)"""
    scenarios, methods = ranks.shape
    scatter = float(((ranks - (methods + 1) / 2) ** 2).sum())
    between = float(((ranks.sum(axis=0) - scenarios * (methods + 1) / 2) ** 2).sum())
    statistic = (methods - 1) * between / scatter if scatter else 0.0
    degrees = (methods - 1, (methods - 1) * (scenarios - 1))
    left = scenarios * (methods - 1) - statistic
    f_statistic = (scenarios - 1) * statistic / left if left > 1e-9 else math.inf
    p, f_p = float(stats.chi2.sf(statistic, degrees[0])), float(stats.f.sf(f_statistic, *degrees))
    return Friedman(statistic, degrees[0], p, f_statistic, degrees, f_p)


def nemenyi(ranks: Floats) -> Floats:
    """p of every pair (methods × methods) for the difference of average ranks."""
    scenarios, methods = ranks.shape
    average = ranks.mean(axis=0)
    gaps = np.abs(average[:, None] - average) / _unit(methods, scenarios)
    p = np.ones_like(gaps)
    upper = np.triu_indices(methods, 1)
    p[upper] = np.clip(stats.studentized_range.sf(gaps[upper] * math.sqrt(2), methods, np.inf), 0.0, 1.0)
    return np.asarray(np.minimum(p, p.T))


def critical_difference(methods: int, scenarios: int, alpha: float) -> float:
    """The gap of average ranks above which Nemenyi's test calls two methods different."""
    return critical_value(methods, alpha) * _unit(methods, scenarios)


def critical_value(methods: int, alpha: float) -> float:
    """Nemenyi's q: the studentised range over the square root of two."""
    return float(stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)


def _unit(methods: int, scenarios: int) -> float:
    return math.sqrt(methods * (methods + 1) / (6 * scenarios))


def groups(average_ranks: Sequence[float], difference: float) -> list[tuple[int, ...]]:
    """The largest sets of methods that are nowhere further apart than the difference: the bars of the diagram."""
    order = sorted(range(len(average_ranks)), key=lambda method: average_ranks[method])
    found: list[tuple[int, ...]] = []
    end = 0
    for start, best in enumerate(order):
        reach = sum(average_ranks[method] <= average_ranks[best] + difference + 1e-12 for method in order)
        if reach > max(end, start + 1):  # a bar joins two or more, and is not part of the one before
            found.append(tuple(order[start:reach]))
            end = reach
    return found


# ---------------------------------------------------------------------------------------------------- two methods


@dataclass(frozen=True)
class Pair:
    """Two methods over the same scenarios, the one with the better average rank first."""

    first: str
    second: str
    rank_gap: float
    nemenyi_p: float
    significant: bool  # by Nemenyi's test, at the comparison's alpha
    wilcoxon_p: float
    holm_p: float  # the same, corrected for all pairs
    mean_difference: float  # first minus second, in the table's unit
    rank_biserial: float  # 1: the first is better wherever they differ; -1: the second
    wins: int
    ties: int
    losses: int


def wilcoxon(first: Floats, second: Floats, steps: float = 0.0) -> float:
    """p of the signed-rank test, two-sided; 1 where nothing differs. Values may be multiples of 1/steps."""
    differences = rounded(first - second, steps)
    if len(differences) <= 13:
        return _exact_signed_rank(differences[differences != 0])
    return float(stats.wilcoxon(differences).pvalue) if differences.any() else 1.0


def _exact_signed_rank(differences: Floats) -> float:
    """As scipy has it up to 13 pairs, but with ties hundreds of times faster: all signs, counted by their rank sum."""
    doubled = np.rint(2 * stats.rankdata(np.abs(differences))).astype(np.int64)  # tied ranks can be halves
    ways = np.ones(1)
    for step in doubled:
        ways = np.pad(ways, (0, step)) + np.pad(ways, (step, 0))
    observed = int(doubled[differences > 0].sum())
    tail = min(ways[: observed + 1].sum(), ways[observed:].sum())
    return min(1.0, 2 * float(tail) / 2.0 ** len(doubled))


def holm(p: ArrayLike) -> Floats:
    """p-values corrected for their number, step by step from the smallest."""
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)), 1.0)
    return adjusted


def rank_biserial(first: Floats, second: Floats, steps: float = 0.0) -> float:
    """The matched-pairs effect size: share of ranks for the first minus share for the second, from -1 to 1."""
    differences = rounded(first - second, steps)
    differences = differences[differences != 0]
    ranks = stats.rankdata(np.abs(differences))
    return float((ranks * np.sign(differences)).sum() / ranks.sum()) if len(differences) else 0.0


# ---------------------------------------------------------------------------------------------------- all together


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that the ranks of a table say."""

    table: Table
    alpha: float
    lower_is_better: bool
    ranks: Floats
    friedman: Friedman
    difference: float  # critical, of average ranks
    groups: tuple[tuple[str, ...], ...]
    pairs: tuple[Pair, ...]  # from the best method down

    @property
    def average_ranks(self) -> dict[str, float]:
        """By method, the best first."""
        average = zip(self.table.methods, self.ranks.mean(axis=0).tolist(), strict=True)
        return dict(sorted(average, key=lambda one: one[1]))

    @property
    def first_places(self) -> dict[str, int]:
        """In how many scenarios each method is best, alone or with others."""
        best = self.ranks == self.ranks.min(axis=1, keepdims=True)
        return dict(zip(self.table.methods, best.sum(axis=0).tolist(), strict=True))

    def pair(self, one: str, other: str) -> Pair:
        return next(pair for pair in self.pairs if {pair.first, pair.second} == {one, other})

    def beaten_by(self, method: str) -> list[str]:
        """Which methods this one is significantly better than."""
        return [pair.second for pair in self.pairs if pair.first == method and pair.significant]


def compare(table: Table, *, alpha: float = 0.05, lower_is_better: bool = False) -> Comparison:
    """Rank, test, and compare every pair."""
    check_level(alpha)
    ranks = rank(table.values, lower_is_better=lower_is_better)
    scenarios, methods = ranks.shape
    overall = friedman(ranks)
    difference = critical_difference(methods, scenarios, alpha)
    reach = difference if overall.p < alpha else math.inf  # after Friedman alone has spoken
    joined = groups(ranks.mean(axis=0).tolist(), reach)
    names = tuple(tuple(table.methods[method] for method in group) for group in joined)
    pairs = tuple(_pairs(table, ranks, reach, lower_is_better))
    return Comparison(table, alpha, lower_is_better, ranks, overall, difference, names, pairs)


def check_level(alpha: float) -> None:
    if positive("alpha", alpha) >= 1:
        raise UserError(f"alpha must be below 1, not {alpha}")


def _pairs(table: Table, ranks: Floats, reach: float, lower_is_better: bool) -> Iterator[Pair]:
    average = ranks.mean(axis=0)
    together = list(combinations(np.argsort(average, kind="stable").tolist(), 2))
    p = nemenyi(ranks)
    signed = [wilcoxon(table.values[:, a], table.values[:, b], table.steps) for a, b in together]
    for (a, b), raw, corrected in zip(together, signed, holm(signed).tolist(), strict=True):
        first, second = table.values[:, a], table.values[:, b]
        effect = rank_biserial(*((second, first) if lower_is_better else (first, second)), table.steps)
        gap = float(average[b] - average[a])
        better, worse = int((ranks[:, a] < ranks[:, b]).sum()), int((ranks[:, a] > ranks[:, b]).sum())
        yield Pair(
            first=table.methods[a],
            second=table.methods[b],
            rank_gap=gap,
            nemenyi_p=float(p[a, b]),
            significant=gap > reach,
            wilcoxon_p=raw,
            holm_p=corrected,
            mean_difference=float((first - second).mean()),
            rank_biserial=effect,
            wins=better,
            ties=len(ranks) - better - worse,
            losses=worse,
        )


# ---------------------------------------------------------------------------------------------------- bootstrap


@dataclass(frozen=True)
class Interval:
    """An estimate with a percentile bootstrap interval."""

    estimate: float
    low: float
    high: float
    replicates: int  # that had a value


def bootstrap(
    outputs: Sequence[Floats],
    truth: Truth,
    rng: np.random.Generator,
    *,
    measure: Measure | None = None,
    patients: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    replicates: int = 2000,
) -> Floats:
    """The macro AUC (or another measure) of several models on the same images, (models, 1 + replicates).

    The first column is the estimate; in each of the others all models have the same patients drawn. So differences of
    rows are paired, and any number of pairs costs no more than the models themselves. With `LARGE` images or more a
    replicate's AUC is that of DeLong's components, which differs from it by far less than the replicates do.
    """
    models = [np.asarray(output, dtype=np.float64).reshape(len(truth), -1) for output in outputs]
    truth = truth.reshape(len(truth), -1)
    owner = np.arange(len(truth)) if patients is None else np.unique(np.asarray(patients), return_inverse=True)[1]
    labels = np.zeros(len(truth)) if folds is None else np.asarray(folds)
    by_fold = [np.flatnonzero(labels == fold) for fold in np.unique(labels)]
    units = int(owner.max()) + 1
    draws = chain([np.ones((1, units))], _draws(units, replicates, rng))
    if (measure or weighted_auc) in _PARTS and min(map(len, by_fold)) >= LARGE:
        return _by_parts(measure or weighted_auc, models, truth, owner, by_fold, draws)
    blocks = [[_macro(measure or weighted_auc, m, truth, drawn[:, owner], by_fold) for m in models] for drawn in draws]
    return np.concatenate([np.stack(block) for block in blocks], axis=1)


def interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Of an estimate and its replicates, as `bootstrap` gives them."""
    defined = values[1:][~np.isnan(values[1:])]
    if not len(defined):
        return Interval(float(values[0]), math.nan, math.nan, 0)
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return Interval(float(values[0]), low, high, len(defined))


def _draws(units: int, replicates: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each unit is drawn, one row per replicate, in blocks."""
    for start in range(0, replicates, _BLOCK):
        chosen = rng.integers(units, size=(min(_BLOCK, replicates - start), units))
        yield np.stack([np.bincount(row, minlength=units) for row in chosen]).astype(np.float64)


def _macro(
    measure: Measure,
    outputs: Floats,
    truth: Truth,
    weights: Floats,
    by_fold: Sequence[NDArray[np.intp]],
) -> Floats:
    """Mean over folds and findings, for each row of weights; what is undefined or unknown (below zero) is left out."""
    columns = range(truth.shape[1])
    chosen = [(rows[truth[rows, c] >= 0], c) for rows in by_fold for c in columns]
    nothing = np.full(len(weights), np.nan)
    stacked = np.stack([measure(outputs[r, c], truth[r, c], weights[:, r]) if len(r) else nothing for r, c in chosen])
    defined = ~np.isnan(stacked)
    totals = np.where(defined, stacked, 0.0).sum(axis=0)
    return _divided(totals, defined.sum(axis=0))


def _by_parts(
    measure: Measure,
    models: Sequence[Floats],
    truth: Truth,
    owner: NDArray[np.intp],
    by_fold: Sequence[NDArray[np.intp]],
    draws: Iterable[Floats],
) -> Floats:
    """The same from each image's part in a measure, summed by unit once: then a replicate is a product of matrices."""
    parts, joined = _PARTS[measure]
    units, sums = int(owner.max()) + 1, []
    for rows, column in product(by_fold, range(truth.shape[1])):
        labels = truth[rows, column]
        of_models = [parts(model[rows, column], labels) for model in models]
        for place, kind in enumerate((1, 0)):
            own = owner[rows[labels == kind]]
            columns = [np.ones(len(own)), *(part[place] for part in of_models)]
            sums.append(np.stack([np.bincount(own, column, units) for column in columns], axis=1))
    together = max(1, _WIDE // (1 + len(models)))
    sums = [np.concatenate(sums[i : i + together], axis=1) for i in range(0, len(sums), together)]
    found = []
    for drawn in draws:
        total = np.concatenate([drawn @ some for some in sums], axis=1).reshape(len(drawn), -1, 1 + len(models))
        rates = _divided(total[:, :, 1:], np.broadcast_to(total[:, :, :1], total[:, :, 1:].shape))
        found.append(joined(rates[:, ::2], rates[:, 1::2]))
    values = np.concatenate(found)  # replicates, folds and findings, models
    defined = ~np.isnan(values)
    return _divided(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1)).T


def _auc_parts(scores: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """DeLong's components: for each positive image the share of negatives below it, for each negative that of positives
    above; less half the AUC each, so that the sum of their means is the AUC."""
    positives, negatives = scores[truth == 1], scores[truth == 0]
    if not len(positives) or not len(negatives) or np.isnan(scores).any():
        return np.full(len(positives), np.nan), np.full(len(negatives), np.nan)
    above, below = _share_below(negatives, positives), 1 - _share_below(positives, negatives)
    area = above.mean()
    return above - area / 2, below - area / 2


def _share_below(scores: Floats, limits: Floats) -> Floats:
    """Of the scores, the share below each limit; equal ones count half."""
    ordered, order = np.sort(scores), np.argsort(limits)  # limits in order are found several times faster
    ends = [np.searchsorted(ordered, limits[order], side) for side in ("left", "right")]
    share = np.empty(len(limits))
    share[order] = (ends[0] + ends[1]) / (2 * len(scores))
    return share


def _right_calls(called: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """Which positive and which negative images are called as they are."""
    right = np.where(np.isnan(called).any(), np.nan, called == truth)
    return right[truth == 1], right[truth == 0]


def weighted_auc(scores: Floats, truth: Truth, weights: Floats) -> Floats:
    """The AUC for each row of weights (replicates × images); ties count half.

    NaN without both kinds of image, or where a score is not a number.
    """
    if np.isnan(scores).any():
        return np.full(len(weights), np.nan)
    positive = truth == 1
    order = np.argsort(scores[~positive], kind="stable")
    negatives = scores[~positive][order]
    drawn, others = weights.T[positive], weights.T[np.flatnonzero(~positive)[order]]  # images × replicates
    below = np.concatenate([np.zeros((1, len(weights))), np.cumsum(others, axis=0)])
    ends = [np.searchsorted(negatives, scores[positive], side) for side in ("left", "right")]
    pairs = drawn.sum(axis=0) * below[-1]
    return _divided(np.einsum("ij,ij->j", drawn, below[ends[0]] + below[ends[1]]) / 2, pairs)


def weighted_gm(called: Floats, truth: Truth, weights: Floats) -> Floats:
    """The geometric mean of sensitivity and specificity of calls (0 or 1) for each row of weights.

    Without a threshold there are no calls: NaN.
    """
    if np.isnan(called).any():
        return np.full(len(weights), np.nan)
    positive_images, right = truth == 1, called == truth
    kinds = [positive_images & right, positive_images, ~positive_images & right, ~positive_images]
    totals = weights @ np.stack(kinds, axis=1).astype(np.float64)
    return np.sqrt(_divided(totals[:, 0], totals[:, 1]) * _divided(totals[:, 2], totals[:, 3]))


def _divided(totals: Floats, counts: NDArray[Any]) -> Floats:
    """NaN where there is nothing to divide by."""
    return np.asarray(np.divide(totals, counts, out=np.full(totals.shape, np.nan), where=counts > 0))


_PARTS: dict[Measure, tuple[Callable[[Floats, Truth], tuple[Floats, Floats]], Callable[[Floats, Floats], Floats]]] = {
    weighted_auc: (_auc_parts, np.add),
    weighted_gm: (_right_calls, lambda sensitivity, specificity: np.sqrt(sensitivity * specificity)),
}
