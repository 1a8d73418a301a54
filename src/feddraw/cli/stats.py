"""`feddraw stats`: ranks, tests and effect sizes of any tidy table of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.analysis.paired_differences import Difference
    from feddraw.analysis.statistics import Comparison
    from feddraw.data.csv_sheet import CsvSheet

LastRounds = Mapping[
    tuple[str, str], float
]  # by scenario and method, the difference in the mean of the last rounds


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
        Option(help="Column to compare (repeatable). Default: all but standard deviations."),
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
    """Compare methods over scenarios: ranks, Friedman, Nemenyi, Wilcoxon with Holm, effect
    sizes.
    """
    from feddraw.analysis.statistics import compare, comparison_document, to_digits
    from feddraw.analysis.tidy_results import read_tidy_table, tidy_value_columns
    from feddraw.data.csv_sheet import CsvSheet

    sheet = CsvSheet.of(table)
    columns = value or tidy_value_columns(sheet, {scenario, method, over})
    if against:
        stats_against(sheet, (scenario, method, over), columns, against, alpha, folds, json, plot)
        return
    if folds:
        raise UserError(
            "--folds widens the intervals of --against: give the method to compare with, too"
        )
    tables = {column: read_tidy_table(sheet, scenario, method, column, over) for column in columns}
    if digits is not None:
        tables = {column: to_digits(one, digits) for column, one in tables.items()}
    found = {
        column: compare(values, alpha=alpha, lower_is_better=lower_is_better)
        for column, values in tables.items()
    }
    if plot is not None:
        from feddraw.analysis.plots import critical_difference_figure, save_figure

        save_figure(critical_difference_figure(found), plot)
    if json:
        documents = {
            column: comparison_document(comparison) for column, comparison in found.items()
        }
        print_json({"alpha": alpha, "lower_is_better": lower_is_better, "values": documents})
        return
    for column, comparison in found.items():
        show_stats(column, comparison)


def stats_against(
    sheet: CsvSheet,
    names: tuple[str, str, str],
    columns: Sequence[str],
    reference: str,
    alpha: float,
    folds: int,
    json: bool,
    plot: Path | None,
) -> None:
    """Each method minus the reference, by scenario: printed, drawn, or as a document."""
    from feddraw.analysis.paired_differences import against
    from feddraw.analysis.tidy_results import read_tidy_rows, tidy_last_round_differences

    scenario, method, over = names
    if not over:
        raise UserError(
            "--against compares repeats in pairs: name their column with --over, for instance"
            " --over seed"
        )
    rows = {column: read_tidy_rows(sheet, scenario, method, column, over) for column in columns}
    found = {
        column: against(of, reference, alpha=alpha, folds=folds) for column, of in rows.items()
    }
    late = {
        column: tidy_last_round_differences(sheet, names, column, reference) for column in columns
    }
    if plot is not None:
        from feddraw.analysis.plots import differences_figure, save_figure

        save_figure(differences_figure(found, reference), plot)
    if json:
        documents = {
            column: [_difference_document(one, late[column]) for one in of]
            for column, of in found.items()
        }
        print_json({"alpha": alpha, "against": reference, "folds": folds, "values": documents})
        return
    for column, of in found.items():
        show_stats_differences(column, of, late[column], reference, alpha, folds)


def _difference_document(difference: Difference, late: LastRounds) -> dict[str, Any]:
    """JSON has no infinity: null stands for what a single repeat cannot have, and for more than a
    thousand repeats.
    """
    row = asdict(difference) | {"last_five": late.get((difference.scenario, difference.method))}
    return {
        name: None if isinstance(one, float) and not math.isfinite(one) else one
        for name, one in row.items()
    }


def show_stats_differences(
    column: str,
    found: Sequence[Difference],
    late: LastRounds,
    reference: str,
    alpha: float,
    folds: int,
) -> None:
    from feddraw.analysis import statistics_in_words as words

    scenarios = dict.fromkeys(one.scenario for one in found if one.scenario)
    ordered = [one for scenario in (*scenarios, "") for one in found if one.scenario == scenario]
    rows = [_stats_difference_row(one, late, alpha) for one in ordered]
    columns = ["scenario", "method", "difference", "low", "high", "Holm p", "ahead", "more"]
    drawn = table([*columns, *(["last 5"] if late else [])], rows, left=2, compact=True)
    note = words.differences_in_words(found, alpha, folds, last=bool(late))
    _print_stats(f"{column} minus that of {reference}", drawn, note)


def _print_stats(*parts: Any) -> None:
    """Each with a blank line behind it."""
    for part in parts:
        console().print(part, "", sep="\n")


def _stats_difference_row(one: Difference, late: LastRounds, alpha: float) -> list[str]:
    from feddraw.analysis import statistics_in_words as words

    mark = "*" if one.holm_p < alpha else " "
    ends = [f"{end:+.4f}" if math.isfinite(end) else "—" for end in (one.low, one.high)]
    where = (one.scenario, one.method)
    last = [f"{late[where]:+.4f}" if where in late else "—"] if late else []
    numbers = [
        f"{one.mean:+.4f}{mark}",
        *ends,
        words.p_text(one.holm_p),
        f"{one.wins}/{one.repeats}",
    ]
    return [one.scenario or "all", one.method, *numbers, words.more_repeats_in_words(one), *last]


def show_stats(name: str, comparison: Comparison) -> None:
    """The summary in words, the ranks, the tests, the pairs."""
    from feddraw.analysis.statistics_in_words import (
        comparison_in_words,
        near_ties_in_words,
        rank_tests_in_words,
    )

    values = comparison.table.values.mean(axis=0)
    mean = dict(zip(comparison.table.methods, values.tolist(), strict=True))
    first = comparison.first_places
    rows = [
        [m, f"{r:.2f}", str(first[m]), f"{mean[m]:.4g}"]
        for m, r in comparison.average_ranks.items()
    ]
    pairs = [_stats_pair_row(pair) for pair in comparison.pairs]
    _print_stats(
        f"{name}: {len(comparison.table.methods)} methods over {len(comparison.table.scenarios)}"
        " scenarios",
        comparison_in_words(comparison),
        table(["method", "average rank", "first in", "mean"], rows, compact=True),
        "\n".join([*rank_tests_in_words(comparison), *near_ties_in_words(comparison.table)]),
        table(PAIR_COLUMNS, pairs, left=2, compact=True),
        f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's"
        f" signed-rank test, corrected for all pairs ({len(pairs)}). Difference: first minus"
        " second, mean over scenarios. Effect: matched-pairs rank-biserial, 1 if the first is"
        " better wherever they differ. Record: scenarios won-tied-lost.",
    )


PAIR_COLUMNS = (
    "first",
    "second",
    "rank gap",
    "Nemenyi p",
    "Holm p",
    "difference",
    "effect",
    "record",
)


def _stats_pair_row(pair: Any) -> list[str]:
    from feddraw.analysis.statistics_in_words import p_text

    mark = "*" if pair.significant else " "
    record = f"{pair.wins}-{pair.ties}-{pair.losses}"
    numbers = [f"{pair.rank_gap:.2f}{mark}", p_text(pair.nemenyi_p), p_text(pair.holm_p)]
    return [
        pair.first,
        pair.second,
        *numbers,
        f"{pair.mean_difference:.4g}",
        f"{pair.rank_biserial:.2f}",
        record,
    ]
