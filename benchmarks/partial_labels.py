"""What does it cost if each finding is labelled at only two of four sites, and what does
blank-as-negative cost?

Four ways to train on the same federation: every label known ("full"), each finding labelled at two
sites and unknown at the others ("masked"), and the same with what is unknown taken as negative
("negative"). A control has as many labels as "masked", but of whole images: half of each site's
images have every label, the others none ("half"). Test labels are all known. Results go to a CSV,
one line per run; runs that it holds already are skipped, so it can be stopped and started again.

    python benchmarks/partial_labels.py --rounds 10 --out docs/data/partial-labels.csv
    python benchmarks/partial_labels.py --data nih_sample_28.npz --out docs/data/partial-labels.csv
    python benchmarks/partial_labels.py --out docs/data/partial-labels.csv --summary
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from feddraw.data.dataset import Dataset
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment

SITES = 4
LABELS = ("full", "masked", "negative", "half")
T95 = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}  # by number of seeds


def experiment_of(ask: argparse.Namespace, method: str, seed: int) -> Experiment:
    """Four equal sites, their images random, patients at one site each where they are known."""
    phantom = ask.data == "phantom"
    data = {
        "name": "phantom",
        "size": 28,
        "train": ask.train,
        "validation": 400,
        "test": 2000,
        "seed": seed,
    }
    base = Experiment(
        data=data if phantom else {"name": ask.data, "size": 28},
        scenario={"name": "iid", "clients": SITES, "patient_disjoint": not phantom},
        method=method,
        rounds=ask.rounds,
        engine="serial",
        folds=0 if phantom else 5,
    )
    settings = {
        "seed": seed,
        "partition_seed": seed,
        "training.epochs": ask.epochs,
        "training.batch_size": 32,
    }
    return base.with_settings(settings | {"training.lr": ask.lr})


def labelled(dataset: Dataset, sites: Sequence[np.ndarray], seed: int, labels: str) -> Dataset:
    """The data set as the sites label it: each finding at two of them."""
    if labels == "full":
        return dataset
    pairs = np.random.default_rng(seed).permutation(list(combinations(range(SITES), 2)))
    known = np.ones(dataset.labels.values.shape, dtype=bool)
    for site, rows in enumerate(sites):
        if labels == "half":
            known[np.random.default_rng([seed, site]).permutation(rows)[: len(rows) // 2]] = False
            continue
        for finding in range(known.shape[1]):
            known[rows, finding] = site in pairs[finding % len(pairs)]
    values = np.where(known, dataset.labels.values, 0).astype(np.uint8)
    return replace(
        dataset,
        labels=replace(
            dataset.labels, values=values, known=None if labels == "negative" else known
        ),
    )


def trained(ask: argparse.Namespace, method: str, labels: str, seed: int) -> dict[str, object]:
    """One run: macro test AUC and that of each finding after the last round."""
    began, experiment = time.perf_counter(), experiment_of(ask, method, seed)
    plain = prepare(replace(experiment, method="fedavg"))
    dataset = labelled(plain.dataset, plain.training_rows, seed, labels)
    *_, last = iterate(experiment, dataset=dataset)
    areas = last.metrics.test.auc
    name = Path(ask.data).stem
    about = {
        "data": name,
        "method": method,
        "labels": labels,
        "seed": seed,
        "rounds": ask.rounds,
        "epochs": ask.epochs,
    }
    return about | {
        "auc": round(areas.macro, 6),
        **{f"auc {finding}": round(area, 6) for finding, area in areas.per_class.items()},
        "seconds": round(time.perf_counter() - began, 1),
    }


def key_of(line: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in ("data", "method", "labels", "seed"))


def read(path: Path) -> list[dict[str, object]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def interval(values: Sequence[float]) -> str:
    """Mean and Student's 95 % confidence interval over seeds."""
    mean = float(np.mean(values))
    half = T95.get(len(values), math.nan) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


def summarise(lines: Sequence[dict[str, object]]) -> None:
    """For each data set and method: mean AUCs, and the paired differences between the ways to
    label.
    """
    found = {key_of(line): float(str(line["auc"])) for line in lines}
    for data, method in sorted({key[:2] for key in found}):
        print(f"{data}, {method}")
        for labels in LABELS:
            values = [area for key, area in found.items() if key[:3] == (data, method, labels)]
            if values:
                print(f"  {labels:<22} {np.mean(values):.4f}, {len(values)} seeds")
        for other in ("full", "negative", "half"):
            pairs = [
                (area, found[data, method, other, key[3]])
                for key, area in found.items()
                if key[:3] == (data, method, "masked") and (data, method, other, key[3]) in found
            ]
            if len(pairs) > 1:
                print(f"  masked minus {other:<9} {interval([one - two for one, two in pairs])}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="phantom")
    parser.add_argument("--methods", nargs="+", default=["feddraw"])
    parser.add_argument("--labels", nargs="+", default=list(LABELS), choices=LABELS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--train", type=int, default=8000, help="phantoms to train on")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true", help="only print what the CSV holds")
    ask = parser.parse_args()
    lines = read(ask.out)
    done = {key_of(line) for line in lines}
    wanted = [(m, one, seed) for seed in ask.seeds for m in ask.methods for one in ask.labels]
    todo = [one for one in wanted if (Path(ask.data).stem, one[0], one[1], str(one[2])) not in done]
    for number, one in enumerate([] if ask.summary else todo, start=1):
        line = trained(ask, *one)
        lines.append(line)
        ask.out.parent.mkdir(parents=True, exist_ok=True)
        fields = list(dict.fromkeys(name for each in lines for name in each))
        with ask.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(lines)
        print(
            f"{number}/{len(todo)} {' '.join(map(str, one))}: AUC {line['auc']} in"
            f" {line['seconds']} s",
            flush=True,
        )
    summarise(lines)


if __name__ == "__main__":
    main()
