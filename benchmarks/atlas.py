"""When does it pay to weigh? Everything that docs/atlas.md says in numbers, from the tables in
docs/data.

The registrations (studies/atlas.md, atlas-2.md, atlas-3.md, atlas-4.md) say what is tested and how;
what judges the later stages is in atlas_later_stages.py. An unfinished table can be analysed too:
what needs runs that are not there is "not decided".

    python benchmarks/atlas.py collect RUNS…
        from the run folders: what was measured, and intervals over patients
    python benchmarks/atlas.py
        tables, figures, and the tables inside docs/atlas.md and which-weights.md
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import atlas_later_stages
from atlas_runs import (
    DATA,
    DOCS,
    FAILED,
    FOLDS,
    HELD,
    MARGIN,
    OPEN,
    REPLICATES,
    SIZES,
    Floats,
    Found,
    Run,
    Verdict,
    best_elsewhere,
    cell,
    complete,
    decided,
    load,
    markdown,
    p_text,
    paired,
    plain,
    student,
    text,
    values,
    with_holm,
)
from feddraw.analysis.bootstrap import bootstrap, interval
from feddraw.analysis.paired_differences import Difference, against
from feddraw.analysis.palette import MUTED, SERIES
from feddraw.analysis.plots import figure_style, line_look, save_figure
from feddraw.analysis.statistics import holm
from feddraw.results.recorded_run import read_run
from feddraw.system.file_reading import read_csv, read_toml

IMAGES = DOCS / "images"
PHANTOM, NIH = DATA / "atlas-phantom.csv", DATA / "atlas-nih.csv"
MEASURED, PATIENTS = DATA / "atlas-measured.csv", DATA / "atlas-patients.csv"
DIFFERENCES = DATA / "atlas-differences.csv"

CONSTANT = "feddraw_variant,signal=constant"
RULES = ("fedavg", "uniform", "feddraw", CONSTANT, "afl", "random_effects")
REGIMES = (
    "alike",
    "enriched",
    "dirichlet",
    "labels, large",
    "labels, small",
    "blur, large",
    "blur, small",
    "scanner",
    "many",
)
NIH_REGIMES, NIH_RULES = (
    ("alike", "enriched", "blur, large"),
    ("fedavg", "uniform", "feddraw", "random_effects"),
)
TRIED = ("alike", "enriched", "labels, large", "labels, small")  # with the candidates
CANDIDATES = ("effects_then_uniform", "move_effects", "power_by_validation", "size_until_slow")
POWERS = {"size_power,power=-0.5": -0.5, "uniform": 0.0, "size_power,power=0.5": 0.5, "fedavg": 1.0}
SEEN_OTHERWISE = ("blur, large", "blur, small", "scanner")  # sites' images differ
POWERED = ("alike", "enriched", "labels, large", "many")
WITHOUT = ("labels, large", "blur, large", "labels, small")
DRAWS, PATIENT_DRAWS = 2000, 200


TARGETS: dict[str, Callable[[Run], float]] = {
    "clean patients": lambda run: run.late,
    "last round": lambda run: run.curve[-1],
    "pooled patients": lambda run: float(
        np.average(list(run.by_site().values()), weights=list(SIZES.values()))
    ),
    "mean site": lambda run: float(np.mean(list(run.by_site().values()))),
    "worst site": lambda run: min(run.by_site().values()),
}


# --------------------------------------------------------------------------------------- collecting


def collect(folders: Sequence[Path]) -> None:
    """What the tables do not have: rho of the first rounds and the sites' mean size, and intervals
    over patients.
    """
    runs = sorted(path.parent for folder in folders for path in folder.glob("*/metrics.json"))
    _write(MEASURED, [_measured(run) for run in runs if "_random_effects_" in run.name])
    for kind in ("phantom", "nih"):
        own = [run for run in runs if _kind(run) == kind]
        if own:
            _write(PATIENTS.with_stem(f"atlas-patients-{kind}"), list(over_patients(own)))


def _kind(run: Path) -> str:
    return "phantom" if read_toml(run / "experiment.toml")["data"]["name"] == "phantom" else "nih"


def _measured(run: Path) -> dict[str, object]:
    regime, _, seed = _named(run)
    ledger = read_csv(run / "weights.csv")
    rho = [
        next(float(row["rho"]) for row in ledger if row["round"] == str(t) and row["rho"])
        for t in range(3)
    ]
    sizes = read_toml(run / "experiment.toml")["partition"]["sizes"].values()
    row: dict[str, object] = {
        "data": _kind(run),
        "regime": regime,
        "seed": seed,
        "mean_size": np.mean(list(sizes)),
    }
    return row | {f"rho_{t}": f"{value:.6g}" for t, value in enumerate(rho)}


def _named(run: Path) -> tuple[str, str, str]:
    """Regime, rule and seed, from the name of a run's folder."""
    found = re.fullmatch(r"(?P<regime>[^_]+)_(?P<rule>.+)_seed=(?P<seed>\d+)", run.name)
    assert found is not None, run
    return found["regime"].replace("-", " ").replace("  ", " "), found["rule"], found["seed"]


