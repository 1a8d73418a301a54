"""The parts of the bench and the one document that they make, as JSON and as a table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from feddraw.bench import growth, image_preparation, paper_step, peers, rounds, server_memory, server_step, short_runs
from feddraw.bench.ratios import Session
from feddraw.errors import UserError, unknown
from feddraw.results.environment import environment
from feddraw.system.file_writing import make_folder, write_whole

Part = Callable[[Session], dict[str, Any]]
Line = tuple[str, str, str, str]  # what, the figure, its interval, the bar


def _measure_secure(session: Session) -> dict[str, Any]:
    """cryptography is an extra."""
    try:
        from feddraw.bench import secure_costs
    except (ImportError, UserError) as error:
        return {"missing": str(error)}
    return secure_costs.measure(session)


PARTS: Mapping[str, Part] = {
    "rounds": rounds.measure,
    "steps": rounds.measure_steps,
    "study": short_runs.measure,
    "server": server_step.measure,
    "memory": server_memory.measure,
    "preparation": image_preparation.measure,
    "growth": growth.measure,
    "paper": paper_step.measure,
    "secure": _measure_secure,
    **{name: partial(peers.measure, name=name) for name in peers.RIVALS},
}
SLOW = {"growth", "paper"}  # left out of a quick run
FILE = "bench.json"


def chosen(only: Sequence[str], quick: bool = False) -> list[str]:
    """The parts that are named, in our order; `rivals` are all of them."""
    for name in only:
        if name not in PARTS and name != "rivals":
            raise unknown("parts of the bench", name, [*PARTS, "rivals"])
    wanted = {*only, *(peers.RIVALS if "rivals" in only else ())}
    usual = {name for name in PARTS if not (quick and name in SLOW)}
    return [name for name in PARTS if name in (wanted or usual)]


def measure(session: Session, names: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """The document of some parts, written as it grows; with a folder, beside those that were measured before."""
    parts = read(folder) if folder else {}
    torch.set_num_threads(1)
    for name in names:
        load, start = os.getloadavg()[0], time.perf_counter()
        found = PARTS[name](session)
        about = {"blocks": session.blocks, "load_at_start": round(load, 2)}
        parts[name] = about | {"seconds": round(time.perf_counter() - start, 1)} | found
        if folder:
            write(document(parts), folder)
    return document(parts)


def document(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of first interest, machine and versions, and every part by its name."""
    small = parts.get("rounds", {}).get("small", {})
    flower = parts.get("flower", {}).get("theirs_over_ours", {})
    floor = parts.get("server", {}).get("over_floor", {})
    bytes_here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": environment() | {"memory_gb": round(bytes_here / 2**30, 1)},
        "overhead_serial": small.get("overhead_serial"),
        "speedup_two_workers": small.get("speedup_two_workers"),
        "server_over_floor": {name: floor.get(name) for name in ("fedavg", "feddraw")},
        "flower_over_ours": next(iter(flower.values()), None),
        "missing": {name: parts[name]["missing"] for name in peers.RIVALS if "missing" in parts.get(name, {})},
        "parts": {name: parts[name] for name in PARTS if name in parts},
    }


# ---------------------------------------------------------------------------------------------------- files


