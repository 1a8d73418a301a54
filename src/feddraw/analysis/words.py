"""What the statistics say, in sentences that do not say more than they show."""

from __future__ import annotations

import math

from feddraw.analysis.statistics import Comparison


def summary(comparison: Comparison) -> str:
    """What a reader should take home, in one or two sentences."""
    best, *others = comparison.average_ranks
    if comparison.friedman.p >= comparison.alpha:
        return f"{best} has the best average rank, but Friedman's test shows no difference between the methods."
    beaten = comparison.beaten_by(best)
    open_ = [method for method in others if method not in beaten]
    said = f"{best} has the best average rank."
    said += f" Significantly better than {', '.join(beaten)}." if beaten else " Significantly better than no other."
    return said + (f" Not significant: the difference to {', '.join(open_)}." if open_ else "")


def tests(comparison: Comparison) -> list[str]:
    """Friedman, Iman and Davenport, the critical difference and the groups, one line each."""
    test = comparison.friedman
    finite = math.isfinite(test.f_statistic)
    ratio = f"= {test.f_statistic:.2f}, p {p_equals(test.f_p)}" if finite else "is infinite: all scenarios agree"
    lines = [
        f"Friedman: chi-square({test.degrees}) = {test.statistic:.2f}, p {p_equals(test.p)}",
        f"Iman-Davenport: F({test.f_degrees[0]}, {test.f_degrees[1]}) {ratio}",
        f"Critical difference of average ranks (Nemenyi, alpha {comparison.alpha:g}): {comparison.difference:.2f}",
    ]
    return lines + [f"Not significantly different: {', '.join(group)}" for group in comparison.groups]


def reach(comparison: Comparison) -> list[str]:
    """What so few scenarios can show at all."""
    scenarios, methods = comparison.ranks.shape
    hopeless = " So no difference of ranks can be." if comparison.difference >= methods - 1 else ""
    lines = [
        f"{scenarios} scenarios: average ranks of {methods} methods can differ by {methods - 1} at most, and a "
        f"difference must exceed {comparison.difference:.2f} to be called significant.{hopeless}"
    ]
    smallest = 2.0 ** (1 - scenarios)
    pairs = len(comparison.pairs)
    if min(1.0, smallest * pairs) >= comparison.alpha:
        lines.append(
            f"Wilcoxon's signed-rank test cannot give a p below {smallest:.3g} with {scenarios} scenarios, and after "
            f"Holm's correction for {pairs} pairs none below {min(1.0, smallest * pairs):.3g}: it cannot reject here."
        )
    lines.append(
        "Scenarios that share images are not independent, so these tests describe the table more than they prove."
    )
    return lines


def p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def p_equals(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"
