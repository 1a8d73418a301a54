"""The table that `feddraw bench` prints and writes to bench.md: rows of every part of its
document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feddraw.bench import rivals

Row = tuple[str, str, str, str]  # what, the figure, its interval, the bar


def printed_rows(parts: Mapping[str, Any]) -> list[Row]:
    """A line for every figure, also for those that could not be had."""
    found: list[Row] = []
    for name, part in parts.items():
        found += ROWS_OF_PART[name](part) if name in ROWS_OF_PART else []
        if name in rivals.RIVALS:
            found += _rival_rows(part)
    return found


def _printed_row(what: str, found: Mapping[str, float] | None, bar: str = "") -> Row:
    if found is None:
        return what, "–", "", bar
    return what, f"{found['median']:.3g}", f"{found['low']:.3g} to {found['high']:.3g}", bar


def _parts_by_name(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in part.items() if isinstance(one, Mapping)}


def _round_rows(part: Mapping[str, Any]) -> list[Row]:
    found = []
    for name, one in _parts_by_name(part).items():
        serial, speedup = ("at most 1.03", "at least 1.85") if name == "small" else ("", "")
        title = one["title"]
        found.append(
            _printed_row(f"a round, serial ÷ a bare loop ({title})", one["overhead_serial"], serial)
        )
        found.append(
            _printed_row(
                f"a round, serial ÷ two workers ({title})", one["speedup_two_workers"], speedup
            )
        )
        if "two_bare_over_two_workers" in one:  # not in documents of earlier versions
            bare = one["two_bare_over_two_workers"]
            found.append(
                _printed_row(
                    f"a round, two bare processes ÷ two workers ({title})", bare, "at least 0.97"
                )
            )
    return found


def _training_step_rows(part: Mapping[str, Any]) -> list[Row]:
    found = []
    for one in _parts_by_name(part).values():
        title = one["title"]
        found.append(
            _printed_row(f"a step as examples write it ÷ ours ({title})", one["plain_over_ours"])
        )
        found.append(
            _printed_row(f"augmenting a batch ÷ a step ({title})", one["augment_over_step"])
        )
        found.append(
            _printed_row(
                f"reading a batch from the cache ÷ a step ({title})", one["read_over_step"]
            )
        )
    return found


def _short_study_rows(part: Mapping[str, Any]) -> list[Row]:
    what = f"a study with two workers, two scripts ÷ the study ({part['title']})"
    return [_printed_row(what, part["two_scripts_over_study"], "at least 0.97")]


def _server_step_rows(part: Mapping[str, Any]) -> list[Row]:
    floor, title = part["over_floor"], part["title"]
    return [
        _printed_row(
            f"server, FedAvg with gate and ledger ÷ reading once ({title})",
            floor["fedavg"],
            "at most 2.0",
        ),
        _printed_row(
            "server, FedDRAW with gate and ledger ÷ reading once", floor["feddraw"], "at most 2.2"
        ),
        _printed_row("server, the sum ÷ reading once", floor["sum"]),
        _printed_row(
            "server, Flower's FedAvg ÷ our sum", part.get("flower_sum_over_ours"), "at least 8"
        ),
        _printed_row("server, a loop over state dicts ÷ our sum", part["naive_sum_over_ours"]),
    ]


def _server_memory_rows(part: Mapping[str, Any]) -> list[Row]:
    found: list[Row] = []
    for engine, one in _parts_by_name(part).items():
        peaks = ", ".join(f"{peak['megabytes']:.0f}" for peak in one["clients"].values())
        counts = ", ".join(f"{int(clients):,}" for clients in one["clients"])
        what = (
            f"server's peak memory, streaming ({engine}), for {counts} clients: {peaks} MB; the"
            " last ÷ the first"
        )
        found.append((what, f"{one['most_over_fewest']:.3f}", "", "at most 1.1"))
    return found


def _preparation_rows(part: Mapping[str, Any]) -> list[Row]:
    speed = part["images_per_second"]
    return [
        (f"{part['title']}, one worker", f"{speed['one']:.0f} images/s", "", ""),
        _printed_row(
            f"{part['title']}, one worker ÷ two", part["speedup_two_workers"], "at least 1.7"
        ),
    ]


def _paper_step_rows(part: Mapping[str, Any]) -> list[Row]:
    if "missing" in part:
        return [("the paper's step", "not here", part["missing"], "")]
    speeds = part["images_per_second"].items()
    return [_printed_row(f"{part['title']}, {name}, images/s", speed) for name, speed in speeds]


def _secure_rows(part: Mapping[str, Any]) -> list[Row]:
    if "masking" not in part:
        return [("secure sums", "not here", part["missing"], "")]
    masking, memory, title = part["masking"], part["memory"], part["title"]
    peaks = ", ".join(f"{one['megabytes']:.0f}" for one in memory.values())
    most, fewest = (
        memory[clients]["megabytes"] for clients in (max(memory, key=int), min(memory, key=int))
    )
    what = (
        f"server's peak memory, secure sums of {' and '.join(memory)} clients: {peaks} MB; the last"
        " ÷ the first"
    )
    speed = masking["million_words_per_second"]
    found = [
        _printed_row(
            f"a client's masks ÷ bare key streams, added ({title})",
            masking["masks_over_bare"],
            "at most 1.5",
        ),
        _printed_row(
            "the same with fixed point ÷ bare", masking["words_and_masks_over_bare"], "at most 1.5"
        ),
        _printed_row(
            "the same with fixed point and the seal ÷ bare", masking["with_seal_over_bare"]
        ),
        _printed_row("million words per second and mask, one core", speed, "at least 200"),
        (what, f"{most / fewest:.3f}", "", "at most 1.1"),
    ]
    return [*found, *_secure_round_rows(part)]


def _secure_round_rows(part: Mapping[str, Any]) -> list[Row]:
    here, link = part.get("in_process"), part.get("superlink", {})
    if here is None:
        return [("a secure round over Flower", "not here", part["missing"], "")]
    seconds = here["seconds"]
    what = "round without training, in-process grid, s"
    found = [_printed_row(f"a {way} {what}", seconds[way]) for way in ("plain", "secure")]
    found.append(
        _printed_row("a secure round ÷ a plain one, in-process grid", here["secure_over_plain"])
    )
    found.append(_printed_row("the same in processor time", here["processor_over_plain"]))
    traffic = f"{here['bytes_over_plain']:.3f}"
    found.append(("bytes up and down of a secure round ÷ a plain one", traffic, "", "at most 2"))
    if "missing" in link:
        found.append(("a secure round over a SuperLink", "not here", link["missing"], ""))
    elif link:
        both = ", ".join(f"{way} {taken:.0f} s" for way, taken in link["seconds"].items())
        found.append(
            (
                f"a secure round ÷ a plain one, SuperLink ({both})",
                f"{link['secure_over_plain']:.1f}",
                "",
                "",
            )
        )
    return found


def _rival_rows(part: Mapping[str, Any]) -> list[Row]:
    if "missing" in part:
        return [(f"{part['title']} ÷ ours", "not here", part["missing"], "")]
    own = "serial" if part["cores"] == 1 else "two workers"
    title = f"{part['title']} {part['version']} ÷ ours, {own}"
    found = [
        _printed_row(f"{title}: {key}", one, "more than 1")
        for key, one in part["theirs_over_ours"].items()
    ]
    return [*found, *((f"{title}: {key}", "–", why, "") for key, why in part["left_out"].items())]


ROWS_OF_PART: Mapping[str, Callable[[Mapping[str, Any]], list[Row]]] = {
    "rounds": _round_rows,
    "steps": _training_step_rows,
    "study": _short_study_rows,
    "server": _server_step_rows,
    "memory": _server_memory_rows,
    "preparation": _preparation_rows,
    "paper": _paper_step_rows,
    "secure": _secure_rows,
}


def bench_markdown(found: Mapping[str, Any]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in printed_rows(found["parts"])]
    return "\n".join(["| what | median | 95 % interval | bar |", "|---|---|---|---|", *rows]) + "\n"
