"""`feddraw paper`: the published tables, what follows from them beside what is printed, and what
they show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Option

from feddraw.cli.terminal import console, print_json, print_line, table
from feddraw.errors import UserError
from feddraw.text import grouped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feddraw.core.schedules import Reading
    from feddraw.paper.published_tables import Comparisons
    from feddraw.paper.recomputed_statistics import PrintedCheck
    from feddraw.paper.weight_claims import ClaimVerdict, WeightClaim

    Floats = NDArray[np.float64]
    Verdicts = Mapping[Reading, Mapping[str, ClaimVerdict]]  # by reading and scenario

PAPER_SOURCE = (
    "M. Moradpour and A.-C. Hauschild, FedDRAW: Federated Dual Reputation Annealing Weighting for"
    " Heterogeneous Multi-Institutional Chest Radiograph Classification (preprint)"
)


def paper(
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    plot: Annotated[
        Path | None, Option(help="Draw both diagrams into this folder (.png and .svg).")
    ] = None,
) -> None:
    """Recompute the paper's statistics from its published tables, and say what they show."""
    from feddraw.paper.published_tables import published_comparisons

    comparisons = published_comparisons()
    drawn = _draw_diagrams(comparisons, plot) if plot is not None else []
    if json:
        print_json(_document(comparisons))
    else:
        _show(comparisons)
        for path in drawn:
            print_line(f"drawn: {path}")


def _draw_diagrams(comparisons: Comparisons, folder: Path) -> list[Path]:
    """A critical-difference diagram for each metric."""
    from feddraw.analysis.critical_difference_plot import critical_difference_figure
    from feddraw.analysis.plots import save_figure
    from feddraw.paper.published_tables import METRICS

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None
    paths = []
    for metric, comparison in comparisons.items():
        for ending in ("png", "svg"):
            path = folder / f"critical-difference-{metric}.{ending}"
            save_figure(critical_difference_figure({METRICS[metric]: comparison}), path)
            paths.append(path)
    return paths


def _document(comparisons: Comparisons) -> dict[str, Any]:
    """All of it, as JSON holds it."""
    from feddraw.analysis.statistics import comparison_document
    from feddraw.paper import published_tables
    from feddraw.paper.conclusions import conclusions
    from feddraw.paper.readings_in_words import readings_in_words
    from feddraw.paper.recomputed_statistics import check_printed_numbers
    from feddraw.paper.weight_claims import claims_by_reading

    judged = claims_by_reading()
    checks = check_printed_numbers(comparisons)
    return {
        "source": PAPER_SOURCE,
        "alpha": published_tables.PAPER_ALPHA,
        "checks": [asdict(check) | {"agrees": check.agrees} for check in checks],
        "metrics": {
            metric: comparison_document(comparison) for metric, comparison in comparisons.items()
        },
        "printed_ranks": {
            metric: published_tables.printed_ranks(metric).rows() for metric in comparisons
        },
        "dynamics": [_claim_document(claim, verdicts) for claim, verdicts in judged],
        "readings": readings_in_words(judged),
        "findings": [asdict(conclusion) for conclusion in conclusions(comparisons)],
    }


def _claim_document(claim: WeightClaim, verdicts: Verdicts) -> dict[str, Any]:
    readings = {
        reading: {scenario: asdict(verdict) for scenario, verdict in by_scenario.items()}
        for reading, by_scenario in verdicts.items()
    }
    return asdict(claim) | {"readings": readings}


def _show(comparisons: Comparisons) -> None:
    from feddraw.paper.conclusions import conclusions
    from feddraw.paper.readings_in_words import readings_in_words
    from feddraw.paper.weight_claims import claims_by_reading

    out = console()
    out.print(
        f"Published numbers of {PAPER_SOURCE}.\nThe results are the authors'; here they are only"
        " recomputed.\n"
    )
    _show_ranks(out, comparisons)
    _show_checks(out, comparisons)
    _show_significant_pairs(out, comparisons)
    judged = claims_by_reading()
    _show_weight_claims(out, judged)
    _print_bullets(out, [f"{name}: {text}" for name, text in readings_in_words(judged).items()])
    concluded = conclusions(comparisons)
    out.print("\nWhat the published numbers show")
    _print_bullets(out, [conclusion.text for conclusion in concluded if conclusion.shows])
    out.print("\nWhat they leave open")
    _print_bullets(out, [conclusion.text for conclusion in concluded if not conclusion.shows])


def _show_ranks(out: Console, comparisons: Comparisons) -> None:
    """Table 6 as it follows from Tables 4 and 5; a rank that is printed otherwise would stand in
    brackets.
    """
    from feddraw.paper.published_tables import METRICS, printed_ranks

    scenarios = comparisons["auc"].table.scenarios
    methods = comparisons["auc"].table.methods
    computed = _rank_pairs(comparisons["auc"].ranks, comparisons["gm"].ranks)
    printed = _rank_pairs(printed_ranks("auc").values, printed_ranks("gm").values)
    rows = []
    for scenario, ours, theirs in zip(scenarios, computed, printed, strict=True):
        row = [scenario]
        for rank, printed_rank in zip(ours, theirs, strict=True):
            row.append(rank if rank == printed_rank else f"{rank} ({printed_rank})")
        rows.append(row)
    for metric, comparison in comparisons.items():
        average = [f"{comparison.average_ranks[method]:.2f}" for method in methods]
        rows.append([f"avg {METRICS[metric]}", *average])
    out.print(
        "Table 6: ranks from the printed means, AUC/GM (in brackets: a printed rank that differs)"
    )
    out.print(table(["", *methods], rows, compact=True), "", sep="\n")


