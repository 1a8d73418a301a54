"""The parts that `python -m benchmarks` measures, and the document that they make: bench.json."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import growth, rivals, training_step
from benchmarks.speed.frozen_part import measure_frozen_part
from benchmarks.speed.frozen_travel import measure_frozen_travel
from benchmarks.speed.image_preparation import measure_image_preparation
from benchmarks.speed.printed_table import bench_markdown
from benchmarks.speed.round_overhead import measure_round_overhead
from benchmarks.speed.server_memory import measure_server_memory
from benchmarks.speed.server_step import measure_server_step
from benchmarks.speed.short_runs import measure_short_runs
from benchmarks.speed.timing import TimingSession
from feddraw.errors import UserError, unknown
from feddraw.results.environment import environment
from feddraw.system.file_writing import make_folder, write_whole

MeasuredPart = Callable[[TimingSession], dict[str, Any]]


def _measure_secure_if_installed(session: TimingSession) -> dict[str, Any]:
    """cryptography is an extra."""
    try:
        from benchmarks.speed import secure_costs
    except (ImportError, UserError) as error:
        return {"missing": str(error)}
    return secure_costs.measure_secure_costs(session)


PARTS: Mapping[str, MeasuredPart] = {
    "rounds": measure_round_overhead,
    "steps": training_step.measure_training_steps,
    "study": measure_short_runs,
    "server": measure_server_step,
    "memory": measure_server_memory,
    "preparation": measure_image_preparation,
    "frozen": measure_frozen_part,
    "growth": growth.measure_growth,
    "paper": training_step.measure_paper_step,
    "secure": _measure_secure_if_installed,
    "travel": measure_frozen_travel,
    **{name: partial(rivals.measure_rival, name=name) for name in rivals.RIVALS},
}
SLOW_PARTS = {"frozen", "growth", "paper"}  # left out of a quick run
BENCH_FILE = "bench.json"


def chosen_parts(only: Sequence[str], quick: bool = False) -> list[str]:
    """The parts that are named, in our order; `rivals` are all of them."""
    for name in only:
        if name not in PARTS and name != "rivals":
            raise unknown("parts of the bench", name, [*PARTS, "rivals"])
    wanted = {*only, *(rivals.RIVALS if "rivals" in only else ())}
    usual = {name for name in PARTS if not (quick and name in SLOW_PARTS)}
    return [name for name in PARTS if name in (wanted or usual)]


def measure_parts(
    session: TimingSession, names: Sequence[str], folder: Path | None = None
) -> dict[str, Any]:
    """The document of some parts, written as it grows; with a folder, beside those that were
    measured before.
    """
    parts = read_measured_parts(folder) if folder else {}
    torch.set_num_threads(1)
    for name in names:
        load = os.getloadavg()[0]
        start = time.perf_counter()
        figures = PARTS[name](session)
        conditions = {
            "blocks": session.blocks,
            "load_at_start": round(load, 2),
            "seconds": round(time.perf_counter() - start, 1),
        }
        parts[name] = conditions | figures
        if folder:
            write_bench_files(bench_document(parts), folder)
    return bench_document(parts)


def bench_document(parts: Mapping[str, Any]) -> dict[str, Any]:
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
        "missing": {
            name: parts[name]["missing"]
            for name in rivals.RIVALS
            if "missing" in parts.get(name, {})
        },
        "parts": {name: parts[name] for name in PARTS if name in parts},
    }


def read_measured_parts(folder: Path) -> dict[str, Any]:
    """The parts that a folder has from an earlier call."""
    path = folder / BENCH_FILE
    if not path.is_file():
        return {}
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is not a document of this bench: remove it, or choose another --out"
        ) from None
    return dict(parts)


def write_bench_files(measured: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write bench.json, bench.md and the figure of what was seen to grow; returns their paths."""
    make_folder(folder)
    text = json.dumps(measured, indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / BENCH_FILE, text.encode())
    write_whole(folder / "bench.md", bench_markdown(measured).encode())
    written = [folder / BENCH_FILE, folder / "bench.md"]
    part = measured["parts"].get("growth", {})
    drawn = {name: part[name] for name in growth.GROWING if name in part}
    if drawn:
        written += growth.draw_growth(drawn, folder)
    return written
