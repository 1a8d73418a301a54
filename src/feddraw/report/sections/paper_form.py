"""The paper's tables and figures in its own form, from any study of several scenarios, with its
numbers beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from feddraw.analysis import plots
from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.statistics import Comparison
from feddraw.data.scenarios.paper_scenarios import PAPER_DATASET_TITLES, PAPER_SCENARIOS
from feddraw.paper.published_tables import published_comparisons, published_results
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.cells import number_cell
from feddraw.report.paper_tex import PAPER_ANCHOR
from feddraw.report.pictures import ledger_column, ranks_picture
from feddraw.report.runs import data_name, ledger_client_sizes
from feddraw.report.sections.aggregation_weights import runs_with_weights
from feddraw.report.statistics import Report
from feddraw.text import grouped, join_names, slug

SCENARIOS_IN_A_ROW = 6
SEVEN_SCENARIOS_IN_A_ROW = 4  # where the paper breaks its table of seven
PANEL_SCENARIOS = ("CHX-4", "CHX-1")  # whose weights the paper draws
DATASET_TITLES = {str(name): title for name, title in PAPER_DATASET_TITLES.items()} | {
    "phantom": "phantoms",
    "nih": "ChestX-ray14",
}
NUMBER_WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def section(report: Report) -> Iterator[Block]:
    """Performance by data set, ranks, tests, diagrams, weights, and the published numbers."""
    if len(report.scenarios) < 2 or len(report.methods) < 2:
        return
    yield Heading("In the paper's form", anchor=PAPER_ANCHOR)
    for title, scenarios in _scenarios_by_data_set(report).items():
        yield from _performance_tables(report, title, scenarios)
    yield from _ranks(report)
    panels = list(_weight_panels(report))
    if panels:
        yield Gallery(panels, weights_caption(report))
    yield from _means_beside_published(report)


def _name_in_paper(method: str) -> str:
    """As the paper spells it."""
    spelled = {name.lower(): name for name in published_results("auc").methods}
    return spelled.get(method, method)


def _methods_in_paper_order(report: Report) -> list[str]:
    """The paper's methods in its order, then the others."""
    order = [name.lower() for name in published_results("auc").methods]
    return sorted(report.methods, key=lambda name: _place(name, order))


def _scenarios_by_data_set(report: Report) -> dict[str, list[str]]:
    """Scenarios by the data set that they are made of; the paper's in its order."""
    order = [scenario.name for scenario in PAPER_SCENARIOS.values()]
    scenarios = sorted(report.scenarios, key=lambda name: _place(name, order))
    return grouped((_data_set_title(report, scenario), scenario) for scenario in scenarios)


def _place(name: str, order: Sequence[str]) -> int:
    """In this order; what is not in it comes last."""
    return order.index(name) if name in order else len(order)


def _data_set_title(report: Report, scenario: str) -> str:
    name = data_name(report.runs(scenario)[0])
    return DATASET_TITLES.get(name, name.rpartition("/")[2])


def _number_word(count: int) -> str:
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


# ----------------------------------------------------------------------------------- tables 4 and 5


def _performance_tables(
    report: Report, title: str, scenarios: Sequence[str]
) -> Iterator[ReportTable]:
    """AUC and GM of each scenario side by side, in percent."""
    size = SEVEN_SCENARIOS_IN_A_ROW if len(scenarios) == 7 else SCENARIOS_IN_A_ROW
    parts = [scenarios[start : start + size] for start in range(0, len(scenarios), size)]
    counts = {
        report.mean(scenario, method, metric).count
        for scenario in scenarios
        for method in report.methods
        for metric in report.metrics
    }
    spread = "sd over runs"
    if len(counts) == 1:
        spread = f"standard deviation over {_number_word(counts.pop())} runs"
    caption = (
        f"Performance (%) on {title} across {_number_word(len(scenarios))} client-partition"
        f" scenarios (mean ± {spread})"
    )
    for number, part in enumerate(parts, 1):
        columns = [
            _percent_column(report, scenario, metric)
            for scenario in part
            for metric in report.metrics
        ]
        rows = []
        for method in _methods_in_paper_order(report):
            rows.append([Cell(_name_in_paper(method)), *(column[method] for column in columns)])
        yield ReportTable(
            caption=f"{caption} ({number} of {len(parts)})" if len(parts) > 1 else caption,
            header=["Algorithm", *(label for _ in part for label in report.metrics.values())],
            rows=rows,
            note="Best values per column are shown in bold.",
            label=f"paper-{slug(title)}-{number}",
            spans=[(scenario, len(report.metrics)) for scenario in part],
        )


def _percent_column(report: Report, scenario: str, metric: str) -> dict[str, Cell]:
    """Cells by method; equal as printed is equally good, and the best is better than some other."""
    means = {method: report.mean(scenario, method, metric) for method in report.methods}
    percent = {
        method: round(100 * mean.value, 2)
        for method, mean in means.items()
        if math.isfinite(mean.value)
    }
    best = max(percent.values()) if len(set(percent.values())) > 1 else math.nan
    cells = {}
    for method, mean in means.items():
        if method not in percent:
            cells[method] = Cell("–")
            continue
        text = f"{percent[method]:.2f}"
        if math.isfinite(mean.spread):
            text += f" ± {100 * mean.spread:.2f}"
        cells[method] = Cell(text, mean.value, percent[method] == best)
    return cells


