"""Do methods differ? Ranks over scenarios, Friedman, Nemenyi, Wilcoxon–Holm, effect sizes.

The procedure is Demšar's (Statistical comparisons of classifiers over multiple data sets, JMLR
2006). Where Friedman's test does not reject, or there are too few scenarios for it, no pair is
called different: all methods form one group. Pure functions of numbers.

A table that is printed with one decimal has ties that float arithmetic breaks: 0.3 - 0.2 is not 0.8
- 0.7. So means and differences are rounded to multiples of the table's own last digit. Numbers of
full precision are left as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from feddraw.analysis.paired_repeats import RepeatRow
from feddraw.errors import UserError, positive, unknown

Floats = NDArray[np.float64]

# With fewer scenarios not even a method that wins everywhere is shown to be better than another:
# the two-sided signed-rank test of four scenarios cannot fall below 0.125.
FEWEST_SCENARIOS = 5
_PRINTED_DIGITS = 12  # a number with more was computed, not printed
_MOST_EXACT_PAIRS = 13  # up to which scipy's signed-rank test is exact


# ---------------------------------------------------------------------------------------- the table


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
    """10 for values with one decimal, 100 for two, …; 0 where a value has more digits than a
    printed table would.
    """
    numbers = np.unique(np.asarray(values, dtype=np.float64))
    decimals = 0
    for number in numbers.tolist():
        _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
        if not isinstance(exponent, int) or len(digits) > _PRINTED_DIGITS:
            return 0.0
        decimals = max(decimals, -exponent)
    steps = 10.0**decimals
    return steps if np.abs(numbers).max(initial=0.0) * steps < 10.0**_PRINTED_DIGITS else 0.0


def to_digits(table: Table, digits: int) -> Table:
    """Values with so many decimals: those that are printed alike are ties."""
    steps = 10.0**digits
    return replace(table, values=rounded(table.values, steps), given_steps=steps)


def rounded(values: Floats, steps: float) -> Floats:
    """To multiples of 1/steps, the same float for the same number."""
    return np.rint(values * steps) / steps if steps else values


def tabulate(rows: Iterable[tuple[str, str, float]], *, steps: float | None = None) -> Table:
    """The table of tidy rows (scenario, method, value), in the order of first appearance; complete,
    or refused.
    """
    rows = list(rows)
    cells = {(scenario, method): value for scenario, method, value in rows}
    scenarios = tuple(dict.fromkeys(scenario for scenario, _ in cells))
    methods = tuple(dict.fromkeys(method for _, method in cells))
    counts = Counter((scenario, method) for scenario, method, _ in rows)
    twice = [cell for cell, count in counts.items() if count > 1]
    _refuse("more than one row for", twice, "give one, such as the mean over seeds")
    missing = [cell for cell in product(scenarios, methods) if cell not in cells]
    _refuse("no row for", missing, "complete the table")
    broken = [cell for cell, value in cells.items() if not math.isfinite(value)]
    _refuse("no finite number for", broken, "correct these")
    at_least_two("method", methods)
    at_least_two(
        "scenario",
        scenarios,
        " (repeats within one, such as seeds, are compared by --over COLUMN --against METHOD)",
    )
    values = [[cells[scenario, method] for method in methods] for scenario in scenarios]
    return Table(scenarios, methods, np.array(values, dtype=np.float64), steps)


def tabulate_repeats(rows: Iterable[RepeatRow]) -> Table:
    """The table of means over repeats (seeds) of rows (scenario, method, repeat, value); within a
    scenario all methods have the same repeats, as `pair_rows` leaves them.
    """
    cells = by_repeat(rows)
    repeats: dict[str, dict[str, None]] = {}  # by scenario, in the order of first appearance
    for (scenario, _), cell in cells.items():
        repeats.setdefault(scenario, {}).update(dict.fromkeys(cell))
    missing = [
        (scenario, method, repeat)
        for (scenario, method), cell in cells.items()
        for repeat in repeats[scenario]
        if repeat not in cell
    ]
    _refuse("no row for", missing, "complete the table")
    steps = steps_in_one([value for cell in cells.values() for value in cell.values()])
    means = []
    for (scenario, method), cell in cells.items():
        means.append((scenario, method, mean_of_repeats(list(cell.values()), steps)))
    # a mean of n multiples of 1/steps is a multiple of 1/(n * steps)
    common = math.lcm(*map(len, repeats.values()))
    return tabulate(means, steps=steps * common)


def mean_of_repeats(values: Sequence[float], steps: float) -> float:
    """The mean of multiples of 1/steps, the same float for the same number."""
    if not steps:
        return float(np.mean(values))
    return float(np.rint(sum(values) * steps) / (steps * len(values)))


def by_repeat(rows: Iterable[RepeatRow]) -> dict[tuple[str, str], dict[str, float]]:
    """Values by scenario and method, each by repeat."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for scenario, method, repeat, value in rows:
        cell = cells.setdefault((scenario, method), {})
        if repeat in cell:
            raise UserError(f"more than one row for {scenario} {method} {repeat}: give one")
        cell[repeat] = value
    return cells


