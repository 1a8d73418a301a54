"""The headline, the summary in words, and what to keep in mind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.report.blocks import Block, Bullets, Heading
from feddraw.report.patients import interval_over_patients
from feddraw.report.runs import (
    METRICS,
    REFERENCES,
    RecordedRun,
    findings_without_scores,
    undefined_findings,
)
from feddraw.report.sections import servers
from feddraw.report.sections.client_gains import gains_over_alone
from feddraw.report.sections.what_was_run import shown_path
from feddraw.report.statistics import Report, mean_over_repeats
from feddraw.report.trainings import differences_over_trainings
from feddraw.text import grouped, join_names


def section(report: Report) -> Iterator[Block]:
    yield Heading("Summary", anchor="summary")
    yield Bullets(list(_after_headline(report)))
    yield from caveats(report)


def summary_sentences(report: Report) -> Iterator[str]:
    """What a reader should take home; the first sentence is the headline."""
    if report.collection.runs:
        yield headline(report)
        yield from _after_headline(report)
    else:
        yield from servers.sentences(report)


def headline(report: Report) -> str:
    return _result_of_metric(report, "auc")


def _after_headline(report: Report) -> Iterator[str]:
    yield _result_of_metric(report, "gm")
    yield _what_was_compared(report)
    yield from _wins_and_losses(report)
    yield from _no_worse(report)
    yield from _references(report)
    yield from _client_gains(report)
    yield from servers.sentences(report)


def _what_was_compared(report: Report) -> str:
    runs = report.collection.runs
    seeds = len({run.repeat for run in runs})
    repeats = f"{seeds} seeds"
    if seeds == 1:
        repeats = "one seed only, so a difference may be noise between trainings"
    return (
        f"{len(runs)} finished run{'s' * (len(runs) > 1)}: {join_names(report.shown)}; in"
        f" {join_names(report.scenarios)}; {repeats}."
    )


# ---------------------------------------------------------------------------------- the best method


def _result_of_metric(report: Report, metric: str) -> str:
    """The ranks over scenarios, or in one scenario the best method."""
    ranking = report.rankings[metric]
    if ranking.comparison is not None:
        scenarios = len(ranking.comparison.table.scenarios)
        result = words.comparison_in_words(ranking.comparison)
        return f"Test {METRICS[metric]} over {scenarios} scenarios: {result}"
    if len(report.scenarios) == 1:
        return _best_in_scenario(report, report.scenarios[0], metric)
    return f"Test {METRICS[metric]}: {ranking.reason}"


def _best_in_scenario(report: Report, scenario: str, metric: str) -> str:
    label = METRICS[metric]
    compared = _compared_runs(report, scenario, metric)
    means = {method: mean_over_repeats(runs, metric).value for method, runs in compared.items()}
    if not means:
        return f"Test {label} is undefined in every run."
    best = max(means, key=lambda method: means[method])
    others = [method for method in means if method != best]
    if not others:
        return f"{best} has a test {label} of {means[best]:.4f} in {scenario}."
    second = max(others, key=lambda method: means[method])
    sentence = (
        f"{best} has the highest test {label} in {scenario}: {means[best]:.4f},"
        f" {means[best] - means[second]:+.4f} vs {second}"
    )
    draws = report.draws[scenario]
    if not {best, second} <= draws.methods[metric].keys():
        return f"{sentence}."
    intervals: dict[str, Interval | Difference] = {
        interval_over_patients(draws): draws.difference(metric, best, second)
    }
    every_run = [run for runs in compared.values() for run in runs]
    trainings = differences_over_trainings(every_run, metric, best)
    repeated = trainings.differences.get((scenario, second))
    if repeated is not None and repeated.repeats > 1:
        intervals[f"over {repeated.repeats} trainings"] = repeated
    ends = [f"{name}: {words.interval_from_to(ends)}" for name, ends in intervals.items()]
    sentence = f"{sentence} ({'; '.join(ends)})."
    if any(interval.low <= 0 <= interval.high for interval in intervals.values()):
        which = "An" if len(intervals) > 1 else "The"
        return f"{sentence} {which} interval includes 0: no difference between the two is shown."
    if len(intervals) == 1:
        return f"{sentence} One seed that all have: noise between trainings is not in the interval."
    return sentence


def _compared_runs(report: Report, scenario: str, metric: str) -> dict[str, list[RecordedRun]]:
    """By method, the runs with a value of the seeds that all methods have; all where there is none.

    The intervals are over these seeds, so the means are, too.
    """
    defined = [
        run
        for run in report.runs(scenario)
        if not run.reference and math.isfinite(run.test(metric))
    ]
    seeds_by_method = grouped((run.method, run.repeat) for run in defined)
    shared = {run.repeat for run in defined}.intersection(*seeds_by_method.values())
    if report.draws[scenario].repeats:
        shared &= set(report.draws[scenario].repeats)
    return grouped((run.method, run) for run in defined if run.repeat in shared or not shared)


# ------------------------------------------------------------------------------ the method in focus


BothIntervals = tuple[Interval, Difference]  # over patients, over trainings


def _wins_and_losses(report: Report) -> Iterator[str]:
    """In how many scenarios the method in focus differs from each other."""
    differences = _differences_by_method(report)
    if not differences or len(report.scenarios) == 1:
        return
    counts = []
    for other, by_scenario in differences.items():
        won = sum(all(interval.low > 0 for interval in both) for both in by_scenario)
        lost = sum(all(interval.high < 0 for interval in both) for both in by_scenario)
        counts.append(
            f"vs {other}: {won} win{'s' * (won != 1)}, {lost} loss{'es' * (lost != 1)},"
            f" {len(by_scenario) - won - lost} undecided"
        )
    rule = (
        f"win or loss: both 95 % CIs, {_both_populations(report)}, exclude 0; no correction for"
        " multiple tests"
    )
    yield f"AUC of {report.focus} by scenario ({rule}): {'; '.join(counts)}."


def _no_worse(report: Report) -> Iterator[str]:
    """In how many scenarios the method in focus is no worse than each other by the margin."""
    differences = _differences_by_method(report)
    if not differences or not report.margin:
        return
    counts = []
    for other, by_scenario in differences.items():
        shown = sum(all(interval.low > -report.margin for interval in both) for both in by_scenario)
        counts.append(f"{other} in {shown} of {len(by_scenario)}")
    yield (
        f"With a margin of {report.margin:g} in AUC (both 95 % CIs, {_both_populations(report)},"
        f" lie above -{report.margin:g}), {report.focus} is shown to be no worse than"
        f" {join_names(counts)} scenarios."
    )


def _both_populations(report: Report) -> str:
    units = {draws.unit for draws in report.draws.values() if draws.unit}
    return f"over the same test {' or '.join(sorted(units))} and over trainings"


def _differences_by_method(report: Report) -> dict[str, list[BothIntervals]]:
    """By other method, the differences in AUC of the method in focus in each scenario with more
    than one training.
    """
    pairs = []
    for scenario, draws in report.draws.items():
        for other in report.methods:
            trainings = report.over_repeats(scenario, "auc", other)
            if trainings is not None and {report.focus, other} <= draws.methods["auc"].keys():
                patients = draws.difference("auc", report.focus, other)
                pairs.append((other, (patients, trainings)))
    return grouped(pairs)


def _references(report: Report) -> Iterator[str]:
    """The mean of each reference beside that of the method in focus."""
    if not report.methods:
        return
    for reference in report.collection.references:
        both = [
            scenario
            for scenario in report.scenarios
            if report.runs(scenario, reference) and report.runs(scenario, report.focus)
        ]
        if both:
            theirs = np.mean([report.mean(scenario, reference, "auc").value for scenario in both])
            ours = np.mean([report.mean(scenario, report.focus, "auc").value for scenario in both])
            yield (
                f"Reference {reference} ({REFERENCES[reference.split(' ')[0]]}) has a mean AUC of"
                f" {theirs:.4f}, {report.focus} of {ours:.4f}."
            )


def _client_gains(report: Report) -> Iterator[str]:
    """How many clients gain over training alone, and how much."""
    several = len(report.scenarios) > 1
    gains = {}
    for scenario in report.scenarios:
        for gain in gains_over_alone(report, scenario, "auc"):
            if gain.method == report.focus and math.isfinite(gain.gain.value):
                client = f"{gain.client} in {scenario}" if several else gain.client
                gains[client] = gain.gain.value
    if not gains:
        return
    least = min(gains, key=lambda client: gains[client])
    most = max(gains, key=lambda client: gains[client])
    better = sum(gain > 0 for gain in gains.values())
    yield (
        f"With {report.focus}, {better} of {len(gains)} clients{' (of all scenarios)' * several}"
        " have a higher test AUC than with the model they train alone: from"
        f" {gains[least]:+.4f} ({least}) to {gains[most]:+.4f} ({most})."
    )


# ----------------------------------------------------------------------------- what to keep in mind


def caveats(report: Report) -> Iterator[Block]:
    """What was left out, and what makes numbers less certain than they look."""
    if report.collection.problems:
        yield Heading("Left out", 3)
        yield Bullets(list(_left_out(report)))
    runs = report.collection.runs
    notes = [*report.collection.notes, *_undefined(runs), *_diverged(runs), *_not_finite(runs)]
    if notes:
        yield Heading("To keep in mind", 3)
        yield Bullets(notes)


def _left_out(report: Report) -> Iterator[str]:
    """Each folder that is not in the tables, and why; paths as the page shows them."""
    collection = report.collection
    paths = {run.path for run in collection.runs} | {left.path for left in collection.problems}
    outside = [path for path in paths if path.is_absolute() or ".." in path.parts]
    outside.sort(key=lambda path: -len(str(path)))  # one may be the beginning of another
    for problem in collection.problems:
        reason = problem.reason
        for path in outside:
            reason = reason.replace(str(path), shown_path(path, report.folders))
        yield f"{shown_path(problem.path, report.folders)}: {reason}"


def _undefined(runs: Sequence[RecordedRun]) -> list[str]:
    """Which metrics a finding does not have, and why."""
    sentences = set()
    for run in runs:
        for finding in undefined_findings(run):
            if math.isnan(run.test("auc", finding)):
                what = "AUC or GM"
                why = "only positives or only negatives in the test data"
            else:
                what = "GM"
                why = (
                    "only positives or only negatives in the validation data, so there is no"
                    " threshold"
                )
            sentences.add(
                f"{finding} has no {what} in {run.scenario}: {why}, left out of the mean."
            )
    return sorted(sentences)


def _diverged(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for run in runs:
        if run.diverged:
            divergence = run.diverged
            yield f"{_named(run)}, diverged in round {divergence.round}: {divergence.why}."


def _not_finite(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for run in runs:
        findings = findings_without_scores(run)
        if findings:
            yield (
                f"{_named(run)}, has no AUC or GM for {', '.join(findings)}: the model's scores are"
                " not finite numbers."
            )


def _named(run: RecordedRun) -> str:
    return f"{run.method} in {run.scenario}, seed {run.repeat}"
