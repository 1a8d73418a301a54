"""The headline, the summary in words, and what to keep in mind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics_in_words import interval_from_to
from feddraw.report.blocks import Block, Bullets, Heading
from feddraw.report.bootstrap_over_patients import patients_interval_name
from feddraw.report.differences_over_trainings import differences_over_trainings
from feddraw.report.report_statistics import Report, mean_over_repeats
from feddraw.report.sections.client_gains import gains_over_alone
from feddraw.report.sections.what_was_run import shown_path
from feddraw.results.recorded_run import METRICS, REFERENCES, RecordedRun
from feddraw.results.run_collection import RunCollection
from feddraw.text import grouped, join_names


def summary_sentences(report: Report) -> Iterator[str]:
    """What a reader should take home; the first sentence is the headline."""
    collection = report.collection
    yield _metric_headline(report, "auc")
    yield _metric_headline(report, "gm")
    runs, seeds = len(collection.runs), len({run.repeat for run in collection.runs})
    chance = "one seed only, so a difference may be noise between trainings"
    of_seeds = chance if seeds == 1 else f"{seeds} seeds"
    what = f"{join_names(report.shown)}; in {join_names(collection.scenarios)}; {of_seeds}"
    yield f"{runs} finished run{'s' * (runs > 1)}: {what}."
    yield from _summary_of_pairs(report)
    yield from _summary_of_references(report)
    yield from _summary_of_gains(report)


def _metric_headline(report: Report, metric: str) -> str:
    scenarios, label, ranking = (
        report.collection.scenarios,
        METRICS[metric],
        report.rankings[metric],
    )
    if (comparison := ranking.comparison) is not None:
        return (
            f"Test {label} over {len(comparison.table.scenarios)} scenarios:"
            f" {words.comparison_in_words(comparison)}"
        )
    if len(scenarios) == 1:
        return _summary_headline(report, scenarios[0], metric)
    return f"Test {label}: {ranking.reason}"


def _summary_headline(report: Report, scenario: str, metric: str) -> str:
    runs = [
        run
        for run in report.collection.of(scenario)
        if not run.reference and math.isfinite(run.test(metric))
    ]
    seeds = [set(repeats) for repeats in grouped((run.method, run.repeat) for run in runs).values()]
    draws = report.draws[scenario]
    drawn = [set(draws.repeats)] if draws.repeats else []
    shared = (
        set.intersection(*seeds, *drawn) if seeds else set()
    )  # the intervals are over these, so the means are, too
    compared = grouped((run.method, run) for run in runs if run.repeat in shared or not shared)
    means = {method: mean_over_repeats(own, metric).value for method, own in compared.items()}
    if not means:
        return f"Test {METRICS[metric]} is undefined in every run."
    best = max(means, key=lambda method: means[method])
    said = f"{best} has the highest test {METRICS[metric]} in {scenario}: {means[best]:.4f}"
    others = [method for method in means if method != best]
    if not others:
        return f"{best} has a test {METRICS[metric]} of {means[best]:.4f} in {scenario}."
    second = max(others, key=lambda method: means[method])
    said += f", {means[best] - means[second]:+.4f} vs {second}"
    if not {best, second} <= draws.methods[metric].keys():
        return f"{said}."
    found: dict[str, Interval | Difference] = {
        patients_interval_name(draws): draws.difference(metric, best, second)
    }
    trainings = differences_over_trainings(
        [run for own in compared.values() for run in own], metric, best
    )
    repeated = trainings.found.get((scenario, second))
    if repeated is not None and repeated.repeats > 1:
        found[f"over {repeated.repeats} trainings"] = repeated
    said += f" ({'; '.join(f'{name}: {interval_from_to(one)}' for name, one in found.items())})."
    if any(one.low <= 0 <= one.high for one in found.values()):
        which = "An" if len(found) > 1 else "The"
        return f"{said} {which} interval includes 0: no difference between the two is shown."
    return (
        said
        if len(found) > 1
        else f"{said} One seed that all have: noise between trainings is not in the interval."
    )


BothIntervals = tuple[Interval, Difference]  # over patients, over trainings


def _summary_of_pairs(report: Report) -> Iterator[str]:
    """In how many scenarios the method in focus differs from each other, over patients and over
    trainings.
    """
    found = _summary_differences(report)
    if not found:
        return
    units = {one.unit for one in report.draws.values() if one.unit}
    both = f"over the same test {' or '.join(sorted(units))} and over trainings"
    if len(report.collection.scenarios) > 1:
        said = []
        for other, pairs in found.items():
            won = sum(all(one.low > 0 for one in pair) for pair in pairs)
            lost = sum(all(one.high < 0 for one in pair) for pair in pairs)
            decided = f"{won} win{'s' * (won != 1)}, {lost} loss{'es' * (lost != 1)}"
            said.append(f"vs {other}: {decided}, {len(pairs) - won - lost} undecided")
        how = f"win or loss: both 95 % CIs, {both}, exclude 0; no correction for multiple tests"
        yield f"AUC of {report.focus} by scenario ({how}): {'; '.join(said)}."
    if report.margin:
        said = [
            f"{other} in {sum(all(one.low > -report.margin for one in pair) for pair in pairs)} of"
            f" {len(pairs)}"
            for other, pairs in found.items()
        ]
        how = (
            f"With a margin of {report.margin:g} in AUC (both 95 % CIs, {both}, lie above"
            f" -{report.margin:g})"
        )
        yield f"{how}, {report.focus} is shown to be no worse than {join_names(said)} scenarios."


def _summary_differences(report: Report) -> dict[str, list[BothIntervals]]:
    """By other method, the differences in AUC of the method in focus in each scenario with more
    than one training.
    """
    found: dict[str, list[BothIntervals]] = {}
    for scenario, draws in report.draws.items():
        for other in report.collection.methods:
            over = report.over_repeats(scenario, "auc", other)
            if over is not None and {report.focus, other} <= draws.methods["auc"].keys():
                found.setdefault(other, []).append(
                    (draws.difference("auc", report.focus, other), over)
                )
    return found


def _summary_of_references(report: Report) -> Iterator[str]:
    collection = report.collection
    for name in collection.references:
        both = [
            s
            for s in collection.scenarios
            if collection.of(s, name) and collection.of(s, report.focus)
        ]
        if both and collection.methods:
            theirs = np.mean([report.mean(s, name, "auc").value for s in both])
            ours = np.mean([report.mean(s, report.focus, "auc").value for s in both])
            what = REFERENCES[name.split(" ")[0]]
            yield (
                f"Reference {name} ({what}) has a mean AUC of {theirs:.4f}, {report.focus} of"
                f" {ours:.4f}."
            )


def _summary_of_gains(report: Report) -> Iterator[str]:
    scenarios = report.collection.scenarios
    found = {
        f"{gain.client} in {scenario}" if scenarios[1:] else gain.client: gain.gain.value
        for scenario in scenarios
        for gain in gains_over_alone(report, scenario, "auc")
        if gain.method == report.focus and math.isfinite(gain.gain.value)
    }
    if found:
        least, most = (
            min(found, key=lambda client: found[client]),
            max(found, key=lambda client: found[client]),
        )
        who = (
            f"With {report.focus}, {sum(gain > 0 for gain in found.values())} of {len(found)}"
            " clients"
        )
        who += " (of all scenarios)" if scenarios[1:] else ""
        reach = f"from {found[least]:+.4f} ({least}) to {found[most]:+.4f} ({most})"
        yield f"{who} have a higher test AUC than with the model they train alone: {reach}."


def summary_caveats(report: Report) -> Iterator[Block]:
    collection = report.collection
    if collection.problems:
        yield Heading("Left out", 3)
        telling = [
            one for one in _summary_paths(collection) if one.is_absolute() or ".." in one.parts
        ]
        places = {str(one): shown_path(one, report.folders) for one in telling}
        yield Bullets(
            [
                f"{shown_path(one.path, report.folders)}: {_summary_with_paths(places, one.reason)}"
                for one in collection.problems
            ]
        )
    undefined = sorted(
        {
            f"{finding} has no {_summary_of_undefined(run, finding)}, left out of the mean."
            for run in collection.runs
            for finding in run.metrics["test"].get("undefined", [])
            if finding not in run.metrics["test"].get("not_finite", [])
        }
    )
    broken = [
        f"{run.method} in {run.scenario}, seed {run.repeat}, has no AUC or GM for"
        f" {', '.join(names)}: the model's scores are not finite numbers."
        for run in collection.runs
        if (names := run.metrics["test"].get("not_finite", []))
    ]
    diverged = [
        f"{run.method} in {run.scenario}, seed {run.repeat}, diverged in round {run.diverged[0]}:"
        f" {run.diverged[1]}."
        for run in collection.runs
        if run.diverged
    ]
    notes = [*collection.notes, *undefined, *diverged, *broken]
    if notes:
        yield Heading("To keep in mind", 3)
        yield Bullets(notes)


def _summary_of_undefined(run: RecordedRun, finding: str) -> str:
    """Which metrics a finding does not have in a run, and why."""
    if math.isnan(run.test("auc", finding)):
        return f"AUC or GM in {run.scenario}: only positives or only negatives in the test data"
    return (
        f"GM in {run.scenario}: only positives or only negatives in the validation data, so there"
        " is no threshold"
    )


def _summary_paths(collection: RunCollection) -> list[Path]:
    """All that a sentence may name, the longest first."""
    found = [run.path for run in collection.runs] + [
        problem.path for problem in collection.problems
    ]
    return sorted(set(found), key=lambda path: -len(str(path)))


def _summary_with_paths(places: Mapping[str, str], words: str) -> str:
    for path, shown in places.items():
        words = words.replace(path, shown)
    return words