def over_patients(runs: Sequence[Path]) -> Iterator[dict[str, object]]:
    """Each rule minus uniform averaging in the last round, replicates averaged, patients drawn
    anew.
    """
    by_regime: dict[str, dict[str, dict[str, Path]]] = {}
    for run in runs:
        regime, rule, seed = _named(run)
        by_regime.setdefault(regime, {}).setdefault(rule, {})[seed] = run
    for regime, rules in by_regime.items():
        if "uniform" not in rules:
            continue
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in rules.values())))
        if not seeds:
            continue
        found = {
            rule: [read_run(by_seed[seed]).predictions() for seed in seeds]
            for rule, by_seed in rules.items()
        }
        first = found["uniform"]
        truth, folds = (
            np.concatenate([one.truth for one in first]),
            np.repeat(seeds, [len(one.truth) for one in first]),
        )
        known = [
            one.patients if one.patients is not None else np.arange(len(one.truth)) for one in first
        ]
        shift = (
            0 if first[0].patients is not None else 1_000_000
        )  # phantoms of two replicates are two patients
        patients = np.concatenate([own + place * shift for place, own in enumerate(known)])
        outputs = [np.concatenate([one.scores for one in of]) for of in found.values()]
        drawn = bootstrap(
            outputs,
            truth,
            np.random.default_rng(0),
            patients=patients,
            folds=folds,
            replicates=PATIENT_DRAWS,
        )
        uniform = drawn[list(found).index("uniform")]
        for rule, output, row in zip(found, outputs, drawn, strict=True):
            one = interval(row - uniform)
            digest = hashlib.sha256(np.ascontiguousarray(output, np.float32).tobytes()).hexdigest()[
                :16
            ]
            numbers = {"difference": one.estimate, "low": one.low, "high": one.high}
            about = {"regime": regime, "rule": rule, "replicates": len(seeds)}
            yield (
                about
                | {name: f"{value:.5f}" for name, value in numbers.items()}
                | {"scores_sha256": digest}
            )


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ------------------------------------------------------------------------------------------- regret


def regrets(runs: Sequence[Run], regimes: Sequence[str], rules: Sequence[str]) -> dict[str, Floats]:
    """By rule, (regimes, replicates): the better of FedAvg and uniform, chosen on the others, minus
    the rule.
    """
    table = values(
        runs, regimes, tuple(dict.fromkeys((*rules, "fedavg", "uniform"))), lambda run: run.late
    )
    count = min(len(cell) for cell in table.values())
    if count < 2:
        return {}
    cells = {place: np.array(list(cell.values())[:count]) for place, cell in table.items()}
    best = {
        regime: _chosen(np.stack([cells[regime, rule] for rule in ("fedavg", "uniform")]))
        for regime in regimes
    }
    return {
        rule: np.stack([best[regime] - cells[regime, rule] for regime in regimes]) for rule in rules
    }


