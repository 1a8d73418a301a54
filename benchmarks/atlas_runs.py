"""What all stages of the atlas share: runs of a table, paired differences with intervals, verdicts
and cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from feddraw.analysis.statistics import holm
from feddraw.system.file_reading import read_csv

Floats = NDArray[np.float64]
Found = tuple[float, float, float, float]  # mean, 95 % interval, p
Table = Mapping[tuple[str, str], Mapping[str, float]]  # by regime and rule, then by replicate
Name = TypeVar("Name", bound=Hashable)

DOCS = Path(__file__).parents[1] / "docs"
DATA = DOCS / "data"

MARGIN = 0.02
REPLICATES, FOLDS = 6, 5
SIZES = {"C1": 95, "C2": 95, "C3": 95, "C4": 500}  # of the regimes whose sites see other images
CHANCE = 0.5  # the AUC of a run that diverged and has none


@dataclass(frozen=True)
class Run:
    """A line of a study's table."""

    regime: str
    rule: str
    seed: str
    curve: tuple[float, ...]
    tail: float
    sites: Mapping[str, tuple[float, ...]]  # curves of the sites with other images
    validation: float = math.nan  # AUC after the last round
    partition: str = ""  # a digest of the split

    @property
    def late(self) -> float:
        return float(np.mean(self.curve[-5:]))

    @property
    def early(self) -> float:
        return float(np.mean(self.curve[:5]))

    @property
    def last_quarter(self) -> float:
        return float(np.mean(self.curve[-(len(self.curve) // 4) :]))

    def by_site(self) -> dict[str, float]:
        """The late AUC at every site."""
        return {site: float(np.mean(self.sites.get(site, self.curve)[-5:])) for site in SIZES}


def load(path: Path) -> list[Run]:
    """All runs of a table; none where there is no table yet."""
    return [_run(row) for row in read_csv(path)] if path.is_file() else []


def _run(row: Mapping[str, str]) -> Run:
    sites = {}
    for words in filter(None, (row.get("auc_by_site_by_round") or "").split("; ")):
        site, *curve = words.split()
        sites[site] = tuple(map(float, curve))
    last = float(row["auc"] or CHANCE)
    return Run(
        row["scenario"],
        row["method"].rpartition(":")[2],  # of a method of one's own, its function
        row["seed"],
        tuple(map(float, row["auc_by_round"].split())) or (last,),
        float(row.get("auc_of_tail") or "nan"),
        sites,
        float(row["validation_auc"] or CHANCE),
        row["partition"],
    )


def values(
    runs: Sequence[Run], regimes: Sequence[str], rules: Sequence[str], value: Callable[[Run], float]
) -> dict[tuple[str, str], dict[str, float]]:
    """By regime and rule, the value of each replicate that all these rules have in that regime."""
    found = {(run.regime, run.rule, run.seed): value(run) for run in runs}
    table = {}
    for regime in regimes:
        there = [
            {seed for place, name, seed in found if (place, name) == (regime, rule)}
            for rule in rules
        ]
        shared = sorted(set.intersection(*there))
        table |= {
            (regime, rule): {seed: found[regime, rule, seed] for seed in shared} for rule in rules
        }
    return table


def complete(table: Table, replicates: int) -> bool:
    return bool(table) and all(len(cell) >= replicates for cell in table.values())


def paired(table: Table, regime: str, first: str, second: str) -> Floats:
    """First minus second, one number per replicate."""
    return np.array(
        [one - table[regime, second][seed] for seed, one in table[regime, first].items()]
    )


def paired_over(table: Table, regimes: Sequence[str], first: str, second: str) -> Floats:
    """First minus second, mean over regimes, one number per replicate that all of them have."""
    shared = sorted(set.intersection(*(set(table[regime, first]) for regime in regimes)))
    gaps = [
        [table[regime, first][seed] - table[regime, second][seed] for seed in shared]
        for regime in regimes
    ]
    return np.asarray(np.mean(gaps, axis=0))


def best_elsewhere(judged: Floats) -> NDArray[np.intp]:
    """(options, replicates): for each replicate, the option that is best on the mean of the
    others.
    """
    return np.asarray((judged.sum(axis=1, keepdims=True) - judged).argmax(axis=0))


def student(differences: Floats, overlap: float = 0.0) -> Found:
    """Mean, 95 % interval and two-sided p; `overlap` is Nadeau and Bengio's."""
    count = len(differences)
    mean = float(np.mean(differences)) if count else math.nan
    if count < 2:
        return mean, -math.inf, math.inf, math.nan
    error = float(np.std(differences, ddof=1)) * math.sqrt(1 / count + overlap)
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return mean, mean - reach, mean + reach, p


def with_holm(found: Mapping[Name, Found]) -> dict[Name, Found]:
    """The same with Holm's p over all that have one."""
    tested = [name for name, one in found.items() if not math.isnan(one[3])]
    corrected = dict(zip(tested, holm([found[name][3] for name in tested]).tolist(), strict=True))
    return {name: (*one[:3], corrected.get(name, math.nan)) for name, one in found.items()}


def decided(one: Found) -> bool:
    return one[3] < 0.05


def within(one: Found, limit: float) -> bool:
    return -limit < one[1] and one[2] < limit


# ---------------------------------------------------------------------------------- verdicts, words

HELD, FAILED, OPEN = "held", "failed", "not decided"


@dataclass(frozen=True)
class Verdict:
    name: str
    outcome: str
    words: str


def waiting(name: str, runs: Sequence[Run]) -> Verdict:
    return Verdict(name, OPEN, "the runs are not complete" if runs else "not run")


def signed(value: float) -> str:
    return "—" if not math.isfinite(value) else f"{value:+.3f}".replace("-", "−")


def plain(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def text(one: Sequence[float]) -> str:
    return f"{signed(one[0])} [{signed(one[1])}, {signed(one[2])}]"


def p_text(p: float) -> str:
    return "—" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def cell(one: Found | None) -> str:
    """In bold what is decided."""
    return "—" if one is None else f"**{text(one)}**" if decided(one) else text(one)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
