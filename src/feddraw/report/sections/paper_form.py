"""The paper's tables and figures in its own form, from any study of several scenarios, with its
numbers beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.statistics import Comparison
from feddraw.data.scenarios.paper_scenarios import PAPER_DATASET_TITLES, PAPER_SCENARIOS
from feddraw.paper import published_tables
from feddraw.report import pictures
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
from feddraw.report.report_statistics import Report
from feddraw.report.sections.aggregation_weights import methods_with_weights
from feddraw.report.table_cells import number_cell
from feddraw.results.recorded_run import METRICS
from feddraw.text import grouped, join_names

SCENARIOS_IN_A_ROW = {
    7: 4
}  # scenarios beside one another, where the paper breaks a table; else up to six
PAPER_PANELS = ("CHX-4", "CHX-1")  # whose weights the paper draws
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


def paper_form_section(report: Report) -> Iterator[Block]:
    """Performance by data set, ranks, tests, diagrams, weights, and the published numbers."""
    if len(report.collection.scenarios) < 2 or len(report.collection.methods) < 2:
        return
    yield Heading("In the paper's form", anchor="paper")
    for title, scenarios in _paper_form_families(report).items():
        yield from _performance_tables(report, title, scenarios)
    yield from _paper_ranks(report)
    drawn = list(paper_weight_panels(report))
    if drawn:
        yield Gallery(drawn, paper_weight_caption(report))
    yield from _paper_form_comparison(report)


def name_in_paper(method: str) -> str:
    """As the paper spells it."""
    known = {name.lower(): name for name in published_tables.published_results("auc").methods}
    return known.get(method, method)


def methods_in_paper_order(report: Report) -> list[str]:
    """The paper's methods in its order, then the others."""
    order = [name.lower() for name in published_tables.published_results("auc").methods]
    return sorted(
        report.collection.methods,
        key=lambda name: order.index(name) if name in order else len(order),
    )


def _paper_form_families(report: Report) -> dict[str, list[str]]:
    """Scenarios by the data set that they are made of; the paper's in its order."""
    order = [scenario.name for scenario in PAPER_SCENARIOS.values()]
    scenarios = sorted(
        report.collection.scenarios, key=lambda s: order.index(s) if s in order else len(order)
    )
    return grouped((_paper_form_data_set(report, scenario), scenario) for scenario in scenarios)


def _paper_form_data_set(report: Report, scenario: str) -> str:
    name = str(report.collection.of(scenario)[0].settings["data"]["name"])
    of_paper = {str(key): title for key, title in PAPER_DATASET_TITLES.items()}
    titles = of_paper | {"phantom": "phantoms", "nih": "ChestX-ray14"}
    return titles.get(name, name.rpartition("/")[2])


def _performance_tables(
    report: Report, title: str, scenarios: Sequence[str]
) -> Iterator[ReportTable]:
    """Tables 4 and 5: AUC and GM of each scenario side by side, in percent."""
    size = SCENARIOS_IN_A_ROW.get(len(scenarios), 6)
    parts = [scenarios[start : start + size] for start in range(0, len(scenarios), size)]
    runs = {len(report.collection.of(s, m)) for s in scenarios for m in report.collection.methods}
    over = (
        f"standard deviation over {_number_word(runs.pop())} runs"
        if len(runs) == 1
        else "sd over runs"
    )
    count = _number_word(len(scenarios))
    caption = (
        f"Performance (%) on {title} across {count} client-partition scenarios (mean ± {over})"
    )
    for number, part in enumerate(parts, 1):
        columns = [
            _paper_form_column(report, scenario, metric) for scenario in part for metric in METRICS
        ]
        rows = [
            [Cell(name_in_paper(m)), *(column[m] for column in columns)]
            for m in methods_in_paper_order(report)
        ]
        yield ReportTable(
            caption + (f" ({number} of {len(parts)})" if parts[1:] else ""),
            ["Algorithm", *(label for _ in part for label in METRICS.values())],
            rows,
            note="Best values per column are shown in bold.",
            label=f"paper-{title.lower()}-{number}",
            spans=[(scenario, len(METRICS)) for scenario in part],
        )