def _chosen(options: Floats) -> Floats:
    """(options, replicates): per replicate the value of the option that is best on the mean of the
    others.
    """
    return np.asarray(options[best_elsewhere(options), np.arange(options.shape[1])])


def worst_regret(regret: Floats) -> tuple[float, float, int]:
    """The worst mean over regimes, its one-sided 95 % bound over replicates, and which regime it
    is.
    """
    means = regret.mean(axis=1)
    drawn = np.random.default_rng(0).integers(regret.shape[1], size=(DRAWS, regret.shape[1]))
    bound = np.quantile(regret[:, drawn].mean(axis=2).max(axis=0), 0.95)
    return float(means.max()), float(bound), int(means.argmax())


# --------------------------------------------------------------------------------------- hypotheses


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known: the runs, and what was measured in the first rounds."""

    phantom: Sequence[Run]
    nih: Sequence[Run]
    measured: Sequence[Mapping[str, str]]
    later: Mapping[str, Sequence[Run]] = field(
        default_factory=dict
    )  # of the second and third stage, by study

    def gaps(self, data: str = "phantom") -> dict[str, Found]:
        """Uniform minus FedAvg by regime: mean, interval, Holm's p."""
        runs, regimes, overlap = (
            (self.phantom, REGIMES, 0.0)
            if data == "phantom"
            else (self.nih, NIH_REGIMES, 1 / (FOLDS - 1))
        )
        table = values(runs, regimes, ("fedavg", "uniform"), lambda run: run.late)
        return with_holm(
            {
                regime: student(paired(table, regime, "uniform", "fedavg"), overlap)
                for regime in regimes
            }
        )

    def predictions(self, data: str = "phantom") -> dict[str, float]:
        """rho times the mean size of a site, by regime."""
        found: dict[str, list[float]] = {}
        for row in self.measured:
            if row["data"] == data:
                rho = np.mean([float(row[f"rho_{t}"]) for t in range(3)])
                found.setdefault(row["regime"], []).append(float(rho) * float(row["mean_size"]))
        return {regime: float(np.mean(of)) for regime, of in found.items()}

    @property
    def main_complete(self) -> bool:
        return complete(values(self.phantom, REGIMES, RULES, lambda run: run.late), REPLICATES)


def told_in_advance(known: Evidence) -> Verdict:
    gaps, scale = known.gaps(), known.predictions()
    sure = [regime for regime in REGIMES if decided(gaps[regime]) and regime in scale]
    right = [regime for regime in sure if (scale[regime] > 1) == (gaps[regime][0] > 0)]
    wrong = [regime for regime in sure if regime not in right]
    said = f"right in {len(right)} of {len(sure)} decided regimes" + (
        f", wrong in {', '.join(wrong)}" if wrong else ""
    )
    signs = {scale[regime] > 1 for regime in sure} | {gaps[regime][0] > 0 for regime in sure}
    if wrong:
        return Verdict("H1, told in advance by ρ n̄ > 1", FAILED, said)
    outcome = HELD if len(sure) >= 3 and len(signs) == 2 else OPEN
    return Verdict("H1, told in advance by ρ n̄ > 1", outcome, said)


def nothing_lost(known: Evidence) -> Verdict:
    gap = known.gaps()["alike"]
    outcome = HELD if gap[1] > -MARGIN else FAILED if gap[2] < 0 else OPEN
    return Verdict(
        "H2, nothing is lost by equal weights where sites are alike", outcome, f"D = {text(gap)}"
    )


def speed(known: Evidence) -> Verdict:
    table = values(known.phantom, ("alike",), ("fedavg", "uniform"), lambda run: run.early)
    one = student(paired(table, "alike", "fedavg", "uniform"))
    small = one[1] > -0.005 and one[2] < 0.005
    outcome = HELD if one[1] > 0 else FAILED if one[2] < 0 or small else OPEN
    return Verdict(
        "H3, size buys speed", outcome, f"FedAvg − uniform over rounds 1 to 5: {text(one)}"
    )


