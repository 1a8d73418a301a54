"""Numbers that a second implementation found could be broken without a test noticing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from feddraw.analysis import metrics
from feddraw.analysis.bootstrap import LARGE, bootstrap, weighted_auc
from feddraw.core import weighted_sum
from feddraw.experiment.running import run
from feddraw.methods.fedavg import fedavg
from feddraw.server.gate import Gate
from feddraw.tasks.findings import findings
from quadratics import Bowl, play
from small import small
from tiny import cohort_of, initial, through_gate, together, trained


def test_an_optimizer_that_persists_goes_on_counting_its_steps() -> None:
    """One client alone, three rounds of two steps: the same as six steps in one round."""
    bowl = Bowl(np.diag([1.0, 4.0]), [2.0, -1.0])
    start = np.array([0.5, 0.5], np.float32)
    settings = {"optimizer": "adam", "lr": 0.1, "persist_optimizer": True}
    rounds = play(fedavg(), [bowl], start, rounds=3, steps=2, **settings)
    (whole,) = play(fedavg(), [bowl], start, rounds=1, steps=6, **settings)
    assert rounds[-1].memory[0]["optimizer.step"] == 6
    assert rounds[-1].x == pytest.approx(whole.x, abs=1e-6)


def test_influence_is_the_length_of_each_weighted_move() -> None:
    """Weights 3/4 and 1/4 of moves of length 1 and 2: influences (3/4) / (5/4) and (2/4) / (5/4)."""
    cohort = cohort_of([[1.0, 0.0], [0.0, 2.0]], [30, 10])
    method = fedavg()
    result = together(
        method,
        cohort.sent,
        method.init(cohort.sent),
        cohort.updates,
        clients=["North", "East"],
    )
    assert [entry.weight for entry in result.ledger] == pytest.approx([0.75, 0.25])
    assert [entry.influence for entry in result.ledger] == pytest.approx([0.6, 0.4])


def test_images_that_a_client_kept_back_are_called_by_its_own_models_thresholds(
    tmp_path: Path,
) -> None:
    list(run(small(method="alone", holdout=0.3, rounds=2), tmp_path / "run"))
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    kept = load_file(tmp_path / "run" / "predictions.safetensors")
    classes = list(found["test"]["auc"]["per_class"])
    by_others = 0
    for client, name in enumerate(found["clients"]):
        mine = kept["holdout.client"] == client
        scores, truth = kept["holdout.scores"][mine], kept["holdout.truth"][mine]
        geometric_means = [
            findings()
            .evaluate(
                scores,
                truth,
                classes,
                metrics.choose_thresholds(
                    kept["validation.scores"][model], kept["validation.truth"]
                ),
            )
            .gm.macro
            for model in range(len(found["clients"]))
        ]
        reported = found["clients"][name]["holdout"]["gm"]["macro"]
        assert reported == pytest.approx(geometric_means[client], nan_ok=True)
        by_others += reported != pytest.approx(geometric_means[0], nan_ok=True)
    assert by_others  # else this example could not tell


def test_clipping_cuts_the_statistics_of_batch_norm_as_it_cuts_the_parameters() -> None:
    sent, updates = initial(), trained("fedavg").updates[0]
    *others, last = updates
    far = replace(last.model, params=sent.params + 50 * (last.model.params - sent.params))
    accepted, verdicts = through_gate(
        [*others, replace(last, model=far)], sent, len(updates), Gate(clip=1.5)
    )
    keep = verdicts[3].keep
    assert 0 < keep < 0.2
    expected = sent.buffers + keep * (last.model.buffers - sent.buffers)
    assert accepted[3].model.buffers == pytest.approx(expected, rel=1e-5)


def test_statistics_of_batch_norm_that_moved_further_than_the_parameters_are_cut_further() -> None:
    sent, updates = initial(), trained("fedavg").updates[0]
    *others, last = updates
    far = replace(last.model, buffers=sent.buffers + 50 * abs(last.model.buffers - sent.buffers))
    accepted, verdicts = through_gate(
        [*others, replace(last, model=far)], sent, len(updates), Gate(clip=1.5)
    )
    assert verdicts[3].keep_statistics < 0.2 < verdicts[3].keep
    moves = [np.linalg.norm(update.model.buffers - sent.buffers) for update in accepted]
    assert moves[3] < 3 * max(moves[:3])


def test_ties_count_half_in_the_bootstrap_of_many_images() -> None:
    """From `LARGE` images on a replicate is computed from each image's part in the AUC."""
    chance = np.random.default_rng(0)
    truth = chance.integers(0, 2, LARGE)
    scores = (chance.integers(0, 3, LARGE) + truth).astype(np.float64)  # four values: ties abound
    found = bootstrap([scores], truth, np.random.default_rng(1), replicates=20)[0]
    assert found[0] == pytest.approx(metrics.auc(scores, truth), abs=1e-12)
    # the same patients drawn, the AUC of each replicate by all its pairs
    drawn = np.random.default_rng(1).integers(LARGE, size=(20, LARGE))
    weights = np.stack([np.bincount(row, minlength=LARGE) for row in drawn]).astype(np.float64)
    assert found[1:] == pytest.approx(weighted_auc(scores, truth, weights), abs=1e-3)


def test_a_weighted_sum_is_taken_in_float64() -> None:
    """10⁸ + 1 - 10⁸ is 1; in float32 the one is lost beside 10⁸.

    One column would not tell: BLAS sums a single one in its registers, which hold more.
    """
    rows = np.repeat(np.array([[1e8], [1.0], [-1e8]], np.float32), 100, axis=1)
    total = weighted_sum(np.ones(3), rows)
    assert total.dtype == np.float32
    assert total.tolist() == [1.0] * 100
    fine = np.full((1, 3), 1 + 2.0**-40)  # rows of float64 stay so on the way
    assert weighted_sum(np.ones(1), fine).tolist() == fine[0].tolist()
