"""Labels that are not known are left out of loss, gradient, answers, metrics and counts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feddraw.analysis import metrics, statistics
from feddraw.core import Job, Local
from feddraw.data.dataset import FINDINGS, UNKNOWN, Dataset, Labels
from feddraw.datasets.phantom import phantom
from feddraw.errors import UserError
from feddraw.flower.histograms import count
from feddraw.scenarios.dealing import Partition, Shard
from feddraw.scenarios.heterogeneity import counts
from feddraw.training.build import build
from feddraw.training.client import Trainer, group_counts
from feddraw.training.loop import Examples, over_known
from feddraw.training.settings import Training

BCE = torch.nn.functional.binary_cross_entropy_with_logits


@cache
def drawn() -> Dataset:
    return phantom(size=28, train=96, validation=40, test=40)


def hidden(dataset: Dataset, share: float, seed: int = 0) -> Dataset:
    """The same data set with this share of its labels unknown."""
    known = np.random.default_rng(seed).random(dataset.labels.values.shape) >= share
    return with_known(dataset, known)


def with_known(dataset: Dataset, known: NDArray[np.bool_]) -> Dataset:
    values = np.where(known, dataset.labels.values, 0).astype(np.uint8)
    return replace(dataset, labels=replace(dataset.labels, values=values, known=known))


def trainer(targets: NDArray[np.float32], rows: int, asks: tuple[str, ...] = (), **settings: object) -> Trainer:
    data = drawn()
    examples = Examples(data.images, targets, data.mean, data.std)
    how = Training(**{"epochs": 1, "batch_size": 16, "optimizer": "sgd", "lr": 0.05} | settings)  # type: ignore
    builder = partial(build, "compact", len(FINDINGS), {"growth": 4})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Trainer(builder, examples, [np.arange(rows)], how, Local(), asks=asks)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- representation


def test_labels_carry_what_is_known() -> None:
    values = np.array([[1, 0], [0, 1], [0, 0]], np.uint8)
    known = np.array([[True, False], [True, True], [False, False]])
    labels = Labels(values, ("a", "b"), np.array(list("xyz")), known=known)
    assert labels.truth(np.arange(3)).tolist() == [[1, UNKNOWN], [0, 1], [UNKNOWN, UNKNOWN]]
    assert np.array_equal(labels.targets(), [[1, math.nan], [0, 1], [math.nan, math.nan]], equal_nan=True)
    assert labels.known_counts(np.arange(3)).tolist() == [2, 1]
    assert labels.take(np.array([0, 2])).known.tolist() == [[True, False], [False, False]]  # type: ignore[union-attr]
    assert labels.take(np.array([1])).known is None  # all known: the one way to say it
    assert labels.take(np.array([1])).truth(np.array([0])).dtype == np.uint8
    with pytest.raises(ValueError, match="hold a value"):
        Labels(np.ones_like(values), ("a", "b"), labels.names, known=known)
    with pytest.raises(ValueError, match="shape"):
        Labels(values, ("a", "b"), labels.names, known=known[:2])


# ---------------------------------------------------------------------------------------------------- training


def test_loss_is_the_mean_over_known_labels() -> None:
    logits = torch.tensor([[0.0, 2.0], [-1.0, 3.0]], requires_grad=True)
    targets = torch.tensor([[1.0, math.nan], [0.0, math.nan]])
    loss = over_known(BCE, logits, targets)
    assert loss.item() == pytest.approx((math.log(2) + math.log1p(math.exp(-1))) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.allclose(logits.grad, torch.tensor([[-0.25, 0.0], [1 / (1 + math.e) / 2, 0.0]]))


def test_gradient_of_unknown_labels_by_finite_differences() -> None:
    targets = hidden(drawn(), 0.4).labels.targets()
    bench = trainer(targets, 16, asks=("gradient", "loss"), label_smoothing=0.1)
    with torch.no_grad():
        model = bench.network.read()
    rng = np.random.default_rng(1)
    rows = np.arange(16)
    network = bench.network

    def loss_at(params: NDArray[np.float64]) -> float:
        network.params.copy_(network.vector(params.astype(np.float32)))
        network.module.train()
        images, wanted = bench.examples.batch(rows)
        logits = network(images)[0].double()
        known = ~torch.isnan(wanted)
        smoothed = wanted.double() * 0.9 + 0.05
        terms = torch.nn.functional.softplus(logits) - smoothed * logits
        return float(terms[known].sum() / known.sum())

    update, _ = bench.work(Job(0, 1, 0, 5, model), {})
    given = update.extra["gradient"].astype(np.float64)
    step = 1e-3
    for direction in (given, given * rng.integers(0, 2, len(given))):  # steep, so that float32's rounding is small
        unit = direction / np.linalg.norm(direction)
        with torch.no_grad():
            slope = (loss_at(model.params + step * unit) - loss_at(model.params - step * unit)) / (2 * step)
        assert given @ unit == pytest.approx(slope, rel=0.01)


def test_a_batch_without_known_labels_makes_no_step() -> None:
    targets = drawn().labels.targets()
    targets[2:32] = math.nan  # of two batches of 16 at most two images are known
    seen = {trainer(targets, 32).work(Job(0, 1, 0, seed, _start()), {})[0].steps for seed in range(6)}
    assert seen == {1, 2}  # both in one batch, or one in each
    fixed = trainer(targets, 32, steps=5).work(Job(0, 1, 0, 1, _start()), {})[0]
    assert fixed.steps == 5
    targets[:32] = math.nan
    with pytest.raises(UserError, match="none of the 32 training images has a known label"):
        trainer(targets, 32).work(Job(0, 1, 0, 0, _start()), {})


def test_unknown_entries_teach_nothing() -> None:
    """Whatever stood in an unknown label: the classifier's row of a finding that nobody labelled does not move."""
    targets = drawn().labels.targets()
    targets[:, 2] = math.nan
    start = _start()
    trained = trainer(targets, 48).work(Job(0, 1, 0, 0, start), {})[0].model
    for output in range(len(FINDINGS)):
        same = [np.array_equal(trained.params[p], start.params[p]) for p in start.layout.rows_of(output)]
        assert all(same) == (output == 2)


