"""The ranks of the methods over scenarios, and the tests on them."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.paired_repeats import paired_repeats_in_words
from feddraw.analysis.statistics import Comparison, Pair
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
from feddraw.report.cells import number_cell
from feddraw.report.pictures import ranks_picture
from feddraw.report.statistics import MethodRanking, Report


def section(report: Report) -> Iterator[Block]:
    rankings = report.rankings.values()
    if not any(ranking.comparison or ranking.left_out for ranking in rankings):
        return
    yield Heading("Ranks over scenarios", anchor="ranks")
    for metric, label in report.metrics.items():
        yield OnlyFor(list(_of_metric(report.rankings[metric], metric, label)), metric=metric)


def _of_metric(ranking: MethodRanking, metric: str, label: str) -> Iterator[Block]:
    if ranking.left_out:
        yield Paragraph(f"Left out of the ranks of {label}:")
        yield Bullets(ranking.left_out)
    comparison = ranking.comparison
    if comparison is None:
        yield Paragraph(
            f"{label}: {ranking.reason} So there is no average rank and no test over scenarios."
        )
        return
    paired = paired_repeats_in_words(ranking.paired)
    yield Paragraph(f"{label}, {paired} in each: {words.comparison_in_words(comparison)}")
    yield Gallery([ranks_picture(comparison, metric, label)])
    yield Bullets(
        [
            *words.rank_tests_in_words(comparison),
            words.control_in_words(comparison),
            *words.what_tests_can_show(comparison),
        ]
    )
    yield Fold(
        f"{comparison.control} against each other method ({label})",
        [_control_table(comparison, metric, label)],
    )
    yield Fold(f"All pairs of methods ({label})", [_pairs_table(comparison, metric, label)])


def _control_table(comparison: Comparison, metric: str, label: str) -> ReportTable:
    rows = [
        [
            Cell(other.method),
            Cell(f"{other.rank_gap:+.2f}{'*' if other.significant else ''}", other.rank_gap),
            number_cell(other.z, "+.2f"),
            Cell(words.p_text(other.p), other.p),
            Cell(words.p_text(other.holm_p), other.holm_p),
        ]
        for other in comparison.against_control
    ]
    return ReportTable(
        caption=f"{label}, each method against {comparison.control}",
        header=list(words.CONTROL_COLUMNS),
        rows=rows,
        note=(
            f"* Holm p below alpha {comparison.alpha:g}, and Friedman's test rejects. Rank gap:"
            f" average rank minus that of {comparison.control}; z: the gap in standard errors"
            " (Demšar 2006)."
        ),
        label=f"control-{metric}",
    )


def _pairs_table(comparison: Comparison, metric: str, label: str) -> ReportTable:
    return ReportTable(
        caption=f"{label}, pairs of methods",
        header=[*words.PAIR_COLUMNS, "won-tied-lost"],
        rows=list(map(_pair_row, comparison.pairs)),
        note=(
            f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's"
            " signed-rank test, corrected for all pairs. Difference: mean of first minus second."
            " Effect: matched-pairs rank-biserial."
        ),
        label=f"pairs-{metric}",
    )


def _pair_row(pair: Pair) -> list[Cell]:
    return [
        Cell(pair.first),
        Cell(pair.second),
        Cell(f"{pair.rank_gap:.2f}{'*' if pair.significant else ''}", pair.rank_gap),
        Cell(words.p_text(pair.nemenyi_p), pair.nemenyi_p),
        Cell(words.p_text(pair.holm_p), pair.holm_p),
        number_cell(pair.mean_difference, "+.4f"),
        number_cell(pair.rank_biserial, "+.2f"),
        Cell(f"{pair.wins}-{pair.ties}-{pair.losses}", pair.wins - pair.losses),
    ]