def _number_word(count: int) -> str:
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def _paper_form_column(report: Report, scenario: str, metric: str) -> dict[str, Cell]:
    means = {m: report.mean(scenario, m, metric) for m in report.collection.methods}
    shown = {m: round(100 * one.value, 2) for m, one in means.items() if math.isfinite(one.value)}
    best = max(shown.values(), default=math.nan)
    cells = dict.fromkeys(means, Cell("–"))
    for method, percent in shown.items():
        spread = (
            f" ± {100 * means[method].spread:.2f}" if math.isfinite(means[method].spread) else ""
        )
        cells[method] = Cell(f"{percent:.2f}{spread}", means[method].value, percent == best)
    return cells


def _paper_ranks(report: Report) -> Iterator[Block]:
    """Table 6 and the tests on it."""
    found = {
        metric: ranking.comparison
        for metric, ranking in report.rankings.items()
        if ranking.comparison
    }
    if set(found) != set(METRICS) or len({one.table.scenarios for one in found.values()}) > 1:
        return
    yield _paper_rank_table(report, found)
    for metric, comparison in found.items():
        yield Paragraph(f"{METRICS[metric]}: {words.comparison_in_words(comparison)}")
    tests = {METRICS[metric]: words.rank_tests_in_words(one)[::2] for metric, one in found.items()}
    yield Bullets([f"{label}: {line}" for label, lines in tests.items() for line in lines])
    yield Gallery(
        [pictures.ranks_picture(one, m, METRICS[m], prefix="paper-") for m, one in found.items()]
    )


def _paper_rank_table(report: Report, found: dict[str, Comparison]) -> ReportTable:
    first = next(iter(found.values()))
    methods = [method for method in methods_in_paper_order(report) if method in first.table.methods]
    places = [first.table.methods.index(method) for method in methods]
    order = [
        scenario for scenarios in _paper_form_families(report).values() for scenario in scenarios
    ]
    rows = [
        [
            Cell(scenario),
            *(
                _rank_pair_cell(found, first.table.scenarios.index(scenario), place)
                for place in places
            ),
        ]
        for scenario in order
        if scenario in first.table.scenarios
    ]
    for metric, comparison in found.items():
        average = comparison.average_ranks
        best = min(round(value, 2) for value in average.values())
        cells = [
            Cell(f"{average[m]:.2f}", average[m], round(average[m], 2) == best) for m in methods
        ]
        rows.append([Cell(f"Average rank ({METRICS[metric]})"), *cells])
    scenarios = _number_word(len(rows) - len(found))
    return ReportTable(
        "Per-scenario ranks of every method used in the Friedman test "
        "(AUC / GM; rank 1 = best, tied methods receive the average of the tied ranks)",
        ["Scenario", *map(name_in_paper, methods)],
        rows,
        note=(
            f"The last two rows report the average AUC and GM ranks across the {scenarios}"
            " scenarios."
        ),
        label="paper-ranks",
    )


def _rank_pair_cell(found: dict[str, Comparison], row: int, column: int) -> Cell:
    ranks = [float(comparison.ranks[row, column]) for comparison in found.values()]
    return Cell(" / ".join(f"{rank:g}" for rank in ranks), sum(ranks))


def paper_weight_panels(report: Report) -> Iterator[Picture]:
    """Panels (a) to (d): the weights of the method in focus, and how clients of one size differ, in
    two scenarios.
    """
    letters = iter("abcd")
    for scenario in _paper_form_scenarios(report):
        runs = methods_with_weights(report.collection, scenario)[report.focus]
        yield from pictures.paper_weight_pictures(runs, scenario, letters)


def _paper_form_scenarios(report: Report) -> list[str]:
    """Those of the paper's figure, or the two whose client sizes differ most; with clients of one
    size among them.
    """
    collection = report.collection
    there = [s for s in collection.scenarios if report.focus in methods_with_weights(collection, s)]
    if named := [scenario for scenario in PAPER_PANELS if scenario in there]:
        return named

    def unequal(scenario: str) -> float:
        sizes = collection.of(scenario, report.focus)[0].ledger.sizes
        return float(np.max(sizes) / max(np.min(sizes), 1.0))

    return sorted(there, key=unequal, reverse=True)[:2]