def _rank_pairs(auc: Floats, gm: Floats) -> list[list[str]]:
    """By scenario and method, as Table 6 prints them."""
    return [
        [f"{a:g}/{g:g}" for a, g in zip(auc_row, gm_row, strict=True)]
        for auc_row, gm_row in zip(auc, gm, strict=True)
    ]


def _show_checks(out: Console, comparisons: Comparisons) -> None:
    from feddraw.paper.recomputed_statistics import check_printed_numbers

    checks = check_printed_numbers(comparisons)
    numbers = [
        check for check in checks if check.metric != "both" and " than" not in check.quantity
    ]
    by_quantity = grouped(
        (check.quantity, cell) for check in numbers for cell in (check.printed, check.computed)
    )
    columns = ["", "AUC printed", "recomputed", "GM printed", "recomputed"]
    rows = [[quantity, *cells] for quantity, cells in by_quantity.items()]
    out.print(table(columns, rows, compact=True), "", sep="\n")
    _print_bullets(out, [_check_in_words(check) for check in checks if check not in numbers])
    agree = sum(check.agrees for check in checks)
    out.print(f"{agree} of {len(checks)} printed statements follow from the published means.\n")


def _check_in_words(check: PrintedCheck) -> str:
    from feddraw.paper.published_tables import METRICS

    if check.metric == "both":
        return f"{check.quantity}: {check.computed} of {check.printed} agree"
    printed = "as printed" if check.agrees else f"printed: {check.printed}"
    return f"{METRICS[check.metric]}: {check.quantity} {check.computed} ({printed})"


def _show_significant_pairs(out: Console, comparisons: Comparisons) -> None:
    from feddraw.analysis.statistics_in_words import p_text
    from feddraw.paper.published_tables import METRICS

    for metric, comparison in comparisons.items():
        pairs = [
            f"{pair.first} > {pair.second} {pair.rank_gap:.2f} ({p_text(pair.nemenyi_p)})"
            for pair in comparison.pairs
            if pair.significant
        ]
        out.print(
            f"{METRICS[metric]}: {len(pairs)} pairs differ by more than"
            f" {comparison.difference:.2f} (Nemenyi's p)"
        )
        groups = [f"not significantly different: {', '.join(group)}" for group in comparison.groups]
        _print_bullets(out, [", ".join(pairs)])
        _print_bullets(out, groups)
    out.print()


def _show_weight_claims(out: Console, judged: Sequence[tuple[WeightClaim, Verdicts]]) -> None:
    from feddraw.core.schedules import READINGS

    rows = []
    for claim, verdicts in judged:
        row = [f"{claim.scenario} {claim.client}", claim.round.removesuffix(" round")]
        row.append(_printed_claim(claim))
        row += [_verdict_in_words(claim, verdicts[reading]) for reading in READINGS]
        rows.append(row)
    out.print(
        "Weights over the rounds: what is printed, and whether each reading of the method can"
        " give it"
    )
    columns = ["clients", "round", "printed", *READINGS]
    out.print(table(columns, rows, left=len(columns), compact=True), "", sep="\n")
    _print_bullets(out, VERDICTS_EXPLAINED)
    out.print()


def _printed_claim(claim: WeightClaim) -> str:
    from feddraw.paper.weight_claims import Quantity

    if claim.quantity is Quantity.DEVIATION:
        return "below mean"
    words = {
        Quantity.SPREAD: "spread",
        Quantity.LARGEST_WEIGHT: "largest",
        Quantity.SMALLEST_WEIGHT: "smallest",
    }
    return f"{words.get(claim.quantity, 'weight')} {_sign(claim)}{claim.value}"


def _sign(claim: WeightClaim) -> str:
    """Of the relation to the printed value; none where it is equal."""
    from feddraw.paper.weight_claims import Relation

    return "" if claim.relation is Relation.EQUAL else str(claim.relation)


VERDICTS_EXPLAINED = (
    (
        "always: for any similarities; never: for none, the number is the weight that results; not"
        " in: not in these rounds"
    ),
    "gap: if the client's similarity is this much above (+) or below (-) that of the others",
    "range: if the similarities of these clients differ by about this much",
    "by chance: only if the similarities exactly cancel the effect of size",
)


def _verdict_in_words(claim: WeightClaim, by_scenario: Mapping[str, ClaimVerdict]) -> str:
    """A verdict in a few letters; the scenarios of one claim never differ in kind."""
    from feddraw.paper.weight_claims import Quantity

    verdict = next(iter(by_scenario.values()))
    if verdict.outcome == "always":
        return f"always {verdict.low:.4f}"
    if verdict.outcome == "never":
        if len(claim.rounds) > 1:
            return f"not in {', '.join(map(str, verdict.failing))}"
        return f"never: {verdict.low:.4f}"
    if claim.number == 0:
        return "by chance"
    largest = max(verdict.needs.values(), key=abs)
    if claim.quantity is Quantity.SPREAD:
        return f"range {largest:.4f}"
    return f"gap {_sign(claim)}{largest:+.4f}"


def _print_bullets(out: Console, lines: Sequence[str]) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", line)
    out.print(grid)
