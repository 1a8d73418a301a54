"""What FedDRAW's similarity follows: small clients' against large ones', from the ledgers of a
study's runs.

    python benchmarks/similarity.py runs/controls [--method feddraw]

For each setting, over its seeds: optimiser steps a round, 1 - similarity to the sent model, and the
weight that a small client gets for each that a large one gets, in the rounds between the first
(size) and the last (uniform).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from feddraw.system.markdown import markdown_table


def ledgers(study: Path, method: str) -> pd.DataFrame:
    """The ledgers of a method's runs, with the setting that each belongs to and who is
    small in it.
    """
    found = []
    for path in sorted(study.glob(f"*_{method}_seed=*/weights.csv")):
        ledger = pd.read_csv(path)
        ledger["setting"], _, ledger["seed"] = path.parent.name.partition(f"_{method}_seed=")
        ledger["small"] = ledger["size"] < ledger["size"].mean()
        found.append(ledger[ledger["round"].between(1, ledger["round"].max() - 1)])
    return pd.concat(found, ignore_index=True)


def summary(ledger: pd.DataFrame) -> pd.DataFrame:
    means = ledger.assign(distance=1 - ledger["similarity"]).groupby(["setting", "seed", "small"])
    by_size = means[["steps", "distance", "weight"]].mean().unstack("small")
    table = pd.DataFrame(
        {
            "steps, large": by_size["steps", False],
            "steps, small": by_size["steps", True],
            "1 - similarity, large": by_size["distance", False],
            "1 - similarity, small": by_size["distance", True],
            "weight, small / large": by_size["weight", True] / by_size["weight", False],
        }
    )
    return table.groupby("setting", sort=False).mean()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--method", default="feddraw")
    chosen = parser.parse_args()
    table = summary(ledgers(chosen.study, chosen.method))
    rows = [[str(setting), *(f"{value:.3g}" for value in row)] for setting, row in table.iterrows()]
    print("\n".join(markdown_table(["setting", *table.columns], rows)))


if __name__ == "__main__":
    main()
