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
    from feddraw.core.schedules import Reading
    from feddraw.paper.published_tables import Comparisons
    from feddraw.paper.recomputed_statistics import PrintedCheck
    from feddraw.paper.weight_claims import ClaimVerdict, WeightClaim

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

    found = published_comparisons()
    drawn = draw_paper_diagrams(found, plot) if plot is not None else []
    if json:
        print_json(paper_document(found))
    else:
        show_paper(found)
        for path in drawn:
            print_line(f"drawn: {path}")


def draw_paper_diagrams(found: Comparisons, folder: Path) -> list[Path]:
    """A critical-difference diagram for each metric."""
    from feddraw.analysis.plots import critical_difference_figure, save_figure
    from feddraw.paper.published_tables import METRICS

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None
    paths = {
        folder / f"critical-difference-{metric}.{ending}": metric
        for metric in found
        for ending in ("png", "svg")
    }
    for path, metric in paths.items():
        save_figure(critical_difference_figure({METRICS[metric]: found[metric]}), path)
    return list(paths)


def paper_document(found: Comparisons) -> dict[str, Any]:
    """All of it, as JSON holds it."""
    from feddraw.analysis.statistics import comparison_document
    from feddraw.paper import published_tables
    from feddraw.paper.conclusions import conclusions
    from feddraw.paper.recomputed_statistics import check_printed_numbers
    from feddraw.paper.weight_claims import claims_by_reading, readings_in_words

    judged = claims_by_reading()
    return {
        "source": PAPER_SOURCE,
        "alpha": published_tables.PAPER_ALPHA,
        "checks": [
            asdict(check) | {"agrees": check.agrees} for check in check_printed_numbers(found)
        ],
        "metrics": {
            metric: comparison_document(comparison) for metric, comparison in found.items()
        },
        "printed_ranks": {
            metric: published_tables.printed_ranks(metric).rows() for metric in found
        },
        "dynamics": [
            asdict(claim)
            | {"readings": {r: {s: asdict(v) for s, v in by.items()} for r, by in verdicts.items()}}
            for claim, verdicts in judged
        ],
        "readings": readings_in_words(judged),
        "findings": [asdict(one) for one in conclusions(found)],
    }


def show_paper(found: Comparisons) -> None:
    from feddraw.paper.conclusions import conclusions
    from feddraw.paper.weight_claims import claims_by_reading, readings_in_words

    out = console()
    out.print(
        f"Published numbers of {PAPER_SOURCE}.\nThe results are the authors'; here they are only"
        " recomputed.\n"
    )
    _show_published_ranks(out, found)
    _show_paper_checks(out, found)
    _show_significant_pairs(out, found)
    judged = claims_by_reading()
    _show_weight_claims(out, judged)
    _print_paper_bullets(
        out, [f"{name}: {text}" for name, text in readings_in_words(judged).items()]
    )
    concluded = conclusions(found)
    out.print("\nWhat the published numbers show")
    _print_paper_bullets(out, [one.text for one in concluded if one.shows])
    out.print("\nWhat they leave open")
    _print_paper_bullets(out, [one.text for one in concluded if not one.shows])


def _show_published_ranks(out: Console, found: Comparisons) -> None:
    """Table 6 as it follows from Tables 4 and 5; a rank that is printed otherwise would stand in
    brackets.
    """
    from feddraw.paper import published_tables

    auc, gm = found["auc"], found["gm"]
    printed = [published_tables.printed_ranks(metric).values for metric in found]
    rows = []
    for i, scenario in enumerate(auc.table.scenarios):
        pairs = ((auc.ranks[i], gm.ranks[i]), (printed[0][i], printed[1][i]))
        computed, given = ([f"{a:g}/{g:g}" for a, g in zip(*pair, strict=True)] for pair in pairs)
        rows.append(
            [
                scenario,
                *(c if c == p else f"{c} ({p})" for c, p in zip(computed, given, strict=True)),
            ]
        )
    for name, one in (("avg AUC", auc), ("avg GM", gm)):
        rows.append([name, *(f"{one.average_ranks[method]:.2f}" for method in one.table.methods)])
    out.print(
        "Table 6: ranks from the printed means, AUC/GM (in brackets: a printed rank that differs)"
    )
    out.print(table(["", *auc.table.methods], rows, compact=True), "", sep="\n")


