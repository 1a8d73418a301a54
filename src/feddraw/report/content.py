"""What a report says, in the order in which a reader asks.

The first screen has the result: a headline, the weights of the method in focus, and the table. Then come the summary,
the statistics over scenarios, each scenario in detail, and how it was done. A section without content is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from feddraw.analysis import words
from feddraw.analysis.differences import Difference
from feddraw.analysis.explain import explain, listed, sentences
from feddraw.analysis.plots import CROWD
from feddraw.analysis.statistics import Interval
from feddraw.naming import slug
from feddraw.report import hospitals, pictures, splits
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    Columns,
    Document,
    Fold,
    Gallery,
    Heading,
    Only,
    Table,
    Text,
    numeral,
)  # fmt: skip
from feddraw.report.evidence import (
    Draws,
    Gain,
    Mean,
    Ranking,
    Trainings,
    draw,
    gains,
    mean,
    mean_over,
    over_trainings,
    rank_methods,
)
from feddraw.report.record import record, shown_path
from feddraw.results.runs import METRICS, REFERENCES, UNTESTED, Collection, Run, number

Say = Callable[[str], None]

WITHOUT_FEW = "mean without †"  # the mean over findings with enough test images
MODELS = {"last": "last round", "best": "best validation round", "tail": "mean of the last rounds"}


@dataclass(frozen=True, eq=False)
class Report:
    """All that is needed to write about a collection of runs."""

    collection: Collection
    rankings: Mapping[str, Ranking]  # by metric
    draws: Mapping[str, Draws | str]  # by scenario
    command: str
    margin: float = 0.0  # how far below another method still counts as no worse; 0: not asked
    folders: Sequence[Path] = ()  # where the runs were found
    replicates: int = 0  # of the bootstrap

    @cached_property
    def trainings(self) -> dict[str, Trainings]:
        """By metric: the method in focus minus each other, over repeats."""
        return {metric: over_trainings(self.collection.runs, metric, self.focus) for metric in METRICS}

    @property
    def focus(self) -> str:
        """The method that others are compared with: FedDRAW, or else the first."""
        methods = self.collection.methods or self.collection.references
        return next((method for method in methods if method.split(" ")[0] == "feddraw"), methods[0])

    @property
    def shown(self) -> list[str]:
        """Methods, then references: the order of every table and the look of every line."""
        return self.collection.methods + self.collection.references


def examine(
    collection: Collection,
    *,
    alpha: float,
    replicates: int,
    command: str,
    say: Say,
    margin: float = 0.0,
    folders: Sequence[Path] = (),
) -> Report:
    """Do the statistics."""
    rankings = {metric: rank_methods(collection, metric, alpha) for metric in METRICS}
    draws = {}
    for scenario in collection.scenarios:
        say(f"comparing methods in {scenario}")
        draws[scenario] = draw(collection.of(scenario), replicates)
    return Report(collection, rankings, draws, command, margin, folders, replicates)


def compose(report: Report, title: str, say: Say) -> Document:
    """The whole report as blocks."""
    headline, *others = main_results(report)
    blocks: list[Block] = [Text(headline, lead=True)]
    blocks += [Only(list(_first_screen(report, s)), scenario=s) for s in report.collection.scenarios]
    blocks += [Only(list(_population(report, s)), scenario=s) for s in report.collection.scenarios]
    blocks.append(Text(" ".join(disclaimers(report.collection)), quiet=True))
    blocks += [Heading("Summary", anchor="summary"), Bullets(others)]
    blocks += list(_caveats(report))
    blocks += list(_results(report))
    blocks += list(_over_scenarios(report))
    for scenario in report.collection.scenarios:
        say(f"drawing {scenario}")
        blocks.append(Only(list(_scenario(report, scenario)), scenario=scenario))
    blocks += list(record(report.collection, report.command, report.folders))
    return Document(title, blocks, report.collection.scenarios)


def disclaimers(collection: Collection) -> Iterator[str]:
    names = {run.settings["data"]["name"] for run in collection.runs}
    if names == {"phantom"}:
        yield "Synthetic phantoms, no patients: they show how the methods behave, not how well they diagnose."
    yield "Research software, not a medical device."


# ---------------------------------------------------------------------------------------------------- in words


def main_results(report: Report) -> Iterator[str]:
    """What a reader should take home; the first sentence is the headline."""
    collection = report.collection
    yield _result(report, "auc")
    yield _result(report, "gm")
    runs, seeds = len(collection.runs), len({run.repeat for run in collection.runs})
    chance = "one seed only, so no difference here can be told from the noise between trainings"
    of_seeds = chance if seeds == 1 else f"{seeds} seeds"
    what = f"{listed(report.shown)}; in {listed(collection.scenarios)}; {of_seeds}"
    yield f"{runs} finished run{'s' * (runs > 1)}: {what}."
    yield from _summary_of_pairs(report)
    yield from _summary_of_references(report)
    yield from _summary_of_gains(report)


def _result(report: Report, metric: str) -> str:
    """What a metric says in one sentence."""
    scenarios, label, ranking = report.collection.scenarios, METRICS[metric], report.rankings[metric]
    if (comparison := ranking.comparison) is not None:
        return f"Test {label} over {len(comparison.table.scenarios)} scenarios: {words.summary(comparison)}"
    if len(scenarios) == 1:
        return _result_in(report, scenarios[0], metric)
    return f"Test {label}: {ranking.reason}"


def _result_in(report: Report, scenario: str, metric: str) -> str:
    means = {m: mean(report.collection.of(scenario, m), metric).value for m in report.collection.methods}
    means = {method: value for method, value in means.items() if math.isfinite(value)}
    if not means:
        return f"Test {METRICS[metric]} is undefined in every run."
    best = max(means, key=lambda method: means[method])
    said = f"{best} has the highest test {METRICS[metric]} in {scenario}: {means[best]:.4f}"
    others = [method for method in means if method != best]
    if not others:
        return f"{best} has a test {METRICS[metric]} of {means[best]:.4f} in {scenario}."
    second = max(others, key=lambda method: means[method])
    said += f", {means[best] - means[second]:+.4f} vs {second}"
    draws = report.draws[scenario]
    if not (isinstance(draws, Draws) and {best, second} <= draws.methods[metric].keys()):
        return f"{said}."
    intervals: dict[str, Interval | Difference] = {_interval_over(draws): draws.difference(metric, best, second)}
    trainings = over_trainings(report.collection.of(scenario), metric, best)
    repeated = trainings.found.get((scenario, second))
    if repeated is not None and repeated.repeats > 1:
        intervals[f"over {repeated.repeats} trainings"] = repeated
    said += f" ({'; '.join(f'{name}: {span(one)}' for name, one in intervals.items())})."
    if any(one.low <= 0 <= one.high for one in intervals.values()):
        which = "An" if len(intervals) > 1 else "The"
        return f"{said} {which} interval includes 0: no difference between the two is shown."
    return said if len(intervals) > 1 else f"{said} One training each: noise between trainings is not in the interval."


def _interval_over(draws: Draws) -> str:
    return f"95 % bootstrap CI over {draws.units:,} test {draws.unit}"


def _summary_of_pairs(report: Report) -> Iterator[str]:
    """In how many scenarios the method in focus differs from each other, over patients and over trainings."""
    found = _paired(report)
    if not found:
        return
    units = {one.unit for one in report.draws.values() if isinstance(one, Draws)}
    both = f"over the same test {' or '.join(sorted(units))} and over trainings"
    if len(report.collection.scenarios) > 1:
        said = []
        for other, pairs in found.items():
            won, lost = sum(min(_lows(pair)) > 0 for pair in pairs), sum(max(_highs(pair)) < 0 for pair in pairs)
            counts = [_count(won, "win"), _count(lost, "loss"), f"{len(pairs) - won - lost} undecided"]
            said.append(f"vs {other}: {', '.join(counts)}")
        how = f"both 95 % CIs, {both}, exclude 0; without correction"
        yield f"AUC of {report.focus} by scenario ({how}): {'; '.join(said)}."
    if report.margin:
        said = [
            f"{other} in {sum(min(_lows(pair)) > -report.margin for pair in pairs)} of {len(pairs)}"
            for other, pairs in found.items()
        ]
        how = f"With a margin of {report.margin:g} in AUC (both 95 % CIs, {both}, lie above -{report.margin:g})"
        yield f"{how}, {report.focus} is shown to be no worse than {listed(said)} scenarios."


Both = tuple[Interval, Difference]  # over patients, over trainings


def _lows(pair: Both) -> tuple[float, float]:
    return pair[0].low, pair[1].low


def _highs(pair: Both) -> tuple[float, float]:
    return pair[0].high, pair[1].high


def _count(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def _paired(report: Report) -> dict[str, list[Both]]:
    """By other method, the differences in AUC of the method in focus in each scenario with more than one training."""
    found: dict[str, list[Both]] = {}
    for scenario, draws in report.draws.items():
        drawn = draws.methods["auc"] if isinstance(draws, Draws) else {}
        for other in report.collection.methods:
            over = _over_trainings(report, scenario, "auc", other)
            if over is not None and isinstance(draws, Draws) and {report.focus, other} <= drawn.keys():
                found.setdefault(other, []).append((draws.difference("auc", report.focus, other), over))
    return found


def _over_trainings(report: Report, scenario: str, metric: str, other: str) -> Difference | None:
    """The method in focus minus another over repeats, where there is more than one."""
    found = report.trainings[metric].found.get((scenario, other))
    return found if found is not None and found.repeats > 1 else None


def _summary_of_references(report: Report) -> Iterator[str]:
    collection = report.collection
    for name in collection.references:
        both = [s for s in collection.scenarios if collection.of(s, name) and collection.of(s, report.focus)]
        if both and collection.methods:
            theirs = np.mean([mean(collection.of(s, name), "auc").value for s in both])
            ours = np.mean([mean(collection.of(s, report.focus), "auc").value for s in both])
            what = REFERENCES[name.split(" ")[0]]
            yield f"Reference {name} ({what}) has a mean AUC of {theirs:.4f}, {report.focus} of {ours:.4f}."


def _summary_of_gains(report: Report) -> Iterator[str]:
    scenarios = report.collection.scenarios
    found = {
        f"{gain.client} in {scenario}" if scenarios[1:] else gain.client: gain.gain.value
        for scenario in scenarios
        for gain in _gains(report, scenario, "auc")
        if gain.method == report.focus and math.isfinite(gain.gain.value)
    }
    if found:
        least, most = min(found, key=lambda client: found[client]), max(found, key=lambda client: found[client])
        who = f"With {report.focus}, {sum(gain > 0 for gain in found.values())} of {len(found)} clients"
        who += " (of all scenarios)" if scenarios[1:] else ""
        reach = f"from {found[least]:+.4f} ({least}) to {found[most]:+.4f} ({most})"
        yield f"{who} have a higher test AUC than with the model they train alone: {reach}."


def _gains(report: Report, scenario: str, metric: str, split: str = "test") -> list[Gain]:
    draws = report.draws[scenario]
    return list(gains(report.collection.of(scenario), metric, draws if isinstance(draws, Draws) else None, split))


def brackets(found: Interval | Difference) -> str:
    return f"[{found.low:+.4f}, {found.high:+.4f}]"


def span(found: Interval | Difference) -> str:
    return f"{found.low:+.4f} to {found.high:+.4f}"


def _lacking(run: Run, finding: str) -> str:
    """Which metrics a finding does not have in a run, and why."""
    if math.isnan(run.test("auc", finding)):
        return f"AUC or GM in {run.scenario}: one label only in the test data"
    return f"GM in {run.scenario}: one label only in the validation data, so there is no threshold"


def _caveats(report: Report) -> Iterator[Block]:
    collection = report.collection
    if collection.problems:
        yield Heading("Left out", 3)
        places = {str(one): shown_path(one, report.folders) for one in _paths(collection)}
        yield Bullets([_without(places, f"{problem.path}: {problem.reason}") for problem in collection.problems])
    undefined = sorted(
        {
            f"{finding} has no {_lacking(run, finding)}, left out of the mean."
            for run in collection.runs
            for finding in run.metrics["test"].get("undefined", [])
            if finding not in run.metrics["test"].get("not_finite", [])
        }
    )
    broken = [
        f"{run.method} in {run.scenario}, seed {run.repeat}, has no AUC or GM for {', '.join(names)}: the "
        "model's scores are not finite numbers."
        for run in collection.runs
        if (names := run.metrics["test"].get("not_finite", []))
    ]
    diverged = [
        f"{run.method} in {run.scenario}, seed {run.repeat}, diverged in round {run.diverged[0]}: {run.diverged[1]}."
        for run in collection.runs
        if run.diverged
    ]
    notes = [*collection.notes, *undefined, *diverged, *broken]
    if notes:
        yield Heading("To keep in mind", 3)
        yield Bullets(notes)


def _paths(collection: Collection) -> list[Path]:
    """All that a sentence may name, the longest first."""
    found = [run.path for run in collection.runs] + [problem.path for problem in collection.problems]
    return sorted(set(found), key=lambda path: -len(str(path)))


def _without(places: Mapping[str, str], words: str) -> str:
    for path, shown in places.items():
        words = words.replace(path, shown)
    return words


# ---------------------------------------------------------------------------------------------------- the result


def _first_screen(report: Report, scenario: str) -> Iterator[Block]:
    """The weights of the method in focus beside the table of one scenario."""
    tables: list[Block] = [Only([first_table(report, scenario, m, label)], metric=m) for m, label in METRICS.items()]
    weighed = _weighed(report.collection, scenario)
    focus = report.focus if report.focus in weighed else next(iter(weighed), "")
    if not focus:
        yield from tables
        return
    drawn = pictures.weights({focus: weighed[focus]}, slug(scenario), title=f"{focus} in {scenario}: weight by round")
    yield Columns([Gallery(drawn), Only(tables)])


def _population(report: Report, scenario: str) -> Iterator[Block]:
    if said := splits.population(report.collection.of(scenario)):
        yield Text(said, quiet=True)


def _weighed(collection: Collection, scenario: str) -> dict[str, list[Run]]:
    """The methods whose runs have a ledger of weights."""
    found = {method: collection.of(scenario, method) for method in collection.methods}
    return {method: runs for method, runs in found.items() if any(len(run.ledger.clients) for run in runs)}


def first_table(report: Report, scenario: str, metric: str, label: str) -> Table:
    """One row per method: its mean, and the difference of the method in focus to it, with intervals."""
    collection, draws = report.collection, report.draws[scenario]
    there = [method for method in report.shown if collection.of(scenario, method)]
    means = _column({m: mean(collection.of(scenario, m), metric) for m in there}, collection.methods)
    drawn = draws.methods[metric] if isinstance(draws, Draws) and report.focus in draws.methods[metric] else {}
    trained = {method: _over_trainings(report, scenario, metric, method) for method in there}
    repeated = any(trained.values())
    columns = {
        "difference": bool(drawn) or repeated,
        f"95 % CI, {draws.unit}" if isinstance(draws, Draws) else "": bool(drawn),
        "95 % CI, trainings": repeated,
        f"no worse by {report.margin:g}": bool(drawn) and bool(report.margin),
    }

    def row(method: str) -> list[Cell]:
        over = None
        if method in drawn and method != report.focus and isinstance(draws, Draws):
            over = draws.difference(metric, report.focus, method)
        cells = _difference(over, trained[method], report.margin)
        return [
            Cell(method),
            means[method],
            *(cell for cell, shown in zip(cells, columns.values(), strict=True) if shown),
        ]

    one = len(collection.scenarios) == 1
    return Table(
        f"Test {label} in {scenario}" + (f"; difference: {report.focus} − method" if drawn or repeated else ""),
        ["method", label, *(name for name, shown in columns.items() if shown)],
        [row(method) for method in there if method in collection.methods],
        [row(method) for method in there if method in collection.references],
        f"{_note(collection)} {_interval_note(report, draws, metric)}",
        label=f"results-{metric}" if one else f"results-{slug(scenario)}-{metric}",
    )


def _difference(patients: Interval | None, trainings: Difference | None, margin: float) -> list[Cell]:
    """The difference, its interval over patients and over trainings, and whether both lie above the margin."""
    estimate = patients.estimate if patients else trainings.mean if trainings else math.nan
    known = [one for one in (patients, trainings) if one is not None]
    shown = "yes" if all(one.low > -margin for one in known) else "not shown"
    return [
        numeral(estimate, "+.4f") if known else Cell(""),
        *(Cell(brackets(one), one.low) if one else Cell("") for one in (patients, trainings)),
        Cell("" if not known else shown if len(known) > 1 else "one training"),
    ]


def _interval_note(report: Report, draws: Draws | str, metric: str) -> str:
    """What the intervals are made of, and what is not in them."""
    trainings = report.trainings[metric]
    if isinstance(draws, str):
        return " ".join([draws, *([_trainings_note(trainings)] if trainings.repeats > 1 else [])])
    said = f"{_patients_note(draws)} {_trainings_note(trainings) if trainings.repeats > 1 else ''}"
    if draws.left_out:
        said += f" Not compared, because scores of the same images are missing: {listed(draws.left_out)}."
    if report.margin:
        said += f" No worse: both intervals lie above -{report.margin:g}; one training cannot show it."
    return said


def _patients_note(draws: Draws) -> str:
    seeds = f"averaged over seeds {listed(draws.repeats)}" if draws.repeats[1:] else f"of seed {draws.repeats[0]}"
    return f"{_interval_over(draws)}, paired, {seeds}; noise between trainings is not included."


def _trainings_note(trainings: Trainings) -> str:
    wider = f", widened because {trainings.folds} folds share training images (Nadeau and Bengio)"
    return f"CI over trainings: Student's t over paired seeds{wider if trainings.folds else ''}."


def _results(report: Report) -> Iterator[Block]:
    if len(report.collection.scenarios) < 2:
        return
    yield Heading("All scenarios", anchor="results")
    for metric, label in METRICS.items():
        yield Only([_table(report, metric, label), *_differences(report, "", metric, label)], metric=metric)


def _table(report: Report, metric: str, label: str) -> Table:
    """One row per method, one column per scenario; then the average rank."""
    collection, comparison = report.collection, report.rankings[metric].comparison
    cells = {
        scenario: _column({m: mean(collection.of(scenario, m), metric) for m in report.shown}, collection.methods)
        for scenario in collection.scenarios
    }
    ranks = {} if comparison is None else comparison.average_ranks
    header = ["method", *collection.scenarios, *(["average rank"] if ranks else [])]

    def row(method: str) -> list[Cell]:
        rank = [numeral(ranks[method], ".2f") if method in ranks else Cell("not ranked")] if ranks else []
        return [Cell(method), *(column[method] for column in cells.values()), *rank]

    return Table(
        f"Test {label}: mean ± standard deviation over seeds",
        header,
        [row(method) for method in collection.methods],
        [row(method) for method in collection.references],
        _note(collection),
        label=f"results-{metric}",
    )


def _note(collection: Collection) -> str:
    note = "* best mean of the column. "
    if collection.references:
        named = {name.split(" ")[0] for name in collection.references}
        note += " ".join(f"{name}: {REFERENCES[name]}." for name in sorted(named)) + " References are not ranked. "
    if len({run.repeat for run in collection.runs}) == 1:
        note += "One run per method: a difference may be noise between trainings."
    else:
        note += "Mean ± standard deviation over seeds (ddof 1); n is given where a cell has fewer runs than others."
    return note


def _column(means: Mapping[str, Mean], ranked: Sequence[str]) -> dict[str, Cell]:
    """Means of one column, the best of the methods marked."""
    values = [means[m].value for m in ranked if m in means and math.isfinite(means[m].value)]
    best = max(values, default=math.nan)
    most = max((one.runs for one in means.values()), default=0)
    return {name: _mean_cell(one, most, name in ranked and one.value == best) for name, one in means.items()}


def _mean_cell(one: Mean, most: int, best: bool) -> Cell:
    if not one.runs:
        return Cell("not run")
    if not one.count:
        return Cell("undefined")
    text = f"{one.value:.4f}" + (f" ± {one.spread:.4f}" if math.isfinite(one.spread) else "")
    if one.count < one.runs:
        text += f" (n = {one.count}, undefined in {one.runs - one.count})"
    elif one.count < most:
        text += f" (n = {one.count})"
    return Cell(text, one.value, best)


# ---------------------------------------------------------------------------------------------------- over scenarios


def _over_scenarios(report: Report) -> Iterator[Block]:
    if not any(ranking.comparison or ranking.left_out for ranking in report.rankings.values()):
        return
    yield Heading("Ranks over scenarios", anchor="ranks")
    for metric, label in METRICS.items():
        yield Only(list(_ranks(report, metric, label)), metric=metric)


def _ranks(report: Report, metric: str, label: str) -> Iterator[Block]:
    ranking = report.rankings[metric]
    if ranking.left_out:
        yield Text(f"Left out of the ranks of {label}:")
        yield Bullets(ranking.left_out)
    comparison = ranking.comparison
    if comparison is None:
        yield Text(f"{label}: {ranking.reason} So there is no average rank and no test over scenarios.")
        return
    yield Text(f"{label}: {words.summary(comparison)}")
    yield Gallery([pictures.ranks(comparison, metric, label)])
    yield Bullets([*words.tests(comparison), *words.reach(comparison)])
    rows = [
        [
            Cell(pair.first),
            Cell(pair.second),
            Cell(f"{pair.rank_gap:.2f}{'*' if pair.significant else ''}", pair.rank_gap),
            Cell(words.p_text(pair.nemenyi_p), pair.nemenyi_p),
            Cell(words.p_text(pair.holm_p), pair.holm_p),
            numeral(pair.mean_difference, "+.4f"),
            numeral(pair.rank_biserial, "+.2f"),
            Cell(f"{pair.wins}-{pair.ties}-{pair.losses}", pair.wins - pair.losses),
        ]
        for pair in comparison.pairs
    ]
    header = ["first", "second", "rank gap", "Nemenyi p", "Holm p", "difference", "effect", "won-tied-lost"]
    note = (
        f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's signed-rank test, "
        "corrected for all pairs. Difference: mean of first minus second. Effect: matched-pairs rank-biserial."
    )
    yield Fold(
        f"All pairs of methods ({label})",
        [Table(f"{label}, pairs of methods", header, rows, (), note, f"pairs-{metric}")],
    )


# ---------------------------------------------------------------------------------------------------- a scenario


def _scenario(report: Report, scenario: str) -> Iterator[Block]:
    runs = report.collection.of(scenario)
    yield Heading(f"Scenario {scenario}", anchor=f"scenario-{slug(scenario)}")
    yield Gallery(list(pictures.clients(runs, slug(scenario))), "Client sizes and how common each finding is there.")
    draws = report.draws[scenario]
    yield from splits.section(runs, scenario, report.focus, _replicates(draws))
    for metric, label in METRICS.items():
        yield Only(list(_findings(report, scenario, metric, label)), metric=metric)
        yield Only(list(_differences(report, scenario, metric, label)), metric=metric)
        yield Only(list(_other_pairs(report, scenario, metric, label)), metric=metric)
        yield Only(list(_client_gains(report, scenario, metric, label)), metric=metric)
    yield from hospitals.section(runs, scenario, report.focus, draws, _replicates(draws))
    yield from _kept_models(report, scenario)
    yield from _weights(report, scenario)
    yield from _curves(report, scenario)
    drawn = list(pictures.operating_points(runs, report.shown, report.focus, slug(scenario)))
    if drawn:
        note = "Mean over seeds; the marker is where the threshold chosen on validation data lands on test data."
        yield Heading(f"Sensitivity and specificity in {scenario}", 3)
        yield Gallery(drawn, note)


def _replicates(draws: Draws | str) -> int:
    """As many as the comparison of the methods has."""
    return 0 if isinstance(draws, str) else len(next(iter(draws.methods["auc"].values()))) - 1


def _findings(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    collection = report.collection
    findings = list(dict.fromkeys(finding for run in collection.of(scenario) for finding in run.findings))
    there = [method for method in report.shown if collection.of(scenario, method)]
    columns = {"mean": {m: mean(collection.of(scenario, m), metric) for m in there}}
    if trusted := splits.unmarked_findings(collection.of(scenario)):
        columns[WITHOUT_FEW] = {m: mean_over(collection.of(scenario, m), metric, trusted) for m in there}
    columns |= {f: {m: mean(collection.of(scenario, m), metric, f) for m in there} for f in findings}
    cells = {name: _column(column, collection.methods) for name, column in columns.items()}
    rows = {method: [Cell(method), *(cells[name][method] for name in cells)] for method in there}
    yield Heading(f"{label} by finding in {scenario}", 3)
    yield Table(
        f"Test {label} in {scenario} by finding",
        ["method", *(_heading(name, collection.of(scenario), metric) for name in cells)],
        [rows[method] for method in there if method in collection.methods],
        [rows[method] for method in there if method in collection.references],
        f"* best mean of the column. † {splits.few_in_words()}.",
        label=f"findings-{slug(scenario)}-{metric}",
    )


def _differences(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    """The method in focus minus the others over trainings, and how much it depends on the last round."""
    trainings, where = report.trainings[metric], f"in {scenario}" if scenario else "over all scenarios"
    there = [method for method in report.shown if (scenario, method) in trainings.found]
    repeated = any(trainings.found[scenario, method].repeats > 1 for method in there)
    if not there or not (repeated or trainings.split):
        return
    header = ["method"]
    if repeated:
        header += ["difference", "95 % CI, trainings", "Holm p", "ahead in", "more seeds"]
    if trainings.split:
        header += [f"last round ({trainings.split})", f"last five ({trainings.split})"]
    rows = [[Cell(m), *_difference_cells(trainings, (scenario, m), repeated)] for m in there]
    note = words.about_differences(list(trainings.found.values()), 0.05, trainings.folds, last=False)
    if trainings.split:
        note += f" last round, last five: the same difference on {trainings.split} data, after the last round and as "
        note += "the mean of the last five rounds. If they disagree, the result depends on where training stopped."
    yield Heading(f"{label}: {report.focus} vs the others {where}", 3)
    yield Table(f"{label} of {report.focus} minus that of each method {where}", header, rows, (), note)


def _difference_cells(trainings: Trainings, where: tuple[str, str], repeated: bool) -> list[Cell]:
    one, cells = trainings.found[where], []
    if repeated:
        tested = [Cell(brackets(one), one.low), Cell(words.p_text(one.holm_p) + "*" * (one.holm_p < 0.05), one.holm_p)]
        cells = [
            numeral(one.mean, "+.4f"),
            *(tested if one.repeats > 1 else [Cell("one seed")] * 2),
            Cell(f"{one.wins} of {one.repeats}", one.wins / one.repeats),
            Cell(words.more_repeats(one)),
        ]
    if trainings.split:
        by_round = (trainings.last.get(where), trainings.last_five.get(where))
        cells += [numeral(late.mean, "+.4f") if late else Cell("unknown") for late in by_round]
    return cells


def _heading(name: str, runs: Sequence[Run], metric: str) -> str:
    """A finding, marked if few test images show it or do not; the mean says over how many findings it is."""
    if name == "mean":
        return (
            f"mean of {max((sum(math.isfinite(run.test(metric, f)) for f in run.findings) for run in runs), default=0)}"
        )
    if name == WITHOUT_FEW:
        trusted = splits.unmarked_findings(runs)
        defined = [sum(math.isfinite(run.test(metric, f)) for f in trusted) for run in runs]
        return f"mean of {max(defined, default=0)}, without †"
    return f"{name} †" if name in splits.marked_findings(runs) else name


def _other_pairs(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    """The pairs that the first screen leaves out."""
    draws = report.draws[scenario]
    if isinstance(draws, str):
        return
    there = [method for method in report.shown if method in draws.methods[metric] and method != report.focus]
    rows = [
        [Cell(first), Cell(second), *_difference(draws.difference(metric, first, second), None, 0.0)[:2]]
        for place, first in enumerate(there)
        for second in there[place + 1 :]
    ]
    if rows:
        note = f"{_patients_note(draws)} No correction for {len(rows)} pairs."
        header = ["first", "second", "first − second", f"95 % CI, {draws.unit}"]
        table = Table(f"{label} in {scenario}: paired differences", header, rows, (), note)
        yield Fold(f"Paired differences between the other methods ({label})", [table])


def _client_gains(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    found = _gains(report, scenario, metric)
    if not found:
        return
    yield Heading(f"Does a client gain? {label} in {scenario}", 3)
    yield Text("Metric of the common model minus that of the model the client trained alone, on the same test images.")
    yield _gain_table(
        found, f"Gain in test {label} over training alone, {scenario}", f"gains-{slug(scenario)}-{metric}"
    )
    focus = [gain for gain in found if gain.method == report.focus]
    drawn = {gain.client: gain.interval for gain in focus if gain.interval is not None}
    if drawn:
        yield Gallery(
            [pictures.gains(drawn, report.focus, label, f"{slug(scenario)}-{metric}")], "95 % intervals, paired."
        )
    held = _gains(report, scenario, metric, "holdout")
    if held:
        yield Text("On the images that each client kept back for itself (few, so a client's number moves by chance):")
        yield _gain_table(held, f"Gain in {label} on the client's own images, {scenario}")


def _gain_table(found: Sequence[Gain], caption: str, label: str = "") -> Table:
    methods = list(dict.fromkeys(gain.method for gain in found))
    clients = list(dict.fromkeys(gain.client for gain in found))
    by = {(gain.client, gain.method): gain for gain in found}
    rows = []
    for client in clients:
        alone = next(gain.alone for gain in found if gain.client == client)
        changes = [_gain_cell(by[client, method]) if (client, method) in by else Cell("not run") for method in methods]
        rows.append([Cell(client), numeral(alone.value), *changes])
    note = "Mean over seeds" + ("; 95 % interval in brackets." if any(gain.interval for gain in found) else ".")
    return Table(caption, ["client", "alone", *methods], rows, (), note, label)


def _gain_cell(gain: Gain) -> Cell:
    text = f"{gain.gain.value:+.4f}"
    return Cell(text + (f" [{span(gain.interval)}]" if gain.interval else ""), gain.gain.value)


def _kept_models(report: Report, scenario: str) -> Iterator[Block]:
    """The models that runs kept on request, side by side."""
    rows, notes = [], []
    chosen: dict[str, None] = {}  # what chose each model, each said once
    for method in report.shown:
        kept = [run.models for run in report.collection.of(scenario, method)]
        kept = [models for models in kept if models]
        names = [name for name in MODELS if kept and all(name in models for models in kept)]
        by_name = {name: [replace(models[name], method=name) for models in kept] for name in names}
        drawn = draw([run for runs in by_name.values() for run in runs], report.replicates) if names[1:] else ""
        rows += [_model_row(method, name, by_name[name], drawn) for name in names]
        chosen |= {_chosen_by(name, run): None for name in names[1:] for run in by_name[name]}
        notes += [] if isinstance(drawn, str) else [_patients_note(drawn)]
    if rows:
        yield Heading(f"Which model? {scenario}", 3)
        yield Text(
            "The model of the last round beside those that were kept on request. The test set chose none of them. "
            "Tables and figures elsewhere are about the last round."
        )
        yield Bullets(list(chosen))
        header = ["method", "model", "rounds", "validation AUC", "test AUC", "test AUC − last", "95 % CI", "test GM"]
        label = f"models-{slug(scenario)}"
        yield Table(f"Models of the runs in {scenario}", header, rows, (), " ".join(notes[:1]), label)


def _model_row(method: str, name: str, runs: Sequence[Run], draws: Draws | str) -> list[Cell]:
    """One model of one method, over seeds."""
    about = [run.metrics for run in runs]
    rounds = list(dict.fromkeys(_span_of(one.get("rounds", [one.get("round", 0)])) for one in about))
    validation = Mean.of([number(one.get("validation", UNTESTED)["auc"]["macro"]) for one in about])
    change = [Cell(""), Cell("")]
    if name != "last" and isinstance(draws, Draws) and {"last", name} <= draws.methods["auc"].keys():
        change = _difference(draws.difference("auc", name, "last"), None, 0.0)[:2]
    means = [_mean_cell(one, len(runs), False) for one in (validation, mean(runs, "auc"))]
    tested = _mean_cell(mean(runs, "gm"), len(runs), False)
    return [Cell(method), Cell(MODELS[name]), Cell(", ".join(rounds)), *means, *change, tested]


def _chosen_by(name: str, run: Run) -> str:
    return f"{MODELS[name].capitalize()}: chosen by {run.metrics['chosen_by']}."


def _span_of(rounds: Sequence[int]) -> str:
    return f"{rounds[0]} to {rounds[-1]}" if rounds[1:] else str(rounds[0])


def _weights(report: Report, scenario: str) -> Iterator[Block]:
    weighed = _weighed(report.collection, scenario)
    if not weighed:
        return
    yield Heading(f"Aggregation weights in {scenario}", 3)
    others = {method: runs for method, runs in weighed.items() if method != report.focus}
    note = "Weight of each client in every round; with several seeds the shade runs from the lowest to the highest."
    sums = [run.ledger["weight"].sum(axis=1) for runs in weighed.values() for run in runs]
    if any((np.abs(total - 1) > 1e-6).any() for total in sums):
        note += " Where weights do not sum to 1 they are the coefficients of the clients' updates."
    if others:
        yield Gallery(pictures.weights(others, slug(scenario)), note)
    limited = [method for method, runs in weighed.items() if any(run.ledger.limited for run in runs)]
    if limited:
        yield Text(f"A policy limited weights of {listed(limited)}; the words below say whose and when.")
    for method, runs in weighed.items():
        kinds = (pictures.components, pictures.heterogeneity, pictures.by_finding, pictures.deviation)
        more = [picture for draw in kinds for picture in draw(runs, method, slug(scenario))]
        if more:
            yield Gallery(more, f"What the weights of {method} are made of.")
        if more or method in limited:
            said = list(sentences(explain(runs[0])))
            yield Fold(f"The weights of {method} in words (seed {runs[0].repeat})", [Bullets(said)])


def _curves(report: Report, scenario: str) -> Iterator[Block]:
    drawn = list(pictures.curves(report.collection.of(scenario), report.shown, report.focus, slug(scenario)))
    if drawn:
        yield Heading(f"Over the rounds in {scenario}", 3)
        note = "Mean over seeds; shaded from least to most. "
        if len(report.shown) > CROWD:
            note += f"In panels of many methods the thin line is {report.focus}; first rounds may lie below the frame. "
        yield Gallery(drawn, note + "Test curves are for reading only: nothing was chosen by them.")
