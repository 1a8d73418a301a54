"""The table that `python -m benchmarks` prints and writes to bench.md: rows of every part of its
document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.speed import rivals
from feddraw.system.markdown import markdown_table

Row = tuple[str, str, str, str]  # what, the figure, its interval, the bar


def printed_rows(parts: Mapping[str, Any]) -> list[Row]:
    """A line for every figure, also for those that could not be had."""
    rows: list[Row] = []
    for name, part in parts.items():
        if name in ROWS_OF_PART:
            rows += ROWS_OF_PART[name](part)
        elif name in rivals.RIVALS:
            rows += _rival_rows(part)
    return rows


def _row(what: str, ratio: Mapping[str, float] | None, bar: str = "") -> Row:
    if ratio is None:
        return what, "–", "", bar
    return what, f"{ratio['median']:.3g}", f"{ratio['low']:.3g} to {ratio['high']:.3g}", bar


def _by_workload(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a part says of each workload or engine, without what it says of itself."""
    return {name: figures for name, figures in part.items() if isinstance(figures, Mapping)}


def _round_rows(part: Mapping[str, Any]) -> list[Row]:
    rows = []
    for name, figures in _by_workload(part).items():
        title = figures["title"]
        rows += [
            _row(
                f"a round, serial ÷ a bare loop ({title})",
                figures["overhead_serial"],
                "at most 1.03" if name == "small" else "",
            ),
            _row(
                f"a round, serial ÷ two workers ({title})",
                figures["speedup_two_workers"],
                "at least 1.85" if name == "small" else "",
            ),
            _row(
                f"a round, two bare processes ÷ two workers ({title})",
                figures["two_bare_over_two_workers"],
                "at least 0.97",
            ),
        ]
    return rows


def _training_step_rows(part: Mapping[str, Any]) -> list[Row]:
    rows = []
    for figures in _by_workload(part).values():
        title = figures["title"]
        rows += [
            _row(f"a step as examples write it ÷ ours ({title})", figures["plain_over_ours"]),
            _row(f"augmenting a batch ÷ a step ({title})", figures["augment_over_step"]),
            _row(f"reading a batch from the cache ÷ a step ({title})", figures["read_over_step"]),
        ]
    return rows


def _short_study_rows(part: Mapping[str, Any]) -> list[Row]:
    what = f"a study with two workers, two scripts ÷ the study ({part['title']})"
    return [_row(what, part["two_scripts_over_study"], "at least 0.97")]


def _server_step_rows(part: Mapping[str, Any]) -> list[Row]:
    floor = part["over_floor"]
    title = part["title"]
    return [
        _row(
            f"server, FedAvg with gate and ledger ÷ reading once ({title})",
            floor["fedavg"],
            "at most 2.0",
        ),
        _row(
            "server, FedDRAW with gate and ledger ÷ reading once", floor["feddraw"], "at most 2.2"
        ),
        _row("server, the sum ÷ reading once", floor["sum"]),
        _row("server, Flower's FedAvg ÷ our sum", part.get("flower_sum_over_ours"), "at least 8"),
        _row("server, a loop over state dicts ÷ our sum", part["naive_sum_over_ours"]),
    ]