def bad_site(
    known: Evidence, name: str, regimes: Sequence[str], sign: int, data: str = "phantom"
) -> Verdict:
    gaps = known.gaps(data)
    words = "; ".join(f"{regime} {text(gaps[regime])}" for regime in regimes)
    held = [decided(gaps[regime]) and sign * gaps[regime][0] > 0 for regime in regimes]
    against_it = [decided(gaps[regime]) and sign * gaps[regime][0] < 0 for regime in regimes]
    ends = [gaps[regime][2] if sign > 0 else -gaps[regime][1] for regime in regimes]
    if all(held):
        return Verdict(name, HELD, f"D: {words}")
    return Verdict(
        name,
        FAILED if any(against_it) or any(end < MARGIN for end in ends) else OPEN,
        f"D: {words}",
    )


def without_regret(
    name: str,
    runs: Sequence[Run],
    regimes: Sequence[str],
    rules: Sequence[str],
    least: float = math.inf,
) -> Verdict:
    by_rule = regrets(runs, regimes, rules)
    if any(regret.shape[1] < REPLICATES for regret in by_rule.values()) or not by_rule:
        return Verdict(name, OPEN, "the runs are not complete")
    found = {rule: worst_regret(of) for rule, of in by_rule.items()}
    words = "; ".join(
        f"{shown(rule)} {plain(worst)} (bound {plain(bound)}, {regimes[place]})"
        for rule, (worst, bound, place) in sorted(found.items(), key=lambda item: item[1][0])
    )
    if any(bound < MARGIN and worst < least for worst, bound, _ in found.values()):
        return Verdict(name, HELD, words)
    return Verdict(
        name, FAILED if all(worst > MARGIN for worst, *_ in found.values()) else OPEN, words
    )


def similarity_adds(known: Evidence) -> Verdict:
    table = values(known.phantom, REGIMES, ("feddraw", CONSTANT), lambda run: run.late)
    count = min(len(cell) for cell in table.values())
    rows = np.stack([paired(table, regime, "feddraw", CONSTANT)[:count] for regime in REGIMES])
    one = student(rows.mean(axis=0))
    outcome = OPEN
    if one[1] > -0.01 and one[2] < 0.01:
        outcome = HELD
    elif abs(one[0]) > 0.01 and (one[1] > 0 or one[2] < 0):
        outcome = FAILED
    return Verdict(
        "H7, similarity adds nothing",
        outcome,
        f"FedDRAW − FedDRAW with constant similarity: {text(one)}",
    )


def on_radiographs(known: Evidence) -> list[Verdict]:
    name = "H8, on real radiographs"
    if not complete(values(known.nih, NIH_REGIMES, NIH_RULES, lambda run: run.late), FOLDS):
        return [Verdict(name, OPEN, "the runs are not complete")]
    gap = known.gaps("nih")["alike"]
    outcome = HELD if gap[1] > -MARGIN else FAILED if gap[2] < 0 else OPEN
    level = Verdict(f"{name}: nothing is lost where sites are alike", outcome, f"D = {text(gap)}")
    return [
        level,
        bad_site(known, f"{name}: a worse large site", ("blur, large", "enriched"), 1, "nih"),
    ]


def powers(known: Evidence) -> Verdict:
    name = "H9, a power of size gains less than the margin"
    table = values(known.phantom, POWERED, tuple(POWERS), lambda run: run.late)
    if not complete(table, REPLICATES):
        return Verdict(name, OPEN, "the runs are not complete")
    gains = {}
    for regime in POWERED:
        every = np.stack([np.array(list(table[regime, rule].values())) for rule in POWERS])
        two = np.stack(
            [np.array(list(table[regime, rule].values())) for rule in ("fedavg", "uniform")]
        )
        gains[regime] = student(_chosen(every) - _chosen(two))
    words = "; ".join(f"{regime} {text(one)}" for regime, one in gains.items())
    if all(one[2] < MARGIN for one in gains.values()):
        return Verdict(name, HELD, words)
    return Verdict(name, FAILED if any(one[1] > MARGIN for one in gains.values()) else OPEN, words)