def _refuse(trouble: str, cells: Sequence[tuple[str, ...]], remedy: str) -> None:
    """Unless there are none of these cells."""
    if cells:
        some = ", ".join(" ".join(cell) for cell in cells[:5])
        more = f" and {len(cells) - 5} more" if len(cells) > 5 else ""
        raise UserError(f"{trouble} {some}{more}: {remedy}")


def at_least_two(what: str, names: Sequence[str], otherwise: str = "") -> None:
    """Refuse less; `otherwise` says what can be done with one."""
    if len(names) < 2:
        have = f"one {what} only ({names[0]})" if names else f"no {what}"
        raise UserError(f"{have}: a comparison needs at least two{otherwise if names else ''}")


# ------------------------------------------------------------------------------------- many methods


@dataclass(frozen=True)
class Friedman:
    """Friedman's chi-square, corrected for ties, and Iman and Davenport's less conservative F of
    the same ranks.
    """

    statistic: float
    degrees: int
    p: float
    f_statistic: float  # infinite where all scenarios agree
    f_degrees: tuple[int, int]
    f_p: float


def rank(values: Floats, *, lower_is_better: bool = False) -> Floats:
    """Ranks within each row, 1 = best; equal values share their mean rank."""
    return np.asarray(
        stats.rankdata(values if lower_is_better else -values, axis=1), dtype=np.float64
    )


def friedman(ranks: Floats) -> Friedman:
    """Whether the methods' ranks differ at all.

    (scipy's own needs three methods, and fails where all values tie.)
    """
    scenarios, methods = ranks.shape
    scatter = float(((ranks - (methods + 1) / 2) ** 2).sum())
    between = float(((ranks.sum(axis=0) - scenarios * (methods + 1) / 2) ** 2).sum())
    statistic = (methods - 1) * between / scatter if scatter else 0.0
    degrees = methods - 1
    f_degrees = (degrees, degrees * (scenarios - 1))
    unexplained = scenarios * degrees - statistic
    f_statistic = math.inf
    if unexplained > 1e-9:
        f_statistic = (scenarios - 1) * statistic / unexplained
    return Friedman(
        statistic=statistic,
        degrees=degrees,
        p=float(stats.chi2.sf(statistic, degrees)),
        f_statistic=f_statistic,
        f_degrees=f_degrees,
        f_p=float(stats.f.sf(f_statistic, *f_degrees)),
    )


def nemenyi(ranks: Floats) -> Floats:
    """p of every pair (methods × methods) for the difference of average ranks."""
    scenarios, methods = ranks.shape
    average = ranks.mean(axis=0)
    gaps = np.abs(average[:, None] - average) / _rank_gap_unit(methods, scenarios)
    upper = np.triu_indices(methods, 1)
    tails = stats.studentized_range.sf(gaps[upper] * math.sqrt(2), methods, np.inf)
    p = np.ones_like(gaps)
    p[upper] = np.clip(tails, 0.0, 1.0)
    return np.asarray(np.minimum(p, p.T))


def critical_difference(methods: int, scenarios: int, alpha: float) -> float:
    """The gap of average ranks above which Nemenyi's test calls two methods different."""
    return critical_value(methods, alpha) * _rank_gap_unit(methods, scenarios)


def critical_value(methods: int, alpha: float) -> float:
    """Nemenyi's q: the studentised range over the square root of two."""
    return float(stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)


def _rank_gap_unit(methods: int, scenarios: int) -> float:
    """The standard error of a difference of average ranks."""
    return math.sqrt(methods * (methods + 1) / (6 * scenarios))


def groups(average_ranks: Sequence[float], difference: float) -> list[tuple[int, ...]]:
    """The largest sets of methods that are nowhere further apart than the difference: the bars of
    the diagram.
    """
    order = sorted(range(len(average_ranks)), key=lambda method: average_ranks[method])
    bars: list[tuple[int, ...]] = []
    last_end = 0
    for start, best in enumerate(order):
        limit = average_ranks[best] + difference + 1e-12
        end = sum(average_ranks[method] <= limit for method in order)
        joins_several = end > start + 1
        part_of_last = end <= last_end
        if joins_several and not part_of_last:
            bars.append(tuple(order[start:end]))
            last_end = end
    return bars