@cache
def _start():  # type: ignore[no-untyped-def]
    return trainer(drawn().labels.targets(), 16).network.read()


def test_answers_are_over_known_labels() -> None:
    targets = drawn().labels.targets()
    targets[:24, 1] = math.nan
    bench = trainer(targets, 48, asks=("loss", "accuracy", "labels"))
    update, _ = bench.work(Job(0, 1, 0, 0, _start()), {})
    assert update.extra["labels"].tolist() == np.nansum(targets[:48], axis=0).tolist()
    logits = np.array([[2.0, -1.0], [-3.0, 1.0], [1.0, 4.0]], np.float32)
    wanted = np.array([[1.0, math.nan], [0.0, 1.0], [math.nan, 0.0]], np.float32)
    found = group_counts(logits, wanted, np.array([0, 1, 1], np.int8))
    # a: one of two known is positive, the higher score is called; b: the higher of 1.0 (positive) and 4.0 (negative)
    assert found.tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 4, 2]


# ---------------------------------------------------------------------------------------------------- metrics, counts


def test_metrics_leave_unknown_labels_out() -> None:
    scores = np.array([0.1, 0.9, 0.4, 0.6, 0.99])
    truth = np.array([0, 1, 1, 0, UNKNOWN], np.int8)
    assert metrics.auc(scores, truth) == 0.75
    assert metrics.best_threshold(scores, truth) == metrics.best_threshold(scores[:4], truth[:4])
    assert metrics.rates(scores, truth, 0.5) == (0.5, 0.5)
    table = metrics.evaluate(
        np.stack([scores, scores], 1), np.stack([truth, np.full(5, UNKNOWN)], 1), ("a", "b"), [0.5, math.nan]
    )
    assert table["auc"]["macro"] == 0.75
    assert table["undefined"] == ["b"]
    weights = np.ones((1, 5))
    both = np.stack([truth, np.full(5, UNKNOWN, np.int8)], 1)
    macro = statistics._macro(statistics.weighted_auc, np.stack([scores] * 2, 1), both, weights, [np.arange(5)])
    assert macro.tolist() == [0.75]
    kinds = count(scores[:, None], np.array([[0], [1], [1], [0], [math.nan]]))
    assert kinds.sum(axis=2).tolist() == [[2], [2]]


def test_counts_of_clients_leave_unknown_labels_out() -> None:
    values = np.array([[1, 0], [0, 0], [0, 0], [0, 1]], np.uint8)
    known = np.array([[True, True], [True, False], [True, True], [False, True]])
    labels = Labels(values, ("a", "b"), np.array(list("wxyz")), known=known)
    partition = Partition("own", (Shard("C1", np.arange(2)), Shard("C2", np.arange(2, 4))), "")
    assert counts(partition, labels).tolist() == [[1, 0, 0], [0, 1, 1]]
