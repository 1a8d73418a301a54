"""Which method has the highest metric, and what of it is shown, in one or two sentences."""

from __future__ import annotations

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.paired_repeats import paired_repeats_in_words
from feddraw.analysis.statistics import holm
from feddraw.report.patients import interval_over_patients
from feddraw.report.statistics import Report
from feddraw.report.trainings import ALPHA
from feddraw.text import grouped, join_names


def result_of_metric(report: Report, metric: str) -> str:
    """The ranks over scenarios, or in one scenario the best method."""
    ranking = report.rankings[metric]
    if ranking.comparison is not None:
        scenarios = len(ranking.comparison.table.scenarios)
        paired = paired_repeats_in_words(ranking.paired)
        result = words.comparison_in_words(ranking.comparison)
        return (
            f"Test {report.metrics[metric]} over {scenarios} scenarios, {paired} in each: {result}"
        )
    if len(report.scenarios) == 1:
        return _result_in_scenario(report, report.scenarios[0], metric)
    return _result_without_ranks(report, metric)


def _result_without_ranks(report: Report, metric: str) -> str:
    """What can be claimed where scenarios have too few methods in common to be ranked."""
    label = report.metrics[metric]
    nothing = f"Nothing can be claimed about which method has the higher test {label}"
    if not report.methods:
        return f"{nothing}: there are references only."
    if len(report.methods) == 1:
        return f"{nothing}: there is only {report.methods[0]}."
    compared = [
        scenario
        for scenario in report.scenarios
        if len(report.pairing(scenario, metric).methods) > 1
    ]
    reason = report.rankings[metric].reason
    if not compared:
        return (
            f"{nothing}: no two methods have results in the same scenario, here"
            f" {join_names(report.scenarios)}. {reason}"
        )
    if len(compared) == 1:
        result = _result_in_scenario(report, compared[0], metric)
        return f"{result} Nothing can be claimed over several scenarios. {reason}"
    return f"{nothing} over all scenarios, only within each of {join_names(compared)}. {reason}"


def _result_in_scenario(report: Report, scenario: str, metric: str) -> str:
    """What is shown between the methods of one scenario; what is not shown comes first."""
    label = report.metrics[metric]
    pairing = report.pairing(scenario, metric)
    if not report.methods:
        return f"No methods are compared in test {label}: there are references only."
    if not pairing.methods:
        return f"Test {label} is undefined in every run."
    if not pairing.repeats:
        return (
            f"Test {label} in {scenario}: the methods are not compared, there is no seed that all"
            f" of {join_names(pairing.methods)} have."
        )
    means = {method: report.mean(scenario, method, metric).value for method in pairing.methods}
    best, *others = sorted(means, key=lambda method: -means[method])
    if not others:
        return f"{best} has a test {label} of {means[best]:.4f} in {scenario}."
    second = others[0]
    lead = (
        f"{means[best]:.4f}, {means[best] - means[second]:+.4f} vs {second}"
        f"{_intervals_in_brackets(report, scenario, metric, best, second)}"
    )
    shown = _shown_differences(report, scenario, metric)
    evidence = _evidence(report, scenario, metric)
    beaten = [worse for better, worse in shown if better == best]
    undecided = [method for method in others if method not in beaten]
    tied = [method for method in means if f"{means[method]:.4f}" == f"{means[best]:.4f}"]
    if not shown and len(tied) > 1:
        return (
            f"No difference between methods is shown in test {label}: {evidence}. In {scenario}"
            f" {join_names(tied)} have the same mean to four digits: {means[best]:.4f}."
        )
    if not shown:
        return (
            f"No difference between methods is shown in test {label}: {evidence}. The highest mean"
            f" in {scenario} is that of {best}: {lead}."
        )
    rule = f"alpha {ALPHA:g}, Holm over all pairs; {evidence}"
    if not undecided:
        return (
            f"{best} has the highest test {label} in {scenario}: {lead}; it is shown to be higher"
            f" than that of {join_names(others)} ({rule})."
        )
    higher = grouped(shown)
    parts = [f"{better} is higher than {join_names(worse)}" for better, worse in higher.items()]
    return (
        f"Which method has the highest test {label} in {scenario} is not shown: {best} is not shown"
        f" to differ from {' or '.join(undecided)}. The highest mean is that of {best}: {lead}."
        f" Shown ({rule}): {'; '.join(parts)}."
    )


def _evidence(report: Report, scenario: str, metric: str) -> str:
    """How many patients and trainings a comparison rests on."""
    draws = report.draws[scenario]
    count = len(report.pairing(scenario, metric).repeats)
    trainings = "one training" if count == 1 else paired_repeats_in_words([count])
    return f"{draws.units:,} test {draws.unit}, {trainings}" if draws.units else trainings


def _shown_differences(report: Report, scenario: str, metric: str) -> list[tuple[str, str]]:
    """The pairs of methods (better, worse) that differ over trainings, corrected for all pairs, and
    over patients where their scores were kept.
    """
    methods = report.pairing(scenario, metric).methods
    differences: list[tuple[str, str, Difference]] = []
    for place, first in enumerate(methods):
        by_pair = report.trainings_against(first, metric).differences
        for second in methods[place + 1 :]:
            differences.append((first, second, by_pair[scenario, second]))
    holm_p = holm([difference.p for _, _, difference in differences])
    shown = []
    for (first, second, trainings), p in zip(differences, holm_p.tolist(), strict=True):
        better, worse = (first, second) if trainings.mean > 0 else (second, first)
        patients = report.over_patients(scenario, metric, better, worse)
        if p < ALPHA and (patients is None or patients.low > 0):
            shown.append((better, worse))
    return shown


def _intervals_in_brackets(
    report: Report, scenario: str, metric: str, first: str, second: str
) -> str:
    """Of the difference between two methods: over patients and over trainings, as far as there
    are.
    """
    intervals: dict[str, Interval | Difference] = {}
    patients = report.over_patients(scenario, metric, first, second)
    if patients is not None:
        intervals[interval_over_patients(report.draws[scenario])] = patients
    trainings = report.trainings_against(first, metric).differences.get((scenario, second))
    if trainings is not None and trainings.repeats > 1:
        intervals[f"95 % CI over {trainings.repeats} trainings"] = trainings
    ends = [f"{name}: {words.interval_from_to(ends)}" for name, ends in intervals.items()]
    return f" ({'; '.join(ends)})" if ends else ""
