"""`feddraw stats`: ranks, tests and effect sizes of any tidy table of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.show import as_json, console, table
from feddraw.errors import UserError

if TYPE_CHECKING:
    from feddraw.analysis.paired_differences import Difference
    from feddraw.analysis.statistics import Comparison, Table
    from feddraw.data.tables import Sheet

DESCRIBING = ("_std", "_sd", "_sem", "_var", "_by_round", "_by_client")  # endings of columns that describe another one


def stats(
    table: Annotated[Path, Argument(help="A CSV file with a row for each scenario and method (also .gz).")],
    scenario: Annotated[str, Option(help="Column that names the scenario or data set.")] = "scenario",
    method: Annotated[str, Option(help="Column that names the method.")] = "method",
    value: Annotated[
        list[str] | None, Option(help="Column to compare; may be given again. Left out: all others but spreads.")
    ] = None,
    over: Annotated[str, Option(help="Column of repeats, such as seed, to take the mean over first.")] = "",
    alpha: Annotated[float, Option(help="Significance level.")] = 0.05,
    lower_is_better: Annotated[bool, Option("--lower-is-better", help="Rank the smallest value first.")] = False,
    against: Annotated[
        str, Option(help="Instead of ranks: each method minus this one, paired by --over, with intervals.")
    ] = "",
    folds: Annotated[
        int, Option(help="With --against: repeats are folds of so many, which share training images; 0: they are not.")
    ] = 0,
    digits: Annotated[
        int | None, Option(help="Decimals that count in ranks: means equal after rounding are ties. Left out: all.")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    plot: Annotated[
        Path | None, Option(help="Draw the critical difference, or the differences, to this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Compare methods over scenarios: ranks, Friedman, Nemenyi, Wilcoxon with Holm, effect sizes."""
    from feddraw.analysis.statistics import compare, to_digits
    from feddraw.data.tables import Sheet

    sheet = Sheet.of(table)
    columns = value or _value_columns(sheet, {scenario, method, over})
    if against:
        differences(sheet, (scenario, method, over), columns, against, alpha, folds, json, plot)
        return
    if folds:
        raise UserError("--folds widens the intervals of --against: give the method to compare with, too")
    tables = {column: read_table(sheet, scenario, method, column, over) for column in columns}
    if digits is not None:
        tables = {column: to_digits(one, digits) for column, one in tables.items()}
    found = {column: compare(values, alpha=alpha, lower_is_better=lower_is_better) for column, values in tables.items()}
    if plot is not None:
        from feddraw.analysis.plots import critical_difference_figure, save_figure

        save_figure(critical_difference_figure(found), plot)
    if json:
        documents = {column: document(comparison) for column, comparison in found.items()}
        as_json({"alpha": alpha, "lower_is_better": lower_is_better, "values": documents})
        return
    for column, comparison in found.items():
        show(column, comparison)


def _value_columns(sheet: Sheet, names: set[str]) -> list[str]:
    columns = [name for name in sheet.header if name not in names and not name.endswith(DESCRIBING)]
    if not columns:
        raise UserError(f"{sheet.path} has no column of values; it has {', '.join(sheet.header)}")
    return columns


def read_table(sheet: Sheet, scenario: str, method: str, value: str, over: str) -> Table:
    """One column of values as a table; a field that is no number is named with its line."""
    from feddraw.analysis.statistics import tabulate, tabulate_repeats

    rows = read_rows(sheet, scenario, method, value, over)
    try:
        if over:
            return tabulate_repeats(rows)
        return tabulate((where, who, number) for where, who, _, number in rows)
    except UserError as mistake:
        hint = " (for repeats such as seeds: --over COLUMN)" if str(mistake).startswith("more than one") else ""
        raise UserError(f"{sheet.path}, {value}: {mistake}{hint}") from None


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        have = f"{text[:40]!r}, not a number" if text else "blank"
        raise UserError(f"{' '.join(what.split())[:200]} is {have}: correct it, or choose other columns with --value")
    return number


def read_rows(
    sheet: Sheet, scenario: str, method: str, value: str, over: str, read: Callable[[str, str], float] = _number
) -> list[tuple[str, str, str, float]]:
    """Scenario, method, repeat and value of every line; `read` makes the value of a field's text and its name."""
    places = [sheet.column(name) for name in (scenario, method, over or scenario, value)]
    rows: list[tuple[str, str, str, float]] = []
    for line, fields in sheet.rows():
        where, who, repeat, text = (fields[place].strip() for place in places)
        if not where or not who:
            raise UserError(f"{sheet.path}, line {line}: no {method if where else scenario}")
        rows.append((where, who, repeat, read(text, f"{sheet.path}, line {line}: {value} of {where} {who}")))
    return rows


# ---------------------------------------------------------------------------------------------------- one against all


