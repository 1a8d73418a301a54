"""The headline, the summary in words, and what to keep in mind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.paired_repeats import paired_repeats_in_words
from feddraw.analysis.statistics import holm, proportion_interval
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
from feddraw.report.sections.client_gains import ClientGain, gains_over_alone
from feddraw.report.sections.what_was_run import shown_path
from feddraw.report.statistics import Report, mean_over_repeats
from feddraw.report.trainings import ALPHA
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
    pairings = [report.pairing(scenario, "auc") for scenario in report.scenarios]
    counts = [len(pairing.repeats) for pairing in pairings if pairing.methods]
    repeats = paired_repeats_in_words(counts)
    if len(report.methods) < 2:
        seeds = len({run.repeat for run in runs})
        repeats = "one seed only" if seeds == 1 else f"{seeds} seeds"
    elif max(counts, default=0) == 1:
        repeats += ", so a difference may be noise between trainings"
    uncounted = sum(len(methods) for pairing in pairings for methods in pairing.uncounted.values())
    if uncounted:
        repeats += (
            f"; {uncounted} run{'s are' if uncounted > 1 else ' is'} not counted, because not all"
            " methods have the seed"
        )
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
        paired = paired_repeats_in_words(ranking.paired)
        result = words.comparison_in_words(ranking.comparison)
        return f"Test {METRICS[metric]} over {scenarios} scenarios, {paired} in each: {result}"
    if len(report.scenarios) == 1:
        return _result_in_scenario(report, report.scenarios[0], metric)
    return _result_without_ranks(report, metric)


def _result_without_ranks(report: Report, metric: str) -> str:
    """What can be claimed where scenarios have too few methods in common to be ranked."""
    label = METRICS[metric]
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
    label = METRICS[metric]
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
        f"Which method has the highest test {label} in {scenario} is not shown: no difference"
        f" between {best} and {join_names(undecided)}. The highest mean is that of {best}: {lead}."
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
    for scenario in report.scenarios:
        for other in report.methods:
            trainings = report.over_repeats(scenario, "auc", other)
            patients = report.over_patients(scenario, "auc", report.focus, other)
            if trainings is not None and patients is not None:
                pairs.append((other, (patients, trainings)))
    return grouped(pairs)


def _references(report: Report) -> Iterator[str]:
    """The mean of each reference beside that of the method in focus, over the seeds that both
    have.
    """
    if not report.methods:
        return
    for reference in report.collection.references:
        pairs = []
        for scenario in report.scenarios:
            theirs = {run.repeat: run for run in report.paired_runs(scenario, reference)}
            ours = [
                run
                for run in report.paired_runs(scenario, report.focus)
                if run.repeat in theirs and math.isfinite(theirs[run.repeat].test("auc"))
            ]
            if ours:
                their_runs = [theirs[run.repeat] for run in ours]
                their_mean = mean_over_repeats(their_runs, "auc").value
                pairs.append((their_mean, mean_over_repeats(ours, "auc").value))
        if pairs:
            their_mean, our_mean = np.mean(pairs, axis=0).tolist()
            yield (
                f"Reference {reference} ({REFERENCES[reference.split(' ')[0]]}) has a mean AUC of"
                f" {their_mean:.4f}, {report.focus} of {our_mean:.4f}."
            )


def _client_gains(report: Report) -> Iterator[str]:
    """How many clients gain over training alone, and how much, each with its interval."""
    several = len(report.scenarios) > 1
    gains: dict[str, ClientGain] = {}
    for scenario in report.scenarios:
        for gain in gains_over_alone(report, scenario, "auc"):
            if gain.method == report.focus and math.isfinite(gain.gain.value):
                client = f"{gain.client} in {scenario}" if several else gain.client
                gains[client] = gain
    if not gains:
        return
    ordered = sorted(gains, key=lambda client: gains[client].gain.value)
    better = sum(gain.gain.value > 0 for gain in gains.values())
    low, high = proportion_interval(better, len(gains))
    sentence = (
        f"With {report.focus}, {better} of {len(gains)} clients{' (of all scenarios)' * several}"
        " have a higher test AUC than with the model they train alone (95 % CI of the share:"
        f" {100 * low:.0f} to {100 * high:.0f} %): from {_gain_of(ordered[0], gains)} to"
        f" {_gain_of(ordered[-1], gains)}."
    )
    intervals = [gain.interval for gain in gains.values() if gain.interval is not None]
    if intervals:
        shown = sum(interval.low > 0 for interval in intervals)
        sentence += (
            f" The 95 % CI over patients lies above 0 for {shown} of {len(intervals)}; noise"
            " between trainings is not in it."
        )
    yield sentence


def _gain_of(client: str, gains: Mapping[str, ClientGain]) -> str:
    gain = gains[client]
    interval = ""
    if gain.interval is not None:
        interval = f", 95 % CI {words.interval_from_to(gain.interval)}"
    return f"{gain.gain.value:+.4f} ({client}{interval})"


# ----------------------------------------------------------------------------- what to keep in mind


def caveats(report: Report) -> Iterator[Block]:
    """What was left out, and what makes numbers less certain than they look."""
    left_out = [*_left_out(report), *uncounted_runs(report)]
    if left_out:
        yield Heading("Left out", 3)
        yield Bullets(left_out)
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


def uncounted_runs(report: Report) -> list[str]:
    """The finished runs that no mean, rank or test has, because not all methods have their seed."""
    sentences: dict[str, None] = {}
    for scenario in report.scenarios:
        for metric, label in METRICS.items():
            for sentence in report.pairing(scenario, metric).uncounted_in_words():
                if metric == "auc":
                    sentences[f"{scenario}: {sentence}"] = None
                elif f"{scenario}: {sentence}" not in sentences:
                    sentences[f"{label} in {scenario}: {sentence}"] = None
    return list(sentences)


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
