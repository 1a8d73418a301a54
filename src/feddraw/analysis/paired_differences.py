"""Paired differences between methods over trainings: Student's intervals, Holm's correction, and
how many more to run.

Folds of one data set share most of their training images, so their differences are not independent
and a plain interval is too narrow. The variance of their mean is then that of Nadeau and Bengio
(Inference for the generalization error, Machine Learning 2003): 1/n + (test images / other images)
in place of 1/n.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from feddraw.analysis import statistics
from feddraw.errors import UserError, unknown

Floats = NDArray[np.float64]

POWER = 0.8
MOST_REPEATS = 1000  # nobody trains more often than that
FEWEST_FOR_SPREAD = 3  # repeats: the standard deviation of two says next to nothing
LAST_ROUNDS = 5


@dataclass(frozen=True)
class Difference:
    """A method minus the reference in a scenario: the mean of paired differences over repeats
    (seeds, folds).
    """

    scenario: str  # empty: the mean over all of several scenarios, repeat by repeat
    method: str
    mean: float
    low: float  # Student's interval; infinite for a single repeat
    high: float
    wins: int
    repeats: int
    p: float  # two-sided; NaN for a single repeat
    # to find this difference with a power of 80 %; NaN: unknown, infinite: over a thousand
    more_repeats: float
    holm_p: float = math.nan  # corrected for all differences by scenario, or for all over scenarios


def against(
    rows: Iterable[statistics.RepeatRow], reference: str, *, alpha: float = 0.05, folds: int = 0
) -> list[Difference]:
    """Every method minus the reference, from rows (scenario, method, repeat, value), by scenario
    and over all of them.

    Repeats that only one of the two has are left out, so that an unfinished study can be looked at.
    `folds` is into how many parts the images were split where repeats share training images, and 0
    where they do not.
    """
    statistics.check_level(alpha)
    if folds < 0 or folds == 1:
        raise UserError(
            f"folds must be at least 2, or 0 where repeats share no training images, not {folds}"
        )
    cells = statistics.by_repeat(rows)
    steps = statistics.steps_in_one([value for cell in cells.values() for value in cell.values()])
    scenarios = list(dict.fromkeys(scenario for scenario, _ in cells))
    methods = list(dict.fromkeys(method for _, method in cells))
    statistics.at_least_two("method", methods)
    if reference not in methods:
        raise unknown("methods", reference, methods)
    found = []
    for method in (name for name in methods if name != reference):
        both = {s: (cells.get((s, method), {}), cells.get((s, reference), {})) for s in scenarios}
        by_scenario = {s: _differences_by_repeat(*pair, steps) for s, pair in both.items()}
        shared = (
            set.intersection(*(set(pairs) for pairs in by_scenario.values()))
            if len(scenarios) > 1
            else ()
        )
        means = {
            r: statistics.mean_of_repeats([by_scenario[s][r] for s in scenarios], steps)
            for r in shared
        }
        for scenario, pairs in {**by_scenario, "": means}.items():
            if pairs:
                values = np.array(list(pairs.values()))
                found.append(
                    _mean_difference(
                        scenario, method, values, alpha, 1 / (folds - 1) if folds else 0.0
                    )
                )
    overall, single = (
        [one for one in found if bool(one.scenario) == kind] for kind in (False, True)
    )
    corrected = {
        (one.scenario, one.method): one
        for family in (single, overall)
        for one in _holm_corrected(family)
    }
    return [corrected[one.scenario, one.method] for one in found]


def _holm_corrected(family: Sequence[Difference]) -> Iterator[Difference]:
    tested = [one for one in family if one.repeats > 1]
    for one, p in zip(tested, statistics.holm([one.p for one in tested]).tolist(), strict=True):
        yield replace(one, holm_p=p)
    yield from (one for one in family if one.repeats == 1)


def _differences_by_repeat(
    first: Mapping[str, float], second: Mapping[str, float], steps: float
) -> dict[str, float]:
    shared = [repeat for repeat in first if repeat in second]
    differences = statistics.rounded(
        np.array([first[repeat] - second[repeat] for repeat in shared]), steps
    )
    return dict(zip(shared, differences.tolist(), strict=True))


def _mean_difference(
    scenario: str, method: str, values: Floats, alpha: float, overlap: float
) -> Difference:
    mean, repeats, wins = float(values.mean()), len(values), int((values > 0).sum())
    if repeats == 1:
        return Difference(scenario, method, mean, -math.inf, math.inf, wins, 1, math.nan, math.nan)
    spread = float(values.std(ddof=1))
    error = spread * math.sqrt(1 / repeats + overlap)
    reach = float(stats.t.ppf(1 - alpha / 2, repeats - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, repeats - 1)) if error else float(mean == 0)
    more = 0.0 if p < alpha else math.nan
    if p >= alpha and repeats >= FEWEST_FOR_SPREAD:
        more = repeats_needed(mean, spread, alpha=alpha, overlap=overlap) - repeats
    return Difference(scenario, method, mean, mean - reach, mean + reach, wins, repeats, p, more)


def repeats_needed(
    difference: float, spread: float, *, alpha: float = 0.05, overlap: float = 0.0
) -> float:
    """The fewest repeats at which a two-sided paired t-test finds this difference in four of five
    studies.

    Infinite where a thousand are not enough, as for a difference of zero. The difference and its
    standard deviation are those seen so far, so the answer is as uncertain as they are.
    """
    counts = range(2, MOST_REPEATS + 1)
    place = bisect_left(
        counts, POWER, key=lambda n: _power(abs(difference), spread, n, alpha, overlap)
    )
    return float(counts[place]) if place < len(counts) else math.inf


def _power(difference: float, spread: float, repeats: int, alpha: float, overlap: float) -> float:
    error = spread * math.sqrt(1 / repeats + overlap)
    if difference >= 30 * error:  # scipy's distribution has no value so far out
        return float(difference > 0)
    degrees, shift = (
        repeats - 1,
        difference / error,
    )  # of the noncentral t distribution; much faster than scipy.stats
    limit = special.stdtrit(degrees, 1 - alpha / 2)
    return float(1 - special.nctdtr(degrees, shift, limit) + special.nctdtr(degrees, shift, -limit))


def mean_of_last(values: Iterable[float]) -> float:
    """The mean over the last five rounds; NaN where there are no more than that, or one has no
    value.
    """
    every = list(values)
    return float(np.mean(every[-LAST_ROUNDS:])) if len(every) > LAST_ROUNDS else math.nan