def left_alone(known: Evidence) -> Verdict:
    name = "H10, better without the bad site"
    found = {(run.regime, run.seed): run.late for run in known.phantom if run.rule == "uniform"}
    gains, counts = {}, {}
    for regime in WITHOUT:
        pairs = [
            (found[f"{regime}, without it", seed], late)
            for (place, seed), late in found.items()
            if place == regime and (f"{regime}, without it", seed) in found
        ]
        gains[regime], counts[regime] = (
            student(np.array([one - other for one, other in pairs])),
            len(pairs),
        )
    if any(counts[regime] < REPLICATES for regime in WITHOUT):
        return Verdict(name, OPEN, "the runs are not complete")
    corrected = holm([one[3] for one in gains.values()])
    words = "; ".join(f"{regime} {text(one)}" for regime, one in gains.items())
    sure = [p < 0.05 and one[0] > 0 for p, one in zip(corrected, gains.values(), strict=True)]
    wrong = [p < 0.05 and one[0] < 0 for p, one in zip(corrected, gains.values(), strict=True)]
    return Verdict(
        name, HELD if all(sure) else FAILED if any(wrong) else OPEN, f"without − with: {words}"
    )


def tail(known: Evidence) -> Verdict:
    name = "H12, tail averaging"
    table = values(known.phantom, REGIMES, RULES, lambda run: run.tail - run.late)
    count = min(len(cell) for cell in table.values())
    one = student(np.mean([list(cell.values())[:count] for cell in table.values()], axis=0))
    words = f"mean of five models − mean of their AUCs: {text(one)}"
    return Verdict(name, HELD if one[1] > 0 else FAILED if one[2] < 0 else OPEN, words)


def verdicts(known: Evidence) -> list[Verdict]:
    """Every registered hypothesis; what rests on the main table waits until it is complete."""
    candidates = "H11, a candidate without regret"
    tried = regrets(known.phantom, TRIED, (*CANDIDATES, "feddraw"))
    least = worst_regret(tried["feddraw"])[0] if tried else math.inf
    found = [
        told_in_advance(known),
        nothing_lost(known),
        speed(known),
        bad_site(known, "H4, a bad large site", ("enriched", "labels, large", "blur, large"), 1),
        bad_site(known, "H5, a bad small site", ("labels, small", "blur, small"), -1),
        without_regret("H6, a rule without regret", known.phantom, REGIMES, RULES),
        similarity_adds(known),
        *on_radiographs(known),
        powers(known),
        left_alone(known),
        without_regret(candidates, known.phantom, TRIED, CANDIDATES, least),
        tail(known),
        *atlas_later_stages.verdicts(known.later, known.phantom),
    ]
    if known.main_complete:
        return found
    early = ("H1,", "H2,", "H3,", "H4,", "H5,", "H6,", "H7,", "H12,")
    waits = "the main table is not complete"
    return [Verdict(one.name, OPEN, waits) if one.name.startswith(early) else one for one in found]


# ------------------------------------------------------------------------------------------- tables


def shown(rule: str) -> str:
    return {
        CONSTANT: "feddraw, constant",
        "size_power,power=-0.5": "n^−0.5",
        "size_power,power=0.5": "n^0.5",
    }.get(rule, rule)


def verdict_table(known: Evidence) -> str:
    return markdown(
        ("hypothesis", "outcome", "numbers"),
        [(v.name, f"**{v.outcome}**", v.words) for v in verdicts(known)],
    )


