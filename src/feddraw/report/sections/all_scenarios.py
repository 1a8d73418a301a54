"""Several scenarios side by side, and the ranks of the methods over them."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis import statistics_in_words as words
from feddraw.report import pictures
from feddraw.report.blocks import Block, Bullets, Cell, Fold, Gallery, Heading, Only, Table, Text, numeral
from feddraw.report.cells import column_cells, table_note
from feddraw.report.evidence import Report, mean
from feddraw.report.sections.differences import differences
from feddraw.results.recorded_run import METRICS


def results(report: Report) -> Iterator[Block]:
    if len(report.collection.scenarios) < 2:
        return
    yield Heading("All scenarios", anchor="results")
    for metric, label in METRICS.items():
        yield Only([_table(report, metric, label), *differences(report, "", metric, label)], metric=metric)


def _table(report: Report, metric: str, label: str) -> Table:
    """One row per method, one column per scenario; then the average rank."""
    collection, comparison = report.collection, report.rankings[metric].comparison
    cells = {
        scenario: column_cells({m: mean(collection.of(scenario, m), metric) for m in report.shown}, collection.methods)
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
        table_note(collection),
        label=f"results-{metric}",
    )


def ranks(report: Report) -> Iterator[Block]:
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
