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
from feddraw.analysis.paired_repeats import RepeatRow
from feddraw.errors import UserError, unknown
from feddraw.text import grouped, join_names

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
    rows: Iterable[RepeatRow], reference: str, *, alpha: float = 0.05, folds: int = 0
) -> list[Difference]:
    """Every method minus the reference, from rows (scenario, method, repeat, value), by scenario
    and over all of them.

    Repeats that only one of the two has are left out; `pair_rows` leaves those that all methods
    have. `folds` is into how many parts the images were split where repeats share training images,
    and 0 where they do not.
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
    overlap = 1 / (folds - 1) if folds else 0.0
    differences = []
    for method in methods:
        if method == reference:
            continue
        by_scenario = {}
        for scenario in scenarios:
            values = cells.get((scenario, method), {})
            reference_values = cells.get((scenario, reference), {})
            by_scenario[scenario] = _paired_by_repeat(values, reference_values, steps)
        if len(scenarios) > 1:
            by_scenario[""] = _means_over_scenarios(list(by_scenario.values()), steps)
        for scenario, by_repeat in by_scenario.items():
            if by_repeat:
                values_by_repeat = np.array(list(by_repeat.values()))
                differences.append(
                    _mean_difference(scenario, method, values_by_repeat, alpha, overlap)
                )
    return _holm_corrected(differences)


def repeats_over_all_in_words(
    differences: Sequence[Difference], repeat_name: str = "seed"
) -> Iterator[str]:
    """Which methods have no difference over all scenarios, and whose is of fewer repeats than those
    by scenario; nothing where there is one scenario.
    """
    if len({difference.scenario for difference in differences if difference.scenario}) < 2:
        return
    by_method = grouped((difference.method, difference) for difference in differences)
    without = [m for m, rows in by_method.items() if all(row.scenario for row in rows)]
    if without:
        yield (
            f"all: no row for {join_names(without)}, because no {repeat_name} is common to all"
            " scenarios"
        )
    counts = grouped(
        ((row.repeats, max(other.repeats for other in rows)), method)
        for method, rows in by_method.items()
        for row in rows
        if not row.scenario
    )
    for (common, most), methods in counts.items():
        if common < most:
            yield (
                f"all: {join_names(methods)} over the {common} {repeat_name}{'s' * (common > 1)}"
                f" that all scenarios have, of up to {most} in one scenario"
            )


def _paired_by_repeat(
    first: Mapping[str, float], second: Mapping[str, float], steps: float
) -> dict[str, float]:
    """The first minus the second, in the repeats that both have."""
    shared = [repeat for repeat in first if repeat in second]
    differences = np.array([first[repeat] - second[repeat] for repeat in shared])
    return dict(zip(shared, statistics.rounded(differences, steps).tolist(), strict=True))


def _means_over_scenarios(
    by_scenario: Sequence[Mapping[str, float]], steps: float
) -> dict[str, float]:
    """By repeat that all scenarios have."""
    means = {}
    for repeat in by_scenario[0]:
        if all(repeat in values for values in by_scenario):
            in_each = [values[repeat] for values in by_scenario]
            means[repeat] = statistics.mean_of_repeats(in_each, steps)
    return means


def _holm_corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Those by scenario are corrected for their number, and apart from them those over all."""
    corrected = list(differences)
    for by_scenario in (True, False):
        places = [
            place
            for place, difference in enumerate(differences)
            if bool(difference.scenario) == by_scenario and difference.repeats > 1
        ]
        holm_p = statistics.holm([differences[place].p for place in places]).tolist()
        for place, p in zip(places, holm_p, strict=True):
            corrected[place] = replace(differences[place], holm_p=p)
    return corrected


def _mean_difference(
    scenario: str, method: str, values: Floats, alpha: float, overlap: float
) -> Difference:
    """From paired differences by repeat; `overlap` is what shared training images add to 1/n."""
    repeats = len(values)
    single = Difference(
        scenario=scenario,
        method=method,
        mean=float(values.mean()),
        low=-math.inf,
        high=math.inf,
        wins=int((values > 0).sum()),
        repeats=repeats,
        p=math.nan,
        more_repeats=math.nan,
    )
    if repeats == 1:
        return single
    mean = single.mean
    spread = float(values.std(ddof=1))
    error = spread * math.sqrt(1 / repeats + overlap)
    reach = float(stats.t.ppf(1 - alpha / 2, repeats - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, repeats - 1)) if error else float(mean == 0)
    more_repeats = math.nan
    if p < alpha:
        more_repeats = 0.0
    elif repeats >= FEWEST_FOR_SPREAD:
        more_repeats = repeats_needed(mean, spread, alpha=alpha, overlap=overlap) - repeats
    return replace(single, low=mean - reach, high=mean + reach, p=p, more_repeats=more_repeats)


def repeats_needed(
    difference: float, spread: float, *, alpha: float = 0.05, overlap: float = 0.0
) -> float:
    """The fewest repeats at which a two-sided paired t-test finds this difference in four of five
    studies.

    Infinite where a thousand are not enough, as for a difference of zero. The difference and its
    standard deviation are those seen so far, so the answer is as uncertain as they are.
    """

    def power(repeats: int) -> float:
        return _power(abs(difference), spread, repeats, alpha, overlap)

    counts = range(2, MOST_REPEATS + 1)
    place = bisect_left(counts, POWER, key=power)
    return float(counts[place]) if place < len(counts) else math.inf


def _power(difference: float, spread: float, repeats: int, alpha: float, overlap: float) -> float:
    """The chance that the test finds this difference."""
    error = spread * math.sqrt(1 / repeats + overlap)
    if difference >= 30 * error:  # scipy's distribution has no value so far out
        return float(difference > 0)
    degrees = repeats - 1
    shift = difference / error  # of the noncentral t distribution
    limit = special.stdtrit(degrees, 1 - alpha / 2)  # much faster than scipy.stats
    above = 1 - special.nctdtr(degrees, shift, limit)
    below = special.nctdtr(degrees, shift, -limit)
    return float(above + below)


def mean_of_last(values: Iterable[float]) -> float:
    """The mean over the last five rounds; NaN where there are no more than that, or one has no
    value.
    """
    by_round = list(values)
    return float(np.mean(by_round[-LAST_ROUNDS:])) if len(by_round) > LAST_ROUNDS else math.nan
