"""Run folders made up by hand, without training: what a run would have written, with metrics that a
test chooses.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import save_file

from feddraw.core.schedules import schedule
from feddraw.results.ledger_table import LEDGER_COLUMNS
from feddraw.system.file_writing import json_values

FINDINGS = ("Atelectasis", "Cardiomegaly", "Effusion")


def make_run(
    path: Path,
    *,
    method: str = "feddraw",
    scenario: str = "CHM-2",
    seed: int = 0,
    auc: float = 0.8,
    gm: float | None = None,
    sizes: Sequence[int] = (100, 100, 100, 500),
    clients: Sequence[str] = (),
    rounds: int = 6,
    settings: Mapping[str, Any] = {},
    alone: Sequence[float] = (),
    undefined: str = "",
    without_gm: str = "",
    few: str = "",
    images: int = 0,
    patients: bool = True,
    finished: bool = True,
) -> Path:
    """A run's folder. `settings` are dotted paths; `alone` the test AUC of each client's own model.

    One finding can have no AUC, one no GM, and one few test images.
    """
    path.mkdir(parents=True)
    names = list(clients) or [f"C{i + 1}" for i in range(len(sizes))]
    table = _table(method, scenario, seed, rounds, settings)
    positives = {
        name: [size // (3 + c) for c in range(len(FINDINGS))]
        for name, size in zip(names, sizes, strict=True)
    }
    table["partition"] = {
        "scenario": scenario,
        "sha256": f"{scenario}-{seed}".encode().hex().ljust(64, "0"),
        "findings": list(FINDINGS),
        "sizes": dict(zip(names, sizes, strict=True)),
        "positives": positives,
    }
    if few:
        columns = {"images": 100, "negatives": [50] * len(FINDINGS)}
        columns["positives"] = [3 if finding == few else 50 for finding in FINDINGS]
        table["partition"]["splits"] = dict.fromkeys(("train", "validation", "test"), columns)
    (path / "experiment.toml").write_bytes(tomli_w.dumps(table).encode())
    (path / "environment.json").write_text(
        json.dumps({"python": "3.12.3", "packages": {"feddraw": "0.1.0"}})
    )
    _write_ledger(path / "weights.csv", method, sizes, names, rounds, seed)
    rng = np.random.default_rng([seed, len(method)])
    curve = auc - 0.2 * np.exp(-np.arange(rounds) / 2) + 0.005 * rng.standard_normal(rounds)
    lines = [
        log_line(t, validation={"macro": float(a), "per_class": {}}) for t, a in enumerate(curve)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        scores = scored(auc, auc - 0.07 if gm is None else gm, undefined)
        if without_gm:
            scores["gm"]["per_class"][without_gm], scores["undefined"] = math.nan, [without_gm]
        own = {
            name: {"test": scored(area, area - 0.07)}
            for name, area in zip(names, alone, strict=bool(alone))
        }
        metrics = {"round": rounds - 1, "test": scores, "validation": scores, "clients": own}
        (path / "metrics.json").write_text(json.dumps(json_values(metrics)))
        if images:
            write_predictions(path, auc, seed, images, patients, models=len(alone))
    return path


def log_line(round: int, **more: Any) -> dict[str, Any]:
    """A round's line of the log."""
    return {
        "round": round,
        "loss": 1 / (round + 1),
        "model": "",
        "seconds": {},
        "client_seconds": {},
        "time": "2026-11-17T05:54:07+00:00",
    } | more


def _table(
    method: str, scenario: str, seed: int, rounds: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    table: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "partition_seed": seed,
        "holdout": 0.0,
        "engine": "serial",
        "workers": 0,
        "data": {"name": "phantom", "size": 28, "train": 800},
        "scenario": {"name": scenario, "scale": 0.02},
        "model": {"name": "compact", "growth": 8},
        "method": {"name": method},
        "training": {"lr": 1e-3, "epochs": 2},
    }
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if name:
            table.setdefault(section, {})[name] = value
        else:
            table[section] = value
    return table


def scored(auc: float, gm: float, undefined: str = "") -> dict[str, Any]:
    """Metrics whose findings lie around their macro value; one finding can be undefined."""
    nudges = dict(zip(FINDINGS, (-0.03, 0.0, 0.03), strict=True))
    areas, means = (
        {f: math.nan if f == undefined else v + d for f, d in nudges.items()} for v in (auc, gm)
    )
    rates = dict.fromkeys(FINDINGS, 0.7)
    return {
        "auc": {"macro": auc, "per_class": areas},
        "gm": {"macro": gm, "per_class": means},
        "sensitivity": rates,
        "specificity": rates,
        "thresholds": dict.fromkeys(FINDINGS, 0.5),
        "undefined": [undefined] if undefined else [],
    }


def _write_ledger(
    path: Path, method: str, sizes: Sequence[int], names: Sequence[str], rounds: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    small = [size < np.mean(sizes) for size in sizes]
    similar = [[(0.97 if s else 0.80) + 0.01 * rng.random() for s in small] for _ in range(rounds)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, LEDGER_COLUMNS, restval="")
        writer.writeheader()
        for row in schedule(rounds=rounds, sizes=sizes, similarities=similar, clients=names):
            for client in row["clients"]:
                line = {
                    "round": row["round"],
                    "client": client["client"],
                    "size": client["size"],
                    "steps": 2,
                }
                if method == "feddraw":
                    beta = "" if row["beta"] is None else row["beta"]
                    line |= client | {"gamma": row["gamma"], "beta": beta}
                else:
                    line["weight"] = client["prior"] if method == "fedavg" else 1 / len(names)
                writer.writerow(line | {"influence": 1 / len(names), "status": "weighted"})


def write_predictions(
    path: Path, auc: float, seed: int, images: int, patients: bool, models: int = 0
) -> None:
    """Scores of about the AUC asked for; the truth and the patients are the same for all
    methods.
    """
    truth = (np.random.default_rng(seed).random((images, len(FINDINGS))) < 0.3).astype(np.uint8)
    rng = np.random.default_rng([seed, int(auc * 1000)])
    noise = rng.standard_normal((max(models, 1), images, len(FINDINGS)))
    scores = (2.2 * (auc - 0.5) * 2 * truth + noise).astype(np.float32)
    tensors = {"test.scores": scores if models else scores[0], "test.truth": truth}
    if patients:
        tensors["test.patients"] = (np.arange(images) // 2).astype(np.int64)
    tensors |= {name.replace("test", "validation"): values for name, values in tensors.items()}
    about = {"classes": list(FINDINGS), "test": f"images of seed {seed}"}
    save_file(tensors, path / "predictions.safetensors", {"feddraw": json.dumps(about)})