def gap_table(known: Evidence, data: str) -> str:
    """Uniform minus FedAvg, and what was measured before."""
    runs = known.phantom if data == "phantom" else known.nih
    scale = known.predictions(data)
    rows = []
    for regime, gap in known.gaps(data).items():
        mean = {
            rule: np.mean(
                [run.late for run in runs if (run.regime, run.rule) == (regime, rule)] or [math.nan]
            )
            for rule in ("fedavg", "uniform")
        }
        told = scale.get(regime, math.nan)
        ahead = "—" if math.isnan(told) else "uniform" if told > 1 else "FedAvg"
        rows.append(
            (
                regime,
                f"{mean['fedavg']:.3f}",
                f"{mean['uniform']:.3f}",
                cell(gap),
                p_text(gap[3]),
                f"{told:.2f}",
                ahead,
            )
        )
    return markdown(
        ("regime", "FedAvg", "uniform", "D = uniform − FedAvg", "Holm p", "ρ n̄", "so ahead"), rows
    )


def rule_table(
    runs: Sequence[Run], regimes: Sequence[str], rules: Sequence[str], folds: int = 0
) -> str:
    """Every other rule minus uniform averaging, Holm over the whole table."""
    rows = [
        (run.regime, run.rule, run.seed, run.late)
        for run in runs
        if run.regime in regimes and run.rule in rules
    ]
    found: dict[tuple[str, str], Difference] = {}
    if {"uniform"} < {rule for _, rule, *_ in rows}:
        found = {(one.scenario, one.method): one for one in against(rows, "uniform", folds=folds)}
    others = [rule for rule in rules if rule != "uniform"]
    lines = [
        [name, *(cell(_tested(found.get((regime, rule)))) for rule in others)]
        for name, regime in _places(regimes)
    ]
    return markdown(("regime", *map(shown, others)), lines)


def _places(regimes: Sequence[str]) -> list[tuple[str, str]]:
    """Names of rows, and of the differences they show; the last is the mean over all."""
    return [*((regime, regime) for regime in regimes), ("all", "")]


def _tested(one: Difference | None) -> Found | None:
    return None if one is None else (one.mean, one.low, one.high, one.holm_p)


def regret_table(runs: Sequence[Run], regimes: Sequence[str], rules: Sequence[str]) -> str:
    found = regrets(runs, regimes, rules)
    lines = []
    for rule, regret in sorted(found.items(), key=lambda item: worst_regret(item[1])[0]):
        worst, bound, _ = worst_regret(regret)
        lines.append(
            [shown(rule), *map(plain, regret.mean(axis=1)), f"**{plain(worst)}**", plain(bound)]
        )
    return markdown(("rule", *regimes, "worst", "95 % bound"), lines)


def target_table(runs: Sequence[Run]) -> str:
    """Uniform minus FedAvg for every target, in the regimes in which sites see other images."""
    lines = []
    for target, value in TARGETS.items():
        table = values(runs, REGIMES, ("fedavg", "uniform"), value)
        gaps = [
            text(student(paired(table, regime, "uniform", "fedavg"))) for regime in SEEN_OTHERWISE
        ]
        lines.append([target, *gaps])
    return markdown(("target", *SEEN_OTHERWISE), lines)


def patient_table(path: Path) -> str:
    """Rules minus uniform averaging in the last round, with intervals over patients."""
    rows = [row for row in (read_csv(path) if path.is_file() else []) if row["rule"] in RULES]
    rules = [
        rule for rule in RULES if rule != "uniform" and any(row["rule"] == rule for row in rows)
    ]
    cells = {
        (row["regime"], row["rule"]): [float(row[name]) for name in ("difference", "low", "high")]
        for row in rows
    }
    regimes = [regime for regime in REGIMES if any(place == regime for place, _ in cells)]
    lines = [[regime, *(text(cells[regime, rule]) for rule in rules)] for regime in regimes]
    return markdown(("regime", *map(shown, rules)), lines)


