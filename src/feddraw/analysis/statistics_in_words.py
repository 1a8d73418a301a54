"""What the statistics say, in sentences that do not say more than they show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics import FEWEST_SCENARIOS, Comparison, Table, to_digits
from feddraw.text import join_names

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
CONTROL_COLUMNS = ("method", "rank gap", "z", "p", "Holm p")


def comparison_in_words(comparison: Comparison) -> str:
    """What a reader should take home, in one or two sentences; what cannot be claimed comes
    first.
    """
    leaders = comparison.leaders
    several = len(leaders) > 1
    scenarios = len(comparison.table.scenarios)
    friedman = f"Friedman p {p_equals(comparison.friedman.p)}, {scenarios} scenarios"
    level = f"at alpha {comparison.alpha:g}"
    lead = f"{join_names(leaders)} {'share' if several else 'has'} the best average rank"
    if scenarios < FEWEST_SCENARIOS:
        return (
            f"No difference between methods is shown: ranks over {scenarios} scenarios can show"
            f" none, {FEWEST_SCENARIOS} are the least. {lead}."
        )
    if not comparison.rejected:
        return f"No difference between methods is shown {level} ({friedman}). {lead}."
    beaten = comparison.beaten_by(leaders[0])  # those of one rank beat the same methods
    undecided = [
        method
        for method in comparison.average_ranks
        if method not in beaten and method not in leaders
    ]
    if not beaten:
        return (
            f"No difference between two methods is shown {level} (Nemenyi), although not all are"
            f" alike ({friedman}). {lead}."
        )
    shown = f"significantly better than {join_names(beaten)} {level} (Nemenyi; {friedman})."
    if not undecided:
        return f"{lead} and {'are' if several else 'is'} {shown}"
    return (
        f"Nemenyi's test shows no difference between {join_names(leaders)}, which"
        f" {'share' if several else 'has'} the best average rank, and {join_names(undecided)}."
        f" {join_names(leaders)} {'are' if several else 'is'} {shown}"
    )


def control_in_words(comparison: Comparison) -> str:
    """What the comparison of one control with all others says."""
    level = f"at alpha {comparison.alpha:g} (z of average ranks, Holm)"
    if not comparison.rejected:
        scenarios = len(comparison.table.scenarios)
        reason = f"Friedman's test does not reject (p {p_equals(comparison.friedman.p)})"
        if scenarios < FEWEST_SCENARIOS:
            reason = f"ranks over {scenarios} scenarios can show none"
        return (
            f"{comparison.control} against each other method: no difference is shown, because"
            f" {reason}; a small p of a single pair does not change that."
        )
    parts = []
    groups = {
        "better than": [c.method for c in comparison.against_control if c.significant and c.z > 0],
        "worse than": [c.method for c in comparison.against_control if c.significant and c.z < 0],
        "no difference shown from": [
            c.method for c in comparison.against_control if not c.significant
        ],
    }
    for outcome, methods in groups.items():
        if methods:
            parts.append(f"{outcome} {join_names(methods)}")
    return f"{comparison.control} against each other method {level}: {'; '.join(parts)}."


def rank_tests_in_words(comparison: Comparison) -> list[str]:
    """Friedman, Iman and Davenport, the critical difference and the groups, one line each."""
    test = comparison.friedman
    ratio = "is infinite: all scenarios agree"
    if math.isfinite(test.f_statistic):
        ratio = f"= {test.f_statistic:.2f}, p {p_equals(test.f_p)}"
    first_degrees, second_degrees = test.f_degrees
    groups = [f"Not significantly different: {', '.join(group)}" for group in comparison.groups]
    return [
        f"Friedman: chi-square({test.degrees}) = {test.statistic:.2f}, p {p_equals(test.p)}",
        f"Iman-Davenport: F({first_degrees}, {second_degrees}) {ratio}",
        (
            f"Critical difference of average ranks (Nemenyi, alpha {comparison.alpha:g}):"
            f" {comparison.difference:.2f}"
        ),
        *groups,
    ]


def near_ties_in_words(table: Table, digits: int = 4) -> Iterator[str]:
    """That values which would be printed alike have different ranks."""
    printed = to_digits(table, digits).values
    pairs = 0
    for exact, rounded in zip(table.values, printed, strict=True):
        for a, b in combinations(range(len(exact)), 2):
            pairs += bool(rounded[a] == rounded[b] and exact[a] != exact[b])
    if pairs:
        yield (
            f"Near ties: {pairs} pair{'s' * (pairs > 1)} of values in one scenario differ only"
            f" beyond {digits} decimals and are ranked as different; --digits {digits} makes them"
            " ties."
        )


def what_tests_can_show(comparison: Comparison) -> list[str]:
    """What so few scenarios can show at all."""
    scenarios, methods = comparison.ranks.shape
    ranks = (
        f"{scenarios} scenarios: average ranks of {methods} methods can differ by {methods - 1} at"
        f" most, and a difference must exceed {comparison.difference:.2f} to be called significant"
        f" (from {FEWEST_SCENARIOS} scenarios on)."
    )
    if scenarios < FEWEST_SCENARIOS:
        ranks += (
            f" With fewer than {FEWEST_SCENARIOS} scenarios no difference is called significant,"
            " whatever the ranks."
        )
    elif comparison.difference >= methods - 1:
        ranks += " So no difference can be significant here."
    lines = [ranks]
    smallest_p = 2.0 ** (1 - scenarios)
    pairs = len(comparison.pairs)
    smallest_holm_p = min(1.0, smallest_p * pairs)
    if smallest_holm_p >= comparison.alpha:
        lines.append(
            f"Wilcoxon's signed-rank test cannot give a p below {smallest_p:.3g} with {scenarios}"
            f" scenarios, and after Holm's correction for {pairs} pairs none below"
            f" {smallest_holm_p:.3g}: none can be significant."
        )
    lines.append(
        "Scenarios that share images are not independent: p values describe the table and prove"
        " nothing beyond it."
    )
    return lines


def more_repeats_in_words(difference: Difference) -> str:
    """How many more repeats a difference would need, looked at alone; a dash where its CI
    excludes 0 already.
    """
    if math.isnan(difference.more_repeats):
        return "unknown"
    if math.isinf(difference.more_repeats):
        return ">1000"
    return f"{difference.more_repeats:.0f}" if difference.more_repeats else "–"


def differences_in_words(
    differences: Sequence[Difference], alpha: float, folds: int, *, last: bool
) -> str:
    """What the columns of a table of differences over trainings mean; with `last`, also that of the
    last rounds.
    """
    sentences = []
    tested = [difference for difference in differences if difference.repeats > 1]
    if tested:
        intervals = f"Intervals: {100 * (1 - alpha):g} % CI over repeats (Student's t"
        if folds:
            intervals += (
                f", widened for {folds} folds that share training images: Nadeau and Bengio"
            )
        overall = sum(not difference.scenario for difference in tested)
        correction = (
            f"* Holm p < {alpha:g}, corrected for the {len(tested) - overall} differences by"
            " scenario"
        )
        if overall:
            correction += f" and, separately, the {overall} over all"
        sentences += [
            f"{intervals}).",
            f"{correction}.",
            "ahead: repeats with a difference above 0.",
            "more: additional repeats needed to detect this difference alone, without Holm's"
            " correction, with 80 % power, if its size and spread stay the same (–: its CI, not"
            " corrected either, already excludes 0, whatever Holm p is; unknown: fewer than three"
            " repeats).",
        ]
    else:
        sentences.append(
            "One repeat per method: it cannot show whether a difference is more than noise between"
            " trainings."
        )
    if last:
        sentences.append("last 5: the same difference for the mean of the last five rounds.")
    return " ".join(sentences)


def p_text(p: float) -> str:
    """For a table."""
    if math.isnan(p):
        return "—"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def p_equals(p: float) -> str:
    """Behind the letter p in a sentence."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def interval_in_brackets(interval: Interval | Difference) -> str:
    return f"[{interval.low:+.4f}, {interval.high:+.4f}]"


def interval_from_to(interval: Interval | Difference) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