# -------------------------------------------------------------------------------------- two methods


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
    """p of the signed-rank test, two-sided; 1 where nothing differs.

    Values may be multiples of 1/steps.
    """
    differences = rounded(first - second, steps)
    if len(differences) <= _MOST_EXACT_PAIRS:
        return _exact_signed_rank(differences[differences != 0])
    return float(stats.wilcoxon(differences).pvalue) if differences.any() else 1.0


def _exact_signed_rank(differences: Floats) -> float:
    """As scipy has it, but with ties hundreds of times faster: all signs, counted by their rank
    sum.
    """
    ranks = stats.rankdata(np.abs(differences))
    doubled = np.rint(2 * ranks).astype(np.int64)  # tied ranks can be halves
    ways = np.ones(1)  # by doubled rank sum of the positive differences: in how many ways it arises
    for rank in doubled:
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    observed = int(doubled[differences > 0].sum())
    tail = min(ways[: observed + 1].sum(), ways[observed:].sum())
    return min(1.0, 2 * float(tail) / 2.0 ** len(doubled))


def holm(p: ArrayLike) -> Floats:
    """p-values corrected for their number, step by step from the smallest."""
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    factors = np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * factors), 1.0)
    return adjusted


def rank_biserial(first: Floats, second: Floats, steps: float = 0.0) -> float:
    """The matched-pairs effect size: share of ranks for the first minus share for the second, from
    -1 to 1.
    """
    differences = rounded(first - second, steps)
    differences = differences[differences != 0]
    if not len(differences):
        return 0.0
    ranks = stats.rankdata(np.abs(differences))
    return float((ranks * np.sign(differences)).sum() / ranks.sum())


