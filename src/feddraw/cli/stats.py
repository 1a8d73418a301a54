"""`feddraw stats`: ranks, tests and effect sizes of any tidy table of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError
from feddraw.system.file_writing import finite_or_none

if TYPE_CHECKING:
    from feddraw.analysis.paired_differences import Difference
    from feddraw.analysis.paired_repeats import PairedRows
    from feddraw.analysis.statistics import Comparison, Pair
    from feddraw.analysis.tidy_results import TidyTable

# By scenario and method: the difference in the mean of the last rounds.
LastRounds = Mapping[tuple[str, str], float]


def stats(
    table: Annotated[
        Path, Argument(help="A CSV file with a row for each scenario and method (also .gz).")
    ],
    scenario: Annotated[
        str, Option(help="Column that names the scenario or data set.")
    ] = "scenario",
    method: Annotated[str, Option(help="Column that names the method.")] = "method",
    value: Annotated[
        list[str] | None,
        Option(
            help=(
                "Column to compare (repeatable). Default: all but seed, repeat, fold, round and"
                " standard deviations."
            )
        ),
    ] = None,
    over: Annotated[
        str, Option(help="Column of repeats, such as seed, to take the mean over first.")
    ] = "",
    alpha: Annotated[float, Option(help="Significance level.")] = 0.05,
    lower_is_better: Annotated[
        bool, Option("--lower-is-better", help="Rank the smallest value first.")
    ] = False,
    against: Annotated[
        str,
        Option(
            help="Instead of ranks: each method minus this one, paired by --over, with intervals."
        ),
    ] = "",
    folds: Annotated[
        int,
        Option(
            help=(
                "With --against: number of folds, if repeats are folds that share training images;"
                " 0: none."
            )
        ),
    ] = 0,
    control: Annotated[
        str,
        Option(
            help="Method that is compared with every other by Holm's procedure. Default: feddraw,"
            " or the first."
        ),
    ] = "",
    digits: Annotated[
        int | None,
        Option(help="Round means to this many decimals before ranking. Default: no rounding."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    plot: Annotated[
        Path | None,
        Option(
            help=(
                "Draw the critical difference, or the differences, to this file (.png, .svg, .pdf)."
            )
        ),
    ] = None,
) -> None:
    """Compare methods over scenarios: ranks, Friedman, Nemenyi, Holm, Wilcoxon, effect sizes.

    Of repeats (--over), only those count that all methods of a scenario have.
    """
    from feddraw.analysis.tidy_results import TidyTable
    from feddraw.data.csv_sheet import CsvSheet

    tidy = TidyTable(CsvSheet.of(table), scenario, method, over)
    columns = value or tidy.value_columns()
    if against:
        differences = _differences(tidy, columns, against, alpha, folds)
        if plot is not None:
            _plot_differences(differences, plot)
        if json:
            print_json(_differences_document(differences))
        else:
            _show_differences(differences)
        return
    if folds:
        raise UserError(
            "--folds widens the intervals of --against: give the method to compare with, too"
        )
    paired = {column: tidy.paired_rows(column) for column in columns}
    compare_column = partial(
        _comparison, tidy, alpha=alpha, digits=digits, lower=lower_is_better, control=control
    )
    comparisons = {column: compare_column(column) for column in columns}
    if plot is not None:
        _plot_comparisons(comparisons, plot)
    if json:
        documents = _comparison_documents(comparisons, paired)
        print_json({"alpha": alpha, "lower_is_better": lower_is_better, "values": documents})
    else:
        for column, comparison in comparisons.items():
            _show_comparison(column, comparison, paired[column], repeat_name=over)


def _print_parts(*parts: Any) -> None:
    """Each with a blank line behind it."""
    for part in parts:
        console().print(part, "", sep="\n")


# ----------------------------------------------------------------------------- ranks over scenarios


def _comparison(
    tidy: TidyTable, column: str, *, alpha: float, digits: int | None, lower: bool, control: str
) -> Comparison:
    """Of one column of values."""
    from feddraw.analysis.statistics import compare, to_digits

    values = tidy.table(column)
    if digits is not None:
        values = to_digits(values, digits)
    return compare(values, alpha=alpha, lower_is_better=lower, control=control)


def _plot_comparisons(comparisons: Mapping[str, Comparison], path: Path) -> None:
    from feddraw.analysis.critical_difference_plot import critical_difference_figure
    from feddraw.analysis.plots import save_figure

    save_figure(critical_difference_figure(comparisons), path)


def _comparison_documents(
    comparisons: Mapping[str, Comparison], paired: Mapping[str, PairedRows]
) -> dict[str, Any]:
    from feddraw.analysis.statistics import comparison_document

    return {
        column: {
            **comparison_document(comparison),
            "paired_repeats": paired[column].counts,
            "left_out": list(paired[column].left_out),
        }
        for column, comparison in comparisons.items()
    }


def _show_comparison(
    column: str, comparison: Comparison, paired: PairedRows, *, repeat_name: str
) -> None:
    """The summary in words, the ranks, the tests, the pairs."""
    from feddraw.analysis import statistics_in_words as words
    from feddraw.analysis.paired_repeats import paired_repeats_in_words

    heading = (
        f"{column}: {len(comparison.table.methods)} methods over"
        f" {len(comparison.table.scenarios)} scenarios"
    )
    if repeat_name:
        heading += f", {paired_repeats_in_words(paired.counts.values(), repeat_name)} in each"
    methods = comparison.table.methods
    means = dict(zip(methods, comparison.table.values.mean(axis=0).tolist(), strict=True))
    first_places = comparison.first_places
    ranks = [
        [method, f"{rank:.2f}", str(first_places[method]), f"{means[method]:.4g}"]
        for method, rank in comparison.average_ranks.items()
    ]
    tests = [
        *words.rank_tests_in_words(comparison),
        *words.near_ties_in_words(comparison.table),
    ]
    pairs = [_pair_row(pair) for pair in comparison.pairs]
    against_control = [
        [
            other.method,
            f"{other.rank_gap:+.2f}{'*' if other.significant else ' '}",
            f"{other.z:+.2f}",
            words.p_text(other.p),
            words.p_text(other.holm_p),
        ]
        for other in comparison.against_control
    ]
    _print_parts(
        "\n".join([heading, *paired.left_out]),
        words.comparison_in_words(comparison),
        table(["method", "average rank", "first in", "mean"], ranks, compact=True),
        "\n".join(tests),
        table([*words.PAIR_COLUMNS, "record"], pairs, left=2, compact=True),
        f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's"
        f" signed-rank test, corrected for all pairs ({len(pairs)}). Difference: first minus"
        " second, mean over scenarios. Effect: matched-pairs rank-biserial, 1 if the first is"
        " better wherever they differ. Record: scenarios won-tied-lost.",
        words.control_in_words(comparison),
        table(words.CONTROL_COLUMNS, against_control, compact=True),
        f"* differs from {comparison.control}: Holm p below alpha {comparison.alpha:g}, and"
        " Friedman's test rejects. Rank gap: average rank minus that of"
        f" {comparison.control}.",
    )


def _pair_row(pair: Pair) -> list[str]:
    from feddraw.analysis.statistics_in_words import p_text

    return [
        pair.first,
        pair.second,
        f"{pair.rank_gap:.2f}{'*' if pair.significant else ' '}",
        p_text(pair.nemenyi_p),
        p_text(pair.holm_p),
        f"{pair.mean_difference:.4g}",
        f"{pair.rank_biserial:.2f}",
        f"{pair.wins}-{pair.ties}-{pair.losses}",
    ]


# ------------------------------------------------------------------------- differences over repeats


@dataclass(frozen=True)
class _Differences:
    """Each method minus the reference, by column of values."""

    reference: str
    alpha: float
    folds: int
    by_column: Mapping[str, Sequence[Difference]]
    left_out: Mapping[str, Sequence[str]]  # rows that do not count or are not there, in words
    last_rounds: Mapping[str, LastRounds]  # empty for a column without values by round


def _differences(
    tidy: TidyTable, columns: Sequence[str], reference: str, alpha: float, folds: int
) -> _Differences:
    from feddraw.analysis.paired_differences import against, repeats_over_all_in_words

    if not tidy.repeat:
        raise UserError(
            "--against compares repeats in pairs: name their column with --over, for instance"
            " --over seed"
        )
    paired = {column: tidy.paired_rows(column) for column in columns}
    by_column = {
        column: against(of_column.rows, reference, alpha=alpha, folds=folds)
        for column, of_column in paired.items()
    }
    return _Differences(
        reference=reference,
        alpha=alpha,
        folds=folds,
        by_column=by_column,
        left_out={
            column: [
                *of_column.left_out,
                *repeats_over_all_in_words(by_column[column], tidy.repeat),
            ]
            for column, of_column in paired.items()
        },
        last_rounds={column: tidy.last_round_differences(column, reference) for column in columns},
    )


def _plot_differences(differences: _Differences, path: Path) -> None:
    from feddraw.analysis.plots import differences_figure, save_figure

    save_figure(differences_figure(differences.by_column, differences.reference), path)


def _differences_document(differences: _Differences) -> dict[str, Any]:
    """JSON has no infinity: null stands for what a single repeat cannot have, and for more than a
    thousand repeats.
    """
    documents: dict[str, list[dict[str, Any]]] = {}
    for column, of_column in differences.by_column.items():
        last_rounds = differences.last_rounds[column]
        documents[column] = []
        for difference in of_column:
            row = asdict(difference)
            row["last_five"] = last_rounds.get((difference.scenario, difference.method))
            documents[column].append(
                {
                    name: finite_or_none(value) if isinstance(value, float) else value
                    for name, value in row.items()
                }
            )
    return {
        "alpha": differences.alpha,
        "against": differences.reference,
        "folds": differences.folds,
        "values": documents,
        "left_out": {column: list(words) for column, words in differences.left_out.items()},
    }


def _show_differences(differences: _Differences) -> None:
    from feddraw.analysis.statistics_in_words import differences_in_words

    for column, of_column in differences.by_column.items():
        last_rounds = differences.last_rounds[column]
        scenarios = dict.fromkeys(difference.scenario for difference in of_column)
        rows = []
        for scenario in sorted(scenarios, key=lambda name: not name):  # all together comes last
            for difference in of_column:
                if difference.scenario == scenario:
                    rows.append(_difference_row(difference, last_rounds, differences.alpha))
        columns = ["scenario", "method", "difference", "low", "high", "Holm p", "ahead", "more"]
        if last_rounds:
            columns.append("last 5")
        _print_parts(
            "\n".join(
                [f"{column} minus that of {differences.reference}", *differences.left_out[column]]
            ),
            table(columns, rows, left=2, compact=True),
            differences_in_words(
                of_column, differences.alpha, differences.folds, last=bool(last_rounds)
            ),
        )


def _difference_row(difference: Difference, last_rounds: LastRounds, alpha: float) -> list[str]:
    from feddraw.analysis import statistics_in_words as words

    row = [
        difference.scenario or "all",
        difference.method,
        f"{difference.mean:+.4f}{'*' if difference.holm_p < alpha else ' '}",
        _end(difference.low),
        _end(difference.high),
        words.p_text(difference.holm_p),
        f"{difference.wins}/{difference.repeats}",
        words.more_repeats_in_words(difference),
    ]
    if last_rounds:
        row.append(_end(last_rounds.get((difference.scenario, difference.method), math.nan)))
    return row


def _end(value: float) -> str:
    return f"{value:+.4f}" if math.isfinite(value) else "—"
