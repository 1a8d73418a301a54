"""What the statistics say, in sentences that do not say more than they show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics import Comparison, Table, to_digits

# Of a table of pairs of methods; each table adds how it shows wins, ties and losses.
PAIR_COLUMNS = (
    "first",
    "second",
    "rank gap",
    "Nemenyi p",
    "Holm p",
    "difference",
    "effect",
)


def comparison_in_words(comparison: Comparison) -> str:
    """What a reader should take home, in one or two sentences."""
    best, *others = comparison.average_ranks
    if comparison.friedman.p >= comparison.alpha:
        return (
            f"{best} has the best average rank, but Friedman's test shows no difference between the"
            " methods."
        )
    beaten = comparison.beaten_by(best)
    open_ = [method for method in others if method not in beaten]
    said = f"{best} has the best average rank."
    said += (
        f" Significantly better than {', '.join(beaten)}."
        if beaten
        else " No other is significantly worse."
    )
    return said + (f" No significant difference from {', '.join(open_)}." if open_ else "")


def rank_tests_in_words(comparison: Comparison) -> list[str]:
    """Friedman, Iman and Davenport, the critical difference and the groups, one line each."""
    test = comparison.friedman
    finite = math.isfinite(test.f_statistic)
    ratio = (
        f"= {test.f_statistic:.2f}, p {p_equals(test.f_p)}"
        if finite
        else "is infinite: all scenarios agree"
    )
    lines = [
        f"Friedman: chi-square({test.degrees}) = {test.statistic:.2f}, p {p_equals(test.p)}",
        f"Iman-Davenport: F({test.f_degrees[0]}, {test.f_degrees[1]}) {ratio}",
        (
            f"Critical difference of average ranks (Nemenyi, alpha {comparison.alpha:g}):"
            f" {comparison.difference:.2f}"
        ),
    ]
    return lines + [
        f"Not significantly different: {', '.join(group)}" for group in comparison.groups
    ]


def near_ties_in_words(table: Table, digits: int = 4) -> Iterator[str]:
    """That values which would be printed alike have different ranks."""
    shown = to_digits(table, digits).values
    apart = sum(
        bool(rows[a] == rows[b] and values[a] != values[b])
        for values, rows in zip(table.values, shown, strict=True)
        for a, b in combinations(range(len(rows)), 2)
    )
    if apart:
        yield (
            f"Near ties: {apart} pair{'s' * (apart > 1)} of values in one scenario differ only"
            f" beyond {digits} decimals and are ranked as different; --digits {digits} makes them"
            " ties."
        )


def what_tests_can_show(comparison: Comparison) -> list[str]:
    """What so few scenarios can show at all."""
    scenarios, methods = comparison.ranks.shape
    hopeless = (
        " So no difference can be significant here." if comparison.difference >= methods - 1 else ""
    )
    lines = [
        f"{scenarios} scenarios: average ranks of {methods} methods can differ by {methods - 1} at"
        f" most, and a difference must exceed {comparison.difference:.2f} to be called"
        f" significant.{hopeless}"
    ]
    smallest = 2.0 ** (1 - scenarios)
    pairs = len(comparison.pairs)
    if min(1.0, smallest * pairs) >= comparison.alpha:
        lines.append(
            f"Wilcoxon's signed-rank test cannot give a p below {smallest:.3g} with {scenarios}"
            f" scenarios, and after Holm's correction for {pairs} pairs none below"
            f" {min(1.0, smallest * pairs):.3g}: none can be significant."
        )
    shared = (
        "Scenarios that share images are not independent: p values describe the table and prove"
        " nothing beyond it."
    )
    return [*lines, shared]


def more_repeats_in_words(one: Difference) -> str:
    """How many more repeats a difference would need; a dash where it needs none."""
    if math.isnan(one.more_repeats):
        return "unknown"
    if math.isinf(one.more_repeats):
        return ">1000"
    return f"{one.more_repeats:.0f}" if one.more_repeats else "–"


def differences_in_words(
    found: Sequence[Difference], alpha: float, folds: int, *, last: bool
) -> str:
    """What the columns of a table of differences over trainings mean."""
    if all(one.repeats == 1 for one in found):
        said = (
            "One repeat per method: it cannot show whether a difference is more than noise between"
            " trainings."
        )
    else:
        said = f"Intervals: {100 * (1 - alpha):g} % CI over repeats (Student's t"
        said += (
            f", widened for {folds} folds that share training images: Nadeau and Bengio). "
            if folds
            else "). "
        )
        tested = [one for one in found if one.repeats > 1]
        overall = sum(not one.scenario for one in tested)
        said += (
            f"* Holm p < {alpha:g}, corrected for the {len(tested) - overall} differences by"
            " scenario"
        )
        said += f" and, separately, the {overall} over all. " if overall else ". "
        said += "ahead: repeats with a difference above 0. "
        said += (
            "more: additional repeats needed to detect this difference with 80 % power, if its size"
            " and spread "
        )
        said += "stay the same (–: none, the CI excludes 0; unknown: fewer than three repeats)."
    return said + (
        " last 5: the same difference for the mean of the last five rounds." if last else ""
    )


def p_text(p: float) -> str:
    if math.isnan(p):
        return "—"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def p_equals(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def interval_in_brackets(found: Interval | Difference) -> str:
    return f"[{found.low:+.4f}, {found.high:+.4f}]"


def interval_from_to(found: Interval | Difference) -> str:
    return f"{found.low:+.4f} to {found.high:+.4f}"