# ------------------------------------------------------------------------------------------ table 6


def _ranks(report: Report) -> Iterator[Block]:
    """The ranks in every scenario and the tests on them, where both metrics have the same ones."""
    comparisons = {
        metric: ranking.comparison
        for metric, ranking in report.rankings.items()
        if ranking.comparison
    }
    scenarios = {comparison.table.scenarios for comparison in comparisons.values()}
    if set(comparisons) != set(report.metrics) or len(scenarios) > 1:
        return
    yield _rank_table(report, comparisons)
    for metric, comparison in comparisons.items():
        yield Paragraph(
            f"{report.metrics[metric]}: {words.comparison_in_words(comparison)}"
            f" {words.control_in_words(comparison)}"
        )
    tests = []
    for metric, comparison in comparisons.items():
        friedman, _, critical_difference, *_ = words.rank_tests_in_words(comparison)
        tests += [f"{report.metrics[metric]}: {line}" for line in (friedman, critical_difference)]
    yield Bullets(tests)
    yield Gallery(
        [
            ranks_picture(comparisons[metric], metric, report.metrics[metric], prefix="paper-")
            for metric in comparisons
        ]
    )


def _rank_table(report: Report, comparisons: Mapping[str, Comparison]) -> ReportTable:
    table = next(iter(comparisons.values())).table
    methods = [method for method in _methods_in_paper_order(report) if method in table.methods]
    columns = [table.methods.index(method) for method in methods]
    rows = []
    for scenarios in _scenarios_by_data_set(report).values():
        for scenario in scenarios:
            if scenario in table.scenarios:
                row = table.scenarios.index(scenario)
                ranks = [_ranks_cell(comparisons, row, column) for column in columns]
                rows.append([Cell(scenario), *ranks])
    count = _number_word(len(rows))
    for metric, comparison in comparisons.items():
        average = comparison.average_ranks
        best = min(round(rank, 2) for rank in average.values())
        cells = [
            Cell(f"{average[method]:.2f}", average[method], round(average[method], 2) == best)
            for method in methods
        ]
        rows.append([Cell(f"Average rank ({report.metrics[metric]})"), *cells])
    return ReportTable(
        caption=(
            "Per-scenario ranks of every method used in the Friedman test "
            "(AUC / GM; rank 1 = best, tied methods receive the average of the tied ranks)"
        ),
        header=["Scenario", *map(_name_in_paper, methods)],
        rows=rows,
        note=f"The last two rows report the average AUC and GM ranks across the {count} scenarios.",
        label="paper-ranks",
    )


def _ranks_cell(comparisons: Mapping[str, Comparison], row: int, column: int) -> Cell:
    ranks = [float(comparison.ranks[row, column]) for comparison in comparisons.values()]
    return Cell(" / ".join(f"{rank:g}" for rank in ranks), sum(ranks))


# ------------------------------------------------------------------------------ the weights' figure


def _weight_panels(report: Report) -> Iterator[Picture]:
    """Panels (a) to (d): the weights of the method in focus in two scenarios, and how clients of
    one size differ there.
    """
    letters = iter("abcd")
    for scenario in _panel_scenarios(report):
        runs = runs_with_weights(report, scenario)[report.focus]
        weights, _ = ledger_column(runs, "weight")
        letter = next(letters)
        figure, axes = plots.panel_figure()
        plots.draw_weights(axes, weights, title=f"({letter}) {scenario}")
        shown = f"Weight of each client in every round in {scenario}"
        yield Picture(f"paper-weights-{letter}", figure, shown)
        letter = next(letters)
        figure, axes = plots.panel_figure()
        title = f"({letter}) {scenario}, clients of one size"
        if plots.draw_deviation(axes, weights, ledger_client_sizes(runs[0]), title=title):
            shown = f"Deviation from the mean weight of a size in {scenario}"
            yield Picture(f"paper-weights-{letter}", figure, shown)


def _panel_scenarios(report: Report) -> list[str]:
    """Those of the paper's figure, or the two whose client sizes differ most."""
    weighted = [
        scenario
        for scenario in report.scenarios
        if report.focus in runs_with_weights(report, scenario)
    ]
    of_paper = [scenario for scenario in PANEL_SCENARIOS if scenario in weighted]

    def size_ratio(scenario: str) -> float:
        sizes = report.runs(scenario, report.focus)[0].ledger.sizes
        return float(np.max(sizes) / max(np.min(sizes), 1.0))

    return of_paper or sorted(weighted, key=size_ratio, reverse=True)[:2]