def _show_paper_checks(out: Console, found: Comparisons) -> None:
    from feddraw.paper.recomputed_statistics import check_printed_numbers

    checks = check_printed_numbers(found)
    numbers = [
        check for check in checks if check.metric != "both" and " than" not in check.quantity
    ]
    by_quantity = grouped(
        (check.quantity, cell) for check in numbers for cell in (check.printed, check.computed)
    )
    columns = ["", "AUC printed", "recomputed", "GM printed", "recomputed"]
    rows = [[quantity, *cells] for quantity, cells in by_quantity.items()]
    out.print(table(columns, rows, compact=True), "", sep="\n")
    _print_paper_bullets(
        out, [_paper_check_sentence(check) for check in checks if check not in numbers]
    )
    agree = sum(check.agrees for check in checks)
    out.print(f"{agree} of {len(checks)} printed statements follow from the published means.\n")


def _paper_check_sentence(check: PrintedCheck) -> str:
    from feddraw.paper.published_tables import METRICS

    if check.metric == "both":
        return f"{check.quantity}: {check.computed} of {check.printed} agree"
    said = "as printed" if check.agrees else f"printed: {check.printed}"
    return f"{METRICS[check.metric]}: {check.quantity} {check.computed} ({said})"


def _show_significant_pairs(out: Console, found: Comparisons) -> None:
    from feddraw.analysis.statistics_in_words import p_text
    from feddraw.paper.published_tables import METRICS

    for metric, comparison in found.items():
        pairs = [pair for pair in comparison.pairs if pair.significant]
        gap = f"{comparison.difference:.2f}"
        out.print(f"{METRICS[metric]}: {len(pairs)} pairs differ by more than {gap} (Nemenyi's p)")
        named = [
            f"{pair.first} > {pair.second} {pair.rank_gap:.2f} ({p_text(pair.nemenyi_p)})"
            for pair in pairs
        ]
        _print_paper_bullets(out, [", ".join(named)])
        _print_paper_bullets(
            out, [f"not significantly different: {', '.join(group)}" for group in comparison.groups]
        )
    out.print()


Judged = Sequence[tuple["WeightClaim", Mapping["Reading", Mapping[str, "ClaimVerdict"]]]]


def _show_weight_claims(out: Console, judged: Judged) -> None:
    rows = []
    for claim, some in judged:
        about = [
            f"{claim.scenario} {claim.client}",
            claim.round.removesuffix(" round"),
            _printed_claim(claim),
        ]
        rows.append([*about, *(_verdict_cell(claim, by) for by in some.values())])
    out.print(
        "Weights over the rounds: what is printed, and whether each reading of the method can"
        " give it"
    )
    out.print(
        table(["clients", "round", "printed", *judged[0][1]], rows, left=6, compact=True),
        "",
        sep="\n",
    )
    _print_paper_bullets(out, VERDICTS_EXPLAINED)
    out.print()


def _printed_claim(claim: WeightClaim) -> str:
    if claim.quantity.startswith("deviation"):
        return "below mean"
    word = next((w for key, w in CLAIM_WORDS.items() if key in claim.quantity), "weight")
    return f"{word} {claim.relation.replace('==', '')}{claim.value}"


CLAIM_WORDS = {"max-min": "spread", "maximum": "largest", "minimum": "smallest"}
VERDICTS_EXPLAINED = (
    (
        "always: for any similarities; never: for none, the number is the weight that results; not"
        " in: not in these rounds"
    ),
    "gap: if the client's similarity is this much above (+) or below (-) that of the others",
    "range: if the similarities of these clients differ by about this much",
    "by chance: only if the similarities exactly cancel the effect of size",
)


def _verdict_cell(claim: WeightClaim, by_scenario: Mapping[str, ClaimVerdict]) -> str:
    """A verdict in a few letters; the scenarios of one claim never differ in kind."""
    verdict = next(iter(by_scenario.values()))
    if verdict.outcome == "always":
        return f"always {verdict.low:.4f}"
    if verdict.outcome == "never":
        several = len(claim.rounds) > 1
        return (
            f"not in {', '.join(map(str, verdict.failing))}"
            if several
            else f"never: {verdict.low:.4f}"
        )
    if float(claim.value) == 0:
        return "by chance"
    largest = max(verdict.needs.values(), key=abs)
    if claim.quantity.startswith("max-min"):
        return f"range {largest:.4f}"
    return f"gap {claim.relation.replace('==', '')}{largest:+.4f}"


def _print_paper_bullets(out: Console, lines: Sequence[str]) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", line)
    out.print(grid)