def written_differences(known: Evidence) -> list[dict[str, object]]:
    """Every difference to uniform averaging for every target, as docs/data has it."""
    found = []
    for data, runs, rules, overlap in (
        ("phantom", known.phantom, (*RULES, *CANDIDATES, *POWERS), 0.0),
        ("nih", known.nih, NIH_RULES, 1 / (FOLDS - 1)),
    ):
        for (target, value), regime, rule in product(
            TARGETS.items(), REGIMES, dict.fromkeys(rules)
        ):
            table = values(runs, (regime,), (rule, "uniform"), value)
            differences = paired(table, regime, rule, "uniform")
            if rule == "uniform" or not len(differences):
                continue
            if target not in ("clean patients", "last round") and not (
                data == "phantom" and regime in SEEN_OTHERWISE
            ):
                continue
            numbers = zip(("mean", "low", "high", "p"), student(differences, overlap), strict=True)
            row: dict[str, object] = {
                "data": data,
                "target": target,
                "regime": regime,
                "rule": shown(rule),
            }
            found.append(
                row | {"replicates": len(differences)} | {name: f"{n:.5f}" for name, n in numbers}
            )
    return found


# ------------------------------------------------------------------------------------------ figures


def gaps_figure(known: Evidence) -> Figure:
    """Uniform minus FedAvg by regime, with intervals; radiographs beside phantoms."""
    with figure_style():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for place, (data, shift) in enumerate((("phantom", 0.0), ("nih", 0.25))):
            for regime, gap in known.gaps(data).items():
                if math.isfinite(gap[1]):
                    row = REGIMES.index(regime) + shift
                    axes.plot(gap[1:3], [row, row], color=SERIES[place], linewidth=1.6)
                    axes.plot(gap[0], row, **line_look(place) | {"linestyle": ""}, markersize=5)
        axes.axvspan(-MARGIN, MARGIN, color="0.92", zorder=-1)
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yticks(range(len(REGIMES)), REGIMES, fontsize=8)
        axes.set_ylim(len(REGIMES) - 0.4, -0.6)
        axes.set_xlabel(
            "AUC, uniform averaging minus FedAvg (right: equal weights are better)", fontsize=8
        )
        for place, words in enumerate(("phantoms", "NIH sample")):
            axes.plot([], [], **line_look(place) | {"linestyle": ""}, label=words)
        axes.legend(fontsize=8, frameon=False)
    return figure