def differences(
    sheet: Sheet,
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

    scenario, method, over = names
    if not over:
        raise UserError("--against compares repeats in pairs: name their column with --over, for instance --over seed")
    rows = {column: read_rows(sheet, scenario, method, column, over) for column in columns}
    found = {column: against(of, reference, alpha=alpha, folds=folds) for column, of in rows.items()}
    late = {column: last_rounds(sheet, names, column, reference) for column in columns}
    if plot is not None:
        from feddraw.analysis.plots import differences_figure, save_figure

        save_figure(differences_figure(found, reference), plot)
    if json:
        documents = {
            column: [_finite(asdict(one) | {"last_five": late[column].get((one.scenario, one.method))}) for one in of]
            for column, of in found.items()
        }
        as_json({"alpha": alpha, "against": reference, "folds": folds, "values": documents})
        return
    for column, of in found.items():
        show_differences(column, of, late[column], reference, alpha, folds)


def last_rounds(sheet: Sheet, names: tuple[str, str, str], column: str, reference: str) -> dict[tuple[str, str], float]:
    """The same differences of the means of the last five rounds, where the table has values by round for every row."""
    from feddraw.analysis.paired_differences import against, mean_of_last

    by_round = f"{column}_by_round"
    if by_round not in sheet.header:
        return {}

    def read(text: str, what: str) -> float:
        return mean_of_last(_number(word, what) for word in text.split())

    scenario, method, over = names
    rows = read_rows(sheet, scenario, method, by_round, over, read)
    if any(math.isnan(value) for *_, value in rows):
        return {}
    return {(one.scenario, one.method): one.mean for one in against(rows, reference)}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: null stands for what a single repeat cannot have, and for more than a thousand repeats."""
    return {name: None if isinstance(one, float) and not math.isfinite(one) else one for name, one in row.items()}


def show_differences(
    column: str,
    found: Sequence[Difference],
    late: Mapping[tuple[str, str], float],
    reference: str,
    alpha: float,
    folds: int,
) -> None:
    from feddraw.analysis import statistics_in_words as words

    scenarios = dict.fromkeys(one.scenario for one in found if one.scenario)
    ordered = [one for scenario in (*scenarios, "") for one in found if one.scenario == scenario]
    rows = [_difference_row(one, late, alpha) for one in ordered]
    columns = ["scenario", "method", "difference", "low", "high", "Holm p", "ahead", "more"]
    drawn = table([*columns, *(["last 5"] if late else [])], rows, left=2, compact=True)
    _print(f"{column} minus that of {reference}", drawn, words.differences_note(found, alpha, folds, last=bool(late)))


def _print(*parts: Any) -> None:
    """Each with a blank line behind it."""
    for part in parts:
        console().print(part, "", sep="\n")


def _difference_row(one: Difference, late: Mapping[tuple[str, str], float], alpha: float) -> list[str]:
    from feddraw.analysis import statistics_in_words as words

    mark = "*" if one.holm_p < alpha else " "
    ends = [f"{end:+.4f}" if math.isfinite(end) else "—" for end in (one.low, one.high)]
    where = (one.scenario, one.method)
    last = [f"{late[where]:+.4f}" if where in late else "—"] if late else []
    numbers = [f"{one.mean:+.4f}{mark}", *ends, words.p_text(one.holm_p), f"{one.wins}/{one.repeats}"]
    return [one.scenario or "all", one.method, *numbers, words.more_repeats_in_words(one), *last]


# ---------------------------------------------------------------------------------------------------- as a document


def document(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON holds it; null stands for an F that is infinite because all scenarios agree."""
    table, test = comparison.table, comparison.friedman
    f_statistic = test.f_statistic if math.isfinite(test.f_statistic) else None
    return {
        "scenarios": list(table.scenarios),
        "methods": list(table.methods),
        "ranks": replace(table, values=comparison.ranks).rows(),
        "average_ranks": comparison.average_ranks,
        "first_places": comparison.first_places,
        "friedman": {
            "statistic": test.statistic,
            "degrees": test.degrees,
            "p": test.p,
            "iman_davenport": {"statistic": f_statistic, "degrees": list(test.f_degrees), "p": test.f_p},
        },
        "critical_difference": comparison.difference,
        "groups": [list(group) for group in comparison.groups],
        "pairs": [asdict(pair) for pair in comparison.pairs],
    }


# ---------------------------------------------------------------------------------------------------- in words


def show(name: str, comparison: Comparison) -> None:
    """The summary in words, the ranks, the tests, the pairs."""
    from feddraw.analysis.statistics_in_words import comparison_in_words, near_ties_in_words, rank_tests_in_words

    values = comparison.table.values.mean(axis=0)
    mean = dict(zip(comparison.table.methods, values.tolist(), strict=True))
    first = comparison.first_places
    rows = [[m, f"{r:.2f}", str(first[m]), f"{mean[m]:.4g}"] for m, r in comparison.average_ranks.items()]
    pairs = [_pair_row(pair) for pair in comparison.pairs]
    _print(
        f"{name}: {len(comparison.table.methods)} methods over {len(comparison.table.scenarios)} scenarios",
        comparison_in_words(comparison),
        table(["method", "average rank", "first in", "mean"], rows, compact=True),
        "\n".join([*rank_tests_in_words(comparison), *near_ties_in_words(comparison.table)]),
        table(PAIR_COLUMNS, pairs, left=2, compact=True),
        f"* significant by Nemenyi's test at alpha {comparison.alpha:g}. Holm p: Wilcoxon's signed-rank test, "
        f"corrected for all pairs ({len(pairs)}). Difference: first minus second, mean over scenarios. Effect: "
        "matched-pairs rank-biserial, 1 if the first is better wherever they differ. Record: scenarios won-tied-lost.",
    )


PAIR_COLUMNS = ("first", "second", "rank gap", "Nemenyi p", "Holm p", "difference", "effect", "record")


def _pair_row(pair: Any) -> list[str]:
    from feddraw.analysis.statistics_in_words import p_text

    mark = "*" if pair.significant else " "
    record = f"{pair.wins}-{pair.ties}-{pair.losses}"
    numbers = [f"{pair.rank_gap:.2f}{mark}", p_text(pair.nemenyi_p), p_text(pair.holm_p)]
    return [pair.first, pair.second, *numbers, f"{pair.mean_difference:.4g}", f"{pair.rank_biserial:.2f}", record]
