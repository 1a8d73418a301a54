"""Several scenarios side by side, and the ranks of the methods over them."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis import statistics_in_words as words
from feddraw.report import pictures
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    Fold,
    Gallery,
    Heading,
    OnlyFor,
    Paragraph,
    ReportTable,
)
from feddraw.report.report_statistics import Report
from feddraw.report.sections.method_differences import differences_section
from feddraw.report.table_cells import column_cells, number_cell, table_note
from feddraw.results.recorded_run import METRICS


def all_scenarios_section(report: Report) -> Iterator[Block]:
    if len(report.collection.scenarios) < 2:
        return
    yield Heading("All scenarios", anchor="results")
    for metric, label in METRICS.items():
        table = _all_scenarios_table(report, metric, label)
        yield OnlyFor([table, *differences_section(report, "", metric, label)], metric=metric)


def _all_scenarios_table(report: Report, metric: str, label: str) -> ReportTable:
    """One row per method, one column per scenario; then the average rank."""
    collection, comparison = report.collection, report.rankings[metric].comparison
    means = [{m: report.mean(s, m, metric) for m in report.shown} for s in collection.scenarios]
    columns = [column_cells(column, collection.methods) for column in means]
    ranks = {} if comparison is None else comparison.average_ranks
    header = ["method", *collection.scenarios, *(["average rank"] if ranks else [])]

    def row(method: str) -> list[Cell]:
        rank = (
            [number_cell(ranks[method], ".2f") if method in ranks else Cell("not ranked")]
            if ranks
            else []
        )
        return [Cell(method), *(column[method] for column in columns), *rank]

    return ReportTable(
        f"Test {label}: mean ± standard deviation over seeds",
        header,
        [row(method) for method in collection.methods],
        [row(method) for method in collection.references],
        table_note(collection),
        label=f"results-{metric}",
    )


def ranks_section(report: Report) -> Iterator[Block]:
    if not any(ranking.comparison or ranking.left_out for ranking in report.rankings.values()):
        return
    yield Heading("Ranks over scenarios", anchor="ranks")
    for metric, label in METRICS.items():
        yield OnlyFor(list(_rank_blocks(report, metric, label)), metric=metric)


def _rank_blocks(report: Report, metric: str, label: str) -> Iterator[Block]:
    ranking = report.rankings[metric]
    if ranking.left_out:
        yield Paragraph(f"Left out of the ranks of {label}:")
        yield Bullets(ranking.left_out)
    comparison = ranking.comparison
    if comparison is None:
        yield Paragraph(
            f"{label}: {ranking.reason} So there is no average rank and no test over scenarios."
        )
        return
    yield Paragraph(f"{label}: {words.comparison_in_words(comparison)}")
    yield Gallery([pictures.ranks_picture(comparison, metric, label)])
    yield Bullets([*words.rank_tests_in_words(comparison), *words.what_tests_can_show(comparison)])
    rows = [
        [
            Cell(pair.first),
            Cell(pair.second),
            Cell(f"{pair.rank_gap:.2f}{'*' if pair.significant else ''}", pair.rank_gap),
            Cell(words.p_text(pair.nemenyi_p), pair.nemenyi_p),
            Cell(words.p_text(pair.holm_p), pair.holm_p),
            number_cell(pair.mean_difference, "+.4f"),
            number_cell(pair.rank_biserial, "+.2f"),
            Cell(f"{pair.wins}-{pair.ties}-{pair.losses}", pair.wins - pair.losses),
        ]
        for pair in comparison.pairs
    ]
    header = [
        "first",
        "second",
        "rank gap",
        "Nemenyi p",
        "Holm p",
        "difference",
        "effect",
        "won-tied-lost",
    ]
    note = (
        f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's"
        " signed-rank test, corrected for all pairs. Difference: mean of first minus second."
        " Effect: matched-pairs rank-biserial."
    )
    table = ReportTable(f"{label}, pairs of methods", header, rows, (), note, f"pairs-{metric}")
    yield Fold(f"All pairs of methods ({label})", [table])