def weights_caption(report: Report) -> str:
    """What the panels show."""
    panels = []
    right_panels = False
    for letters, scenario in zip(("ab", "cd"), _panel_scenarios(report), strict=False):
        ledger = report.runs(scenario, report.focus)[0].ledger
        places_by_size = grouped((int(size), place) for place, size in enumerate(ledger.sizes))
        groups = [
            f"{_client_range(ledger.clients, places)} with {size:,}"
            f" images{' each' if len(places) > 1 else ''}"
            for size, places in places_by_size.items()
        ]
        # without two clients of one size there is no panel on the right
        has_right_panel = any(len(places) > 1 for places in places_by_size.values())
        right_panels = right_panels or has_right_panel
        shown = ", ".join(f"({letter})" for letter in letters[: 1 + has_right_panel])
        panels.append(f"{shown} {scenario}, {', '.join(groups)}")
    caption = (
        f"Evolution of {_name_in_paper(report.focus)} aggregation weights across communication"
        f" rounds, mean over runs: {'; '.join(panels)}."
    )
    if right_panels:
        caption += (
            " The panel on the right has the deviation from the mean weight of clients of one size."
        )
    return caption


def _client_range(names: Sequence[str], places: Sequence[int]) -> str:
    """Several clients in a row as C1–C9, others one by one."""
    if len(places) > 2 and places[-1] - places[0] == len(places) - 1:
        return f"{names[places[0]]}–{names[places[-1]]}"
    return join_names([names[place] for place in places])


# ---------------------------------------------------------------------------- the published numbers


def _means_beside_published(report: Report) -> Iterator[Block]:
    """Our means above the published ones, and both average ranks, where two scenarios and two
    methods are the paper's; why not, where other images were used.
    """
    for metric in report.metrics:
        published = published_results(metric)
        scenarios = [name for name in published.scenarios if name in report.scenarios]
        methods = [name for name in published.methods if name.lower() in report.methods]
        if len(scenarios) < 2 or len(methods) < 2:
            return
        others = [name for name in scenarios if not _is_as_in_paper(report, name)]
        if others:
            yield Paragraph(
                f"The paper's numbers are not beside ours: {join_names(others)}"
                f" {'were' if len(others) > 1 else 'was'} not run on the paper's images at the"
                " paper's scale, so a difference would compare data, not methods."
            )
            return
        yield _means_table(report, metric, scenarios, methods)
    yield from _tests_beside_published(report)


def _is_as_in_paper(report: Report, scenario: str) -> bool:
    """Whether a scenario's runs are on the data set that the paper has there, all of it."""
    return all(
        data_name(run) == PAPER_SCENARIOS[scenario.lower()].dataset
        and run.flat.get("scenario.scale", 1.0) == 1
        for run in report.runs(scenario)
    )


def _means_table(
    report: Report, metric: str, scenarios: Sequence[str], methods: Sequence[str]
) -> ReportTable:
    published = published_results(metric).rows()
    rows = []
    for method in methods:
        ours = [100 * report.mean(name, method.lower(), metric).value for name in scenarios]
        theirs = [published[name][method] for name in scenarios]
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        rows.append([Cell(method), *map(_percent_cell, ours)])
        rows.append([Cell(f"{method}, paper"), *map(_percent_cell, theirs)])
        rows.append([Cell(f"{method}, difference"), *map(_signed_cell, differences)])
    return ReportTable(
        caption=(
            f"{report.metrics[metric]} (%): our means, the paper's (M. Moradpour and"
            " A.-C. Hauschild, preprint), and ours minus the paper's"
        ),
        header=["", *scenarios],
        rows=rows,
        label=f"paper-beside-{metric}",
    )


def _percent_cell(value: float) -> Cell:
    return Cell(f"{value:.2f}", value) if math.isfinite(value) else Cell("–")


def _signed_cell(value: float) -> Cell:
    return Cell(f"{value:+.2f}".replace("-", "−"), value) if math.isfinite(value) else Cell("–")


def _tests_beside_published(report: Report) -> Iterator[Block]:
    """Average ranks, Friedman's chi-square and the critical difference, here and in the paper."""
    rows = []
    for metric, label in report.metrics.items():
        ours = report.rankings[metric].comparison
        if ours is None:
            continue
        theirs = published_comparisons(ours.alpha)[metric]
        our_ranks = {_name_in_paper(method): rank for method, rank in ours.average_ranks.items()}
        pairs = {
            f"average rank of {method}": (our_ranks[method], theirs.average_ranks[method])
            for method in theirs.table.methods
            if method in our_ranks
        }
        pairs["Friedman's chi-square"] = ours.friedman.statistic, theirs.friedman.statistic
        pairs["critical difference"] = ours.difference, theirs.difference
        for what, (here, paper) in pairs.items():
            numbers = [number_cell(here, ".2f"), number_cell(paper, ".2f")]
            rows.append([Cell(f"{what} ({label})"), *numbers])
    if rows:
        yield ReportTable(
            caption="Ranks and tests beside the paper's",
            header=["", "here", "paper"],
            rows=rows,
            note=(
                "The paper's are recomputed from its tables at the same alpha, over all of its"
                " scenarios and methods."
            ),
            label="paper-tests",
        )
