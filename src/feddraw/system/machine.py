"""What this machine has, and what of it this process may use or has used: processor cores, memory
and packages.
"""

from __future__ import annotations

import math
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def machine_memory() -> tuple[int, int]:
    """Bytes of this machine, in all and free; of its share of the machine if a job scheduler or
    container set one.
    """
    lines = (
        Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").is_file() else []
    )
    sizes = {
        line.partition(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")
    }
    total = sizes.get("MemTotal", 0) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = sizes.get("MemAvailable", total)
    limit, used = (
        _cgroup_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current")
    )
    if limit is not None and limit < total:
        total = limit
        free = min(free, limit - (used or 0))
    return total, max(0, free)


def _cgroup_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int:
    """Bytes that this process has held at its most."""
    status = Path("/proc/self/status")
    if status.is_file():  # a child's ru_maxrss begins at what its parent held
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource  # Windows has none

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def free_memory() -> float:
    """Bytes of this machine that new processes may take."""
    return float(machine_memory()[1]) or math.inf


def installed(package: str) -> bool:
    """Whether a package can be imported from anywhere but the current folder, which may be a
    stranger's.
    """
    here = Path.cwd()
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != here]
    return any(
        finder.find_spec(package, elsewhere if finder is PathFinder else None)
        for finder in sys.meta_path
    )
