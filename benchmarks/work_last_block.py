"""The same question with the last block trained: the runs of studies/work-last-block.md.

    python -m benchmarks.work_last_block pilot  LABELS.csv              what a run costs here
    python -m benchmarks.work_last_block choose LABELS.csv [--shard i/n]  three rates, 3 splits
    python -m benchmarks.work_last_block run    LABELS.csv [--shard i/n]  the chosen, 20 splits
    python -m benchmarks.work_last_block tables                         what came of it

Runs and tables are those of benchmarks/work_study.py, whose main study trains the classifier alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.work_study import HEAD, WORKS, Design, carry_out_command, read_rows
from benchmarks.work_study_tables import (
    Estimate,
    Results,
    by_cell,
    chosen_rate_table,
    difference,
    difference_of_work,
    estimate_table,
    estimated,
    manipulation_table,
    mean_share,
    registration_lines,
    similarity_verdict,
    verdict_of_work,
)

REGISTRATION = "studies/work-last-block.md"
PARTITION = "natural"

LAST_BLOCK = Design(
    name="work-last-block",
    frozen="_blocks.15",  # the last of 16: it, the last convolution and the classifier are trained
    side=HEAD.side,
    rounds=8,
    training=replace(HEAD.training, lr=3e-4),
    rates=(1e-4, 3e-4, 1e-3),
    pilot_rate=3e-4,
    partitions=(PARTITION,),
    arms=(
        *((work, rule) for work in WORKS for rule in ("fedavg", "uniform")),
        ("epochs", "constant"),
        ("epochs", "feddraw"),
    ),
    splits={
        "pilot": range(9100, 9101),
        "choose": range(3000, 3003),
        "run": range(4000, 4020),
    },
)

# -------------------------------------------------------------------------------------- the answers

L1 = "L1: uniform − FedAvg, equal steps"
L2 = "L2: uniform − FedAvg, equal epochs minus equal steps"
L3 = "L3: FedDRAW − constant, equal epochs"


def contrasts_of_last_block(results: Results) -> dict[str, Estimate]:
    """The three that were named in advance, one family."""
    return estimated(
        {
            L1: difference(results, PARTITION, "steps", "uniform", "fedavg"),
            L2: difference_of_work(results, PARTITION),
            L3: difference(results, PARTITION, "epochs", "feddraw", "constant"),
        }
    )


def verdicts_of_last_block(results: Results, estimates: dict[str, Estimate]) -> dict[str, str]:
    """Weights by their difference, work and similarity only where they were manipulated."""
    verdicts = {}
    for name, estimate in estimates.items():
        if name == L2:
            verdicts[name] = verdict_of_work(results, PARTITION, estimate)
        elif name == L3:
            moved = mean_share(results, (PARTITION, "epochs", "feddraw"), "from_constant")
            verdicts[name] = similarity_verdict(estimate, moved)
        else:
            verdicts[name] = estimate.verdict()
    return verdicts


def tables_of_last_block(folder: Path) -> str:
    """Every table, in Markdown; one that has no runs yet says so."""
    rows = read_rows(LAST_BLOCK, "run", folder)
    results = by_cell(rows)
    estimates = contrasts_of_last_block(results)
    verdicts = verdicts_of_last_block(results, estimates)
    files = [f"docs/data/{LAST_BLOCK.name}-{stage}.csv" for stage in ("choose", "run")]
    parts = [
        registration_lines(REGISTRATION, files),
        f"{len(rows):,} runs",
        f"**Natural sites**\n\n{estimate_table('contrast', estimates, verdicts)}",
        f"**What was done to the weights**\n\n{manipulation_table(results)}",
        f"**Chosen learning rates**\n\n{chosen_rate_table(LAST_BLOCK, folder)}",
    ]
    return "\n\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    carry_out_command(
        "benchmarks.work_last_block", __doc__ or "", LAST_BLOCK, tables_of_last_block, words
    )


if __name__ == "__main__":
    main()
