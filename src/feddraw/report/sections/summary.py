"""The headline, and the summary in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.paired_repeats import paired_repeats_in_words
from feddraw.analysis.statistics import proportion_interval
from feddraw.report.blocks import Block, Bullets, Heading
from feddraw.report.result_in_words import result_of_metric
from feddraw.report.runs import REFERENCES
from feddraw.report.sections import servers
from feddraw.report.sections.client_gains import ClientGain, gains_over_alone
from feddraw.report.statistics import Report, mean_over_repeats
from feddraw.text import grouped, join_names


def section(report: Report) -> Iterator[Block]:
    yield Heading("Summary", anchor="summary")
    yield Bullets(list(_after_headline(report)))


def summary_sentences(report: Report) -> Iterator[str]:
    """What a reader should take home; the first sentence is the headline."""
    if report.collection.runs:
        yield headline(report)
        yield from _after_headline(report)
    else:
        yield from servers.sentences(report)


def headline(report: Report) -> str:
    return result_of_metric(report, "auc")


def _after_headline(report: Report) -> Iterator[str]:
    for metric in list(report.metrics)[1:]:
        yield result_of_metric(report, metric)
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
    margin = report.settings.margin
    if not differences or not margin:
        return
    counts = []
    for other, by_scenario in differences.items():
        shown = sum(all(interval.low > -margin for interval in both) for both in by_scenario)
        counts.append(f"{other} in {shown} of {len(by_scenario)}")
    yield (
        f"With a margin of {margin:g} in AUC (both 95 % CIs, {_both_populations(report)},"
        f" lie above -{margin:g}), {report.focus} is shown to be no worse than"
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
    of_one_class = []
    for scenario in report.scenarios:
        for gain in gains_over_alone(report, scenario, "auc"):
            if gain.method == report.focus and math.isfinite(gain.gain.value):
                client = f"{gain.client} in {scenario}" if several else gain.client
                if gain.both_classes:
                    gains[client] = gain
                else:
                    of_one_class.append(client)
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
    if of_one_class:
        sentence += (
            f" Not among them: {join_names(of_one_class)}, without positive and negative images of"
            f" any {report.task.words.labels.one}."
        )
    yield sentence


def _gain_of(client: str, gains: Mapping[str, ClientGain]) -> str:
    gain = gains[client]
    interval = ""
    if gain.interval is not None:
        interval = f", 95 % CI {words.interval_from_to(gain.interval)}"
    return f"{gain.gain.value:+.4f} ({client}{interval})"