def curves_figure(known: Evidence) -> Figure:
    """The mean test AUC of every rule by round, a panel per regime."""
    with figure_style():
        figure = Figure(figsize=(8.4, 6.4), layout="constrained")
        grid = figure.subplots(3, 3, sharex=True)
        for axes, regime in zip(grid.ravel(), REGIMES, strict=True):
            for place, rule in enumerate(RULES):
                curves = [
                    run.curve for run in known.phantom if (run.regime, run.rule) == (regime, rule)
                ]
                if curves:
                    mean = np.mean(curves, axis=0)
                    style = line_look(place) | {"marker": ""}
                    axes.plot(
                        range(1, len(mean) + 1), mean, **style, linewidth=1.3, label=shown(rule)
                    )
            axes.set_title(regime, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.set_xticks([5, 10, 15])
        if known.phantom:
            grid[0, 0].legend(fontsize=6, frameon=False)
        figure.supxlabel("round", fontsize=8)
        figure.supylabel("test AUC, mean over replicates", fontsize=8)
    return figure


BESIDE = {
    "alike": (-5, 5),
    "blur, small": (5, 6),
    "scanner": (5, -9),
    "blur, large": (-5, -9),
}  # where names stand


def decision_figure(known: Evidence) -> Figure:
    """What is measured in the first rounds, and what equal weights gain at the end."""
    with figure_style():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        for place, data in enumerate(("phantom", "nih")):
            scale = known.predictions(data)
            for regime, gap in known.gaps(data).items():
                if regime in scale and math.isfinite(gap[1]):
                    x = max(scale[regime], 0.05)
                    axes.plot([x, x], gap[1:3], color=SERIES[place], linewidth=1.2)
                    axes.plot(x, gap[0], **line_look(place) | {"linestyle": ""}, markersize=5)
                    right, up = BESIDE.get(regime, (5, 3))
                    side = "left" if right > 0 else "right"
                    about = {
                        "textcoords": "offset points",
                        "fontsize": 7,
                        "color": MUTED,
                        "ha": side,
                    }
                    axes.annotate(regime, (x, gap[0]), (right, up), **about)
        axes.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.axhspan(-MARGIN, MARGIN, color="0.92", zorder=-1)
        axes.set_xscale("log")
        axes.set_xlim(0.04, 200)
        axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        for place, words in enumerate(("phantoms", "NIH sample")):
            axes.plot([], [], **line_look(place) | {"linestyle": ""}, label=words)
        axes.legend(fontsize=8, frameon=False, loc="upper left")
        axes.set_xlabel(
            "ρ n̄, measured in the first three rounds (above 1: weigh sites equally)", fontsize=8
        )
        axes.set_ylabel("AUC, uniform averaging minus FedAvg", fontsize=8)
    return figure


# -------------------------------------------------------------------------------------------- pages


def fragments(known: Evidence) -> dict[str, str]:
    """What stands between two marks of a page, by the name of the mark."""
    return {
        "verdicts": verdict_table(known),
        "gaps": gap_table(known, "phantom"),
        "gaps-nih": gap_table(known, "nih"),
        "rules": rule_table(known.phantom, REGIMES, RULES),
        "rules-nih": rule_table(known.nih, NIH_REGIMES, NIH_RULES, FOLDS),
        "regret": regret_table(known.phantom, REGIMES, RULES),
        "powers": rule_table(known.phantom, POWERED, tuple(POWERS)),
        "candidates": rule_table(
            known.phantom, TRIED, ("uniform", "fedavg", "feddraw", *CANDIDATES)
        ),
        "candidates-regret": regret_table(
            known.phantom, TRIED, (*CANDIDATES, "feddraw", "uniform", "fedavg")
        ),
        "targets": target_table(known.phantom),
        "patients": patient_table(DATA / "atlas-patients-phantom.csv"),
        "patients-nih": patient_table(DATA / "atlas-patients-nih.csv"),
        **atlas_later_stages.tables(known.later, known.phantom),
    }


def fill(page: Path, found: Mapping[str, str]) -> None:
    """Replace what stands between `<!-- atlas: NAME -->` and `<!-- atlas: end -->`."""
    before = page.read_text(encoding="utf-8")

    def put(match: re.Match[str]) -> str:
        return f"<!-- atlas: {match[1]} -->\n{found[match[1]]}\n<!-- atlas: end -->"

    after = re.sub(
        r"<!-- atlas: ([\w-]+) -->\n.*?<!-- atlas: end -->", put, before, flags=re.DOTALL
    )
    page.write_text(after, encoding="utf-8")


def analyse() -> None:
    """Tables, figures and the pages' numbers."""
    measured = read_csv(MEASURED) if MEASURED.is_file() else []
    known = Evidence(load(PHANTOM), load(NIH), measured, atlas_later_stages.load_studies())
    _write(DIFFERENCES, written_differences(known))
    save_figure(gaps_figure(known), IMAGES / "atlas-gaps.svg")
    save_figure(curves_figure(known), IMAGES / "atlas-curves.svg")
    save_figure(decision_figure(known), IMAGES / "which-weights.svg")
    found = fragments(known)
    for page in (DOCS / "atlas.md", DOCS / "which-weights.md"):
        if page.is_file():
            fill(page, found)
    print(found["verdicts"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["collect", "analyse"], default="analyse")
    parser.add_argument("runs", nargs="*", type=Path, help="folders of studies")
    ask = parser.parse_args()
    if ask.command == "collect":
        collect(ask.runs)
    else:
        analyse()


if __name__ == "__main__":
    main()