def proportion_interval(
    successes: float, trials: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Clopper and Pearson's exact interval of a proportion. Numbers that are not whole are those of
    a sample whose units are not independent (Korn and Graubard).
    """
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, successes, trials - successes + 1) if successes else 0.0
    high = 1.0
    if successes < trials:
        high = stats.beta.ppf(1 - tail, successes + 1, trials - successes)
    return float(low), float(high)


# ---------------------------------------------------------------------------------- one against all


@dataclass(frozen=True)
class AgainstControl:
    """A method beside the control, by their average ranks."""

    method: str
    rank_gap: float  # its average rank minus the control's: above 0 the control is better
    z: float
    p: float  # two-sided, of the normal distribution
    holm_p: float  # corrected for the number of other methods
    significant: bool  # at the comparison's alpha


def method_in_focus(methods: Sequence[str]) -> str:
    """The method that others are compared with: FedDRAW, or else the first."""
    for method in methods:
        if method.split(" ")[0].lower() == "feddraw":
            return method
    return methods[0]


def against_control(
    ranks: Floats, methods: Sequence[str], control: str, alpha: float
) -> list[AgainstControl]:
    """Every other method against one control by z = (R_i - R_control) / sqrt(k (k + 1) / (6 N)),
    corrected by Holm's step-down procedure (Demšar 2006, section 3.2.2).

    k - 1 comparisons in place of Nemenyi's k (k - 1) / 2 make this the more powerful test where the
    control was chosen beforehand. No method differs where Friedman's test does not reject.
    """
    if control not in methods:
        raise unknown("methods", control, list(methods))
    average = dict(zip(methods, ranks.mean(axis=0).tolist(), strict=True))
    unit = _rank_gap_unit(len(methods), len(ranks))
    others = [method for method in methods if method != control]
    gaps = [average[method] - average[control] for method in others]
    p = [2 * float(stats.norm.sf(abs(gap) / unit)) for gap in gaps]
    can_differ = rejects(ranks, alpha)
    comparisons = []
    for method, gap, raw, corrected in zip(others, gaps, p, holm(p).tolist(), strict=True):
        comparisons.append(
            AgainstControl(
                method=method,
                rank_gap=gap,
                z=gap / unit,
                p=raw,
                holm_p=corrected,
                significant=can_differ and corrected < alpha,
            )
        )
    return sorted(comparisons, key=lambda comparison: -comparison.rank_gap)


# ------------------------------------------------------------------------------------- all together


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
    control: str
    against_control: tuple[AgainstControl, ...]  # the worst average rank first

    @property
    def rejected(self) -> bool:
        """Whether the methods differ at all, so that a pair of them may be called different."""
        return rejects(self.ranks, self.alpha)

    @property
    def average_ranks(self) -> dict[str, float]:
        """By method, the best first."""
        average = self.ranks.mean(axis=0).tolist()
        by_method = dict(zip(self.table.methods, average, strict=True))
        return dict(sorted(by_method.items(), key=lambda entry: entry[1]))

    @property
    def leaders(self) -> list[str]:
        """The methods that share the best average rank: mostly one."""
        average = self.average_ranks
        best = min(average.values())
        return [method for method, rank in average.items() if rank == best]

    @property
    def first_places(self) -> dict[str, int]:
        """In how many scenarios each method is best, alone or with others."""
        best = self.ranks == self.ranks.min(axis=1, keepdims=True)
        return dict(zip(self.table.methods, best.sum(axis=0).tolist(), strict=True))

    def pair(self, method: str, other: str) -> Pair:
        """Whichever of the two is better."""
        return next(pair for pair in self.pairs if {pair.first, pair.second} == {method, other})

    def beaten_by(self, method: str) -> list[str]:
        """Which methods this one is significantly better than."""
        return [pair.second for pair in self.pairs if pair.first == method and pair.significant]


def rejects(ranks: Floats, alpha: float) -> bool:
    """Whether Friedman's test rejects that all methods are alike, over enough scenarios."""
    return len(ranks) >= FEWEST_SCENARIOS and friedman(ranks).p < alpha


def compare(
    table: Table, *, alpha: float = 0.05, lower_is_better: bool = False, control: str = ""
) -> Comparison:
    """Rank, test, compare every pair, and every method with the control: FedDRAW or else the
    first, unless another is named.
    """
    check_level(alpha)
    control = control or method_in_focus(table.methods)
    ranks = rank(table.values, lower_is_better=lower_is_better)
    scenarios, methods = ranks.shape
    difference = critical_difference(methods, scenarios, alpha)
    # no pair differs unless Friedman rejects
    reach = difference if rejects(ranks, alpha) else math.inf
    joined = groups(ranks.mean(axis=0).tolist(), reach)
    return Comparison(
        table=table,
        alpha=alpha,
        lower_is_better=lower_is_better,
        ranks=ranks,
        friedman=friedman(ranks),
        difference=difference,
        groups=tuple(tuple(table.methods[method] for method in group) for group in joined),
        pairs=tuple(_pairs(table, ranks, reach, lower_is_better)),
        control=control,
        against_control=tuple(against_control(ranks, table.methods, control, alpha)),
    )


def check_level(alpha: float) -> None:
    """Refuse what is no level of significance."""
    if positive("alpha", alpha) >= 1:
        raise UserError(f"alpha must be below 1, not {alpha}")


def _pairs(table: Table, ranks: Floats, reach: float, lower_is_better: bool) -> Iterator[Pair]:
    """Every pair of methods, from the best down; they differ where their average ranks are further
    apart than the reach.
    """
    average = ranks.mean(axis=0)
    best_first = np.argsort(average, kind="stable").tolist()
    pairs = list(combinations(best_first, 2))
    nemenyi_p = nemenyi(ranks)
    wilcoxon_p = [wilcoxon(table.values[:, a], table.values[:, b], table.steps) for a, b in pairs]
    holm_p = holm(wilcoxon_p).tolist()
    for (a, b), p, corrected_p in zip(pairs, wilcoxon_p, holm_p, strict=True):
        first = table.values[:, a]
        second = table.values[:, b]
        better, worse = (second, first) if lower_is_better else (first, second)
        rank_gap = float(average[b] - average[a])
        wins = int((ranks[:, a] < ranks[:, b]).sum())
        losses = int((ranks[:, a] > ranks[:, b]).sum())
        yield Pair(
            first=table.methods[a],
            second=table.methods[b],
            rank_gap=rank_gap,
            nemenyi_p=float(nemenyi_p[a, b]),
            significant=rank_gap > reach,
            wilcoxon_p=p,
            holm_p=corrected_p,
            mean_difference=float((first - second).mean()),
            rank_biserial=rank_biserial(better, worse, table.steps),
            wins=wins,
            ties=len(ranks) - wins - losses,
            losses=losses,
        )


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON holds it; null stands for an F that is infinite because all scenarios
    agree.
    """
    table = comparison.table
    test = comparison.friedman
    f_statistic = test.f_statistic if math.isfinite(test.f_statistic) else None
    return {
        "scenarios": list(table.scenarios),
        "methods": list(table.methods),
        "ranks": replace(table, values=comparison.ranks).rows(),
        "average_ranks": comparison.average_ranks,
        "first_places": comparison.first_places,
        "friedman": {
            "statistic": test.statistic,
            "degrees": test.degrees,
            "p": test.p,
            "iman_davenport": {
                "statistic": f_statistic,
                "degrees": list(test.f_degrees),
                "p": test.f_p,
            },
        },
        "rejected": comparison.rejected,
        "critical_difference": comparison.difference,
        "groups": [list(group) for group in comparison.groups],
        "pairs": [asdict(pair) for pair in comparison.pairs],
        "control": comparison.control,
        "against_control": [asdict(other) for other in comparison.against_control],
    }