def read(folder: Path) -> dict[str, Any]:
    """The parts that a folder has from an earlier call."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a document of feddraw bench: remove it, or choose another --out") from None
    return dict(parts)


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """bench.json, bench.md and the figure."""
    make_folder(folder)
    write_whole(folder / FILE, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(folder / "bench.md", markdown(found).encode())
    part = found["parts"].get("growth", {})
    drawn = {name: part[name] for name in growth.GROWING if name in part}
    return [folder / FILE, folder / "bench.md", *(growth.draw(drawn, folder) if drawn else [])]


def markdown(found: Mapping[str, Any]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines(found["parts"])]
    return "\n".join(["| what | median | 95 % interval | bar |", "|---|---|---|---|", *rows]) + "\n"


# ---------------------------------------------------------------------------------------------------- the table


def lines(parts: Mapping[str, Any]) -> list[Line]:
    """A line for every figure, also for those that could not be had."""
    found: list[Line] = []
    for name, part in parts.items():
        found += LINES[name](part) if name in LINES else []
        if name in peers.RIVALS:
            found += _rival(part)
    return found


def _line(what: str, found: Mapping[str, float] | None, bar: str = "") -> Line:
    if found is None:
        return what, "–", "", bar
    return what, f"{found['median']:.3g}", f"{found['low']:.3g} to {found['high']:.3g}", bar


def _workloads(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in part.items() if isinstance(one, Mapping)}


def _rounds(part: Mapping[str, Any]) -> list[Line]:
    found = []
    for name, one in _workloads(part).items():
        serial, speedup = ("at most 1.03", "at least 1.85") if name == "small" else ("", "")
        title = one["title"]
        found.append(_line(f"a round, serial ÷ a bare loop ({title})", one["overhead_serial"], serial))
        found.append(_line(f"a round, serial ÷ two workers ({title})", one["speedup_two_workers"], speedup))
        if "two_bare_over_two_workers" in one:  # not in documents of earlier versions
            bare = one["two_bare_over_two_workers"]
            found.append(_line(f"a round, two bare processes ÷ two workers ({title})", bare, "at least 0.97"))
    return found


def _steps(part: Mapping[str, Any]) -> list[Line]:
    found = []
    for one in _workloads(part).values():
        title = one["title"]
        found.append(_line(f"a step as examples write it ÷ ours ({title})", one["plain_over_ours"]))
        found.append(_line(f"augmenting a batch ÷ a step ({title})", one["augment_over_step"]))
        found.append(_line(f"reading a batch from the cache ÷ a step ({title})", one["read_over_step"]))
    return found


def _study(part: Mapping[str, Any]) -> list[Line]:
    what = f"a study with two workers, two scripts ÷ the study ({part['title']})"
    return [_line(what, part["two_scripts_over_study"], "at least 0.97")]


def _server(part: Mapping[str, Any]) -> list[Line]:
    floor, title = part["over_floor"], part["title"]
    return [
        _line(f"server, FedAvg with gate and ledger ÷ reading once ({title})", floor["fedavg"], "at most 2.0"),
        _line("server, FedDRAW with gate and ledger ÷ reading once", floor["feddraw"], "at most 2.2"),
        _line("server, the sum ÷ reading once", floor["sum"]),
        _line("server, Flower's FedAvg ÷ our sum", part.get("flower_sum_over_ours"), "at least 8"),
        _line("server, a loop over state dicts ÷ our sum", part["naive_sum_over_ours"]),
    ]


def _memory_lines(part: Mapping[str, Any]) -> list[Line]:
    found: list[Line] = []
    for engine, one in _workloads(part).items():
        peaks = ", ".join(f"{peak['megabytes']:.0f}" for peak in one["clients"].values())
        counts = ", ".join(f"{int(clients):,}" for clients in one["clients"])
        what = f"server's peak memory, streaming ({engine}), for {counts} clients: {peaks} MB; the last ÷ the first"
        found.append((what, f"{one['most_over_fewest']:.3f}", "", "at most 1.1"))
    return found


def _preparation(part: Mapping[str, Any]) -> list[Line]:
    speed = part["images_per_second"]
    return [
        (f"{part['title']}, one worker", f"{speed['one']:.0f} images/s", "", ""),
        _line(f"{part['title']}, one worker ÷ two", part["speedup_two_workers"], "at least 1.7"),
    ]


def _paper(part: Mapping[str, Any]) -> list[Line]:
    if "missing" in part:
        return [("the paper's step", "not here", part["missing"], "")]
    speeds = part["images_per_second"].items()
    return [_line(f"{part['title']}, {name}, images/s", speed) for name, speed in speeds]


def _secure(part: Mapping[str, Any]) -> list[Line]:
    if "masking" not in part:
        return [("secure sums", "not here", part["missing"], "")]
    masking, memory, title = part["masking"], part["memory"], part["title"]
    peaks = ", ".join(f"{one['megabytes']:.0f}" for one in memory.values())
    most, fewest = (memory[clients]["megabytes"] for clients in (max(memory, key=int), min(memory, key=int)))
    what = f"server's peak memory, secure sums of {' and '.join(memory)} clients: {peaks} MB; the last ÷ the first"
    speed = masking["million_words_per_second"]
    found = [
        _line(f"a client's masks ÷ bare key streams, added ({title})", masking["masks_over_bare"], "at most 1.5"),
        _line("the same with fixed point ÷ bare", masking["words_and_masks_over_bare"], "at most 1.5"),
        _line("the same with fixed point and the seal ÷ bare", masking["with_seal_over_bare"]),
        _line("million words per second and mask, one core", speed, "at least 200"),
        (what, f"{most / fewest:.3f}", "", "at most 1.1"),
    ]
    return [*found, *_secure_rounds(part)]


def _secure_rounds(part: Mapping[str, Any]) -> list[Line]:
    here, link = part.get("in_process"), part.get("superlink", {})
    if here is None:
        return [("a secure round over Flower", "not here", part["missing"], "")]
    seconds = here["seconds"]
    found = [_line(f"a {way} round without training, in-process grid, s", seconds[way]) for way in ("plain", "secure")]
    found.append(_line("a secure round ÷ a plain one, in-process grid", here["secure_over_plain"]))
    found.append(_line("the same in processor time", here["processor_over_plain"]))
    found.append(
        ("bytes up and down of a secure round ÷ a plain one", f"{here['bytes_over_plain']:.3f}", "", "at most 2")
    )
    if "missing" in link:
        found.append(("a secure round over a SuperLink", "not here", link["missing"], ""))
    elif link:
        both = ", ".join(f"{way} {taken:.0f} s" for way, taken in link["seconds"].items())
        found.append((f"a secure round ÷ a plain one, SuperLink ({both})", f"{link['secure_over_plain']:.1f}", "", ""))
    return found


def _rival(part: Mapping[str, Any]) -> list[Line]:
    if "missing" in part:
        return [(f"{part['title']} ÷ ours", "not here", part["missing"], "")]
    own = "serial" if part["cores"] == 1 else "two workers"
    title = f"{part['title']} {part['version']} ÷ ours, {own}"
    found = [_line(f"{title}: {key}", one, "more than 1") for key, one in part["theirs_over_ours"].items()]
    return [*found, *((f"{title}: {key}", "–", why, "") for key, why in part["left_out"].items())]


LINES: Mapping[str, Callable[[Mapping[str, Any]], list[Line]]] = {
    "rounds": _rounds,
    "steps": _steps,
    "study": _study,
    "server": _server,
    "memory": _memory_lines,
    "preparation": _preparation,
    "paper": _paper,
    "secure": _secure,
}