def paper_weight_caption(report: Report) -> str:
    """What the panels show."""
    said, compared = [], False
    for pair, scenario in zip(
        (("(a)", "(b)"), ("(c)", "(d)")), _paper_form_scenarios(report), strict=False
    ):
        ledger = report.collection.of(scenario, report.focus)[0].ledger
        alike = grouped((int(size), place) for place, size in enumerate(ledger.sizes))
        several = any(len(who) > 1 for who in alike.values())  # else there is no panel on the right
        sizes = [
            f"{_client_range(ledger.clients, who)} with {size:,} images{' each' * (len(who) > 1)}"
            for size, who in alike.items()
        ]
        said.append(f"{', '.join(pair[: 1 + several])} {scenario}, {', '.join(sizes)}")
        compared |= several
    right = (
        " The panel on the right has the deviation from the mean weight of clients of one size."
        if compared
        else ""
    )
    return (
        f"Evolution of {name_in_paper(report.focus)} aggregation weights across communication"
        f" rounds, mean over runs: {'; '.join(said)}.{right}"
    )


def _client_range(names: Sequence[str], places: Sequence[int]) -> str:
    if len(places) > 2 and places[-1] - places[0] == len(places) - 1:
        return f"{names[places[0]]}–{names[places[-1]]}"
    return join_names([names[place] for place in places])


def _paper_form_comparison(report: Report) -> Iterator[Block]:
    """Our means above the published ones, and both average ranks."""
    for metric in METRICS:
        table = published_tables.published_results(metric)
        scenarios = [s for s in table.scenarios if s in report.collection.scenarios]
        methods = [m for m in table.methods if m.lower() in report.collection.methods]
        if len(scenarios) < 2 or len(methods) < 2:
            return
        yield _means_beside_paper(report, metric, scenarios, methods)
    yield from _beside_published_tests(report)


def _means_beside_paper(
    report: Report, metric: str, scenarios: Sequence[str], methods: Sequence[str]
) -> ReportTable:
    label, published, rows = METRICS[metric], published_tables.published_results(metric).rows(), []
    for method in methods:
        ours = [report.mean(s, method.lower(), metric).value for s in scenarios]
        theirs = [published[s][method] for s in scenarios]
        rows.append([Cell(method), *(_percent_cell(100 * value) for value in ours)])
        rows.append([Cell(f"{method}, paper"), *map(_percent_cell, theirs)])
        differences = [100 * a - b for a, b in zip(ours, theirs, strict=True)]
        rows.append([Cell(f"{method}, difference"), *map(_signed_cell, differences)])
    return ReportTable(
        f"{label} (%): our means, the paper's (M. Moradpour and A.-C. Hauschild, preprint), and"
        " ours minus the paper's",
        ["", *scenarios],
        rows,
        label=f"paper-beside-{metric}",
    )


def _percent_cell(value: float) -> Cell:
    return Cell(f"{value:.2f}", value) if math.isfinite(value) else Cell("–")


def _signed_cell(value: float) -> Cell:
    return Cell(f"{value:+.2f}".replace("-", "−"), value) if math.isfinite(value) else Cell("–")


def _beside_published_tests(report: Report) -> Iterator[Block]:
    """Average ranks, Friedman's chi-square and the critical difference, here and in the paper."""
    rows = []
    for metric, label in METRICS.items():
        ours = report.rankings[metric].comparison
        if ours is None:
            continue
        theirs = published_tables.published_comparisons(ours.alpha)[metric]
        named = {name_in_paper(method): rank for method, rank in ours.average_ranks.items()}
        both = [
            method
            for method in published_tables.published_results(metric).methods
            if method in named
        ]
        pairs = {
            f"average rank of {method}": (named[method], theirs.average_ranks[method])
            for method in both
        }
        pairs["Friedman's chi-square"] = ours.friedman.statistic, theirs.friedman.statistic
        pairs["critical difference"] = ours.difference, theirs.difference
        for what, pair in pairs.items():
            rows.append([Cell(f"{what} ({label})"), *(number_cell(one, ".2f") for one in pair)])
    if rows:
        note = (
            "The paper's are recomputed from its tables at the same alpha, over all of its"
            " scenarios and methods."
        )
        yield ReportTable(
            "Ranks and tests beside the paper's",
            ["", "here", "paper"],
            rows,
            (),
            note,
            "paper-tests",
        )