def _server_memory_rows(part: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for engine, figures in _by_workload(part).items():
        peaks = ", ".join(f"{peak['megabytes']:.0f}" for peak in figures["clients"].values())
        counts = ", ".join(f"{int(clients):,}" for clients in figures["clients"])
        what = (
            f"server's peak memory, streaming ({engine}), for {counts} clients: {peaks} MB; the"
            " last ÷ the first"
        )
        rows.append((what, f"{figures['most_over_fewest']:.3f}", "", "at most 1.1"))
    return rows


def _preparation_rows(part: Mapping[str, Any]) -> list[Row]:
    speed = part["images_per_second"]
    return [
        (f"{part['title']}, one worker", f"{speed['one']:.0f} images/s", "", ""),
        _row(f"{part['title']}, one worker ÷ two", part["speedup_two_workers"], "at least 1.7"),
    ]


def _paper_step_rows(part: Mapping[str, Any]) -> list[Row]:
    if "missing" in part:
        return [("the paper's step", "not here", part["missing"], "")]
    return [
        _row(f"{part['title']}, {name}, images/s", speed)
        for name, speed in part["images_per_second"].items()
    ]


def _secure_rows(part: Mapping[str, Any]) -> list[Row]:
    if "masking" not in part:
        return [("secure sums", "not here", part["missing"], "")]
    masking = part["masking"]
    megabytes = {clients: peak["megabytes"] for clients, peak in part["memory"].items()}
    growth = megabytes[max(megabytes, key=int)] / megabytes[min(megabytes, key=int)]
    peaks = ", ".join(f"{peak:.0f}" for peak in megabytes.values())
    memory = (
        f"server's peak memory, secure sums of {' and '.join(megabytes)} clients: {peaks} MB; the"
        " last ÷ the first"
    )
    rows = [
        _row(
            f"a client's masks ÷ bare key streams, added ({part['title']})",
            masking["masks_over_bare"],
            "at most 1.5",
        ),
        _row(
            "the same with fixed point ÷ bare", masking["words_and_masks_over_bare"], "at most 1.5"
        ),
        _row("the same with fixed point and the seal ÷ bare", masking["with_seal_over_bare"]),
        _row(
            "million words per second and mask, one core",
            masking["million_words_per_second"],
            "at least 200",
        ),
        (memory, f"{growth:.3f}", "", "at most 1.1"),
    ]
    return [*rows, *_secure_round_rows(part)]


def _secure_round_rows(part: Mapping[str, Any]) -> list[Row]:
    if "in_process" not in part:
        return [("a secure round over Flower", "not here", part["missing"], "")]
    here = part["in_process"]
    seconds = here["seconds"]
    traffic = f"{here['bytes_over_plain']:.3f}"
    rows = [
        _row("a plain round without training, in-process grid, s", seconds["plain"]),
        _row("a secure round without training, in-process grid, s", seconds["secure"]),
        _row("a secure round ÷ a plain one, in-process grid", here["secure_over_plain"]),
        _row("the same in processor time", here["processor_over_plain"]),
        ("bytes up and down of a secure round ÷ a plain one", traffic, "", "at most 2"),
    ]
    link = part.get("superlink", {})
    if "missing" in link:
        rows.append(("a secure round over a SuperLink", "not here", link["missing"], ""))
    elif link:
        both = ", ".join(f"{way} {taken:.0f} s" for way, taken in link["seconds"].items())
        ratio = f"{link['secure_over_plain']:.1f}"
        rows.append((f"a secure round ÷ a plain one, SuperLink ({both})", ratio, "", ""))
    return rows


def _rival_rows(part: Mapping[str, Any]) -> list[Row]:
    if "missing" in part:
        return [(f"{part['title']} ÷ ours", "not here", part["missing"], "")]
    engine = "serial" if part["cores"] == 1 else "two workers"
    title = f"{part['title']} {part['version']} ÷ ours, {engine}"
    measured = [
        _row(f"{title}: {task}", ratio, "more than 1")
        for task, ratio in part["theirs_over_ours"].items()
    ]
    left_out = [(f"{title}: {task}", "–", reason, "") for task, reason in part["left_out"].items()]
    return measured + left_out


def _frozen_rows(part: Mapping[str, Any]) -> list[Row]:
    title = part["title"]
    run = f"a run on {part['features']:,} features"
    return [
        _row(
            f"a round on images ÷ on features ({title})",
            part["images_over_features"],
            "at least 200",
        ),
        _row(
            "a first run ÷ a bare pass over its images and a second run",
            part["first_over_bare_and_warm"],
            "at most 1.15",
        ),
        _row(
            "the pass that computes features ÷ a bare loop, one core",
            part["feature_pass_over_bare"],
            "at most 1.11",
        ),
        _row(f"{run} ÷ a bare loop over the matrix", part["training_over_bare"], "at most 1.3"),
        (
            f"growth of memory in {run} ÷ these features",
            f"{part['memory_over_touched']:.3f}",
            "",
            "at most 1.2",
        ),
    ]


def _travel_rows(part: Mapping[str, Any]) -> list[Row]:
    if "missing" in part:
        return [("a head under secure sums", "not here", part["missing"], "")]
    ways = {
        "whole": "the whole network",
        "sent": "the head, frozen tensors sent",
        "head": "the head, frozen tensors at the sites",
    }
    rows = []
    for way, words in ways.items():
        traffic = part["megabytes"][way]
        figure = f"{traffic['up']:.3g} up, {traffic['down']:.3g} down"
        rows += [
            (f"a secure round of {words}, MB ({part['title']})", figure, "", ""),
            _row(f"a secure round of {words}, in-process grid, s", part["seconds"][way]),
        ]
    ratio = f"{part['bytes_whole_over_head']:.0f}"
    return [
        *rows,
        ("bytes of a secure round, the whole network ÷ the head", ratio, "", ""),
        _row("a secure round, the whole network ÷ the head", part["whole_over_head"]),
    ]


ROWS_OF_PART: Mapping[str, Callable[[Mapping[str, Any]], list[Row]]] = {
    "rounds": _round_rows,
    "steps": _training_step_rows,
    "study": _short_study_rows,
    "server": _server_step_rows,
    "memory": _server_memory_rows,
    "preparation": _preparation_rows,
    "frozen": _frozen_rows,
    "paper": _paper_step_rows,
    "secure": _secure_rows,
    "travel": _travel_rows,
}


def bench_markdown(measured: Mapping[str, Any]) -> str:
    """The table of a whole document in Markdown."""
    header = ["what", "median", "95 % interval", "bar"]
    return "\n".join(markdown_table(header, printed_rows(measured["parts"]))) + "\n"
