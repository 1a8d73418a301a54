"""Batch gradients at one model, for measuring how much clients differ.

Nothing that trains is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Measurement, Model, Vector, in_layer
from feddraw.training.loop import Examples, Rows, loss_and_gradient
from feddraw.training.network import Network
from feddraw.training.objective import Loss
from feddraw.training.reproducibility import one_thread, seeded_torch

MEASUREMENT_STREAM = 1986  # tells the random draws of a measurement from those of training


def batch_gradients(
    network: Network,
    examples: Examples,
    rows: Rows,
    loss: Loss,
    model: Model,
    how: Measurement,
    layer: str,
    seed: int,
) -> Iterator[Vector]:
    """One gradient for each whole batch, of a layer's parameters in their natural order; none if
    there is but one.

    The loss is a mean over known labels, so a finding's row would be the longer the fewer labels of
    other findings are known. It is scaled to what it would be if all were: its expectation is the
    same for sites that are alike, whatever each of them labels.

    The seed is that of the client's job, from which this draws a stream of its own.
    """
    batches_seed, torch_seed = (
        np.random.SeedSequence([seed, MEASUREMENT_STREAM]).generate_state(2, np.uint64).tolist()
    )
    rng = np.random.default_rng(batches_seed)
    labelled = rows[~np.isnan(examples.targets[rows]).all(axis=1)]  # others have no loss
    chosen = whole_batches(labelled, how.batch_size, how.batches, rng, examples.patients)
    if len(chosen) < 2:
        return
    place = model.layout.find(layer)
    network.load(model)  # its buffers move in training mode; they are loaded anew before every use
    network.module.train(not how.evaluation)
    known = ~np.isnan(examples.targets[labelled])
    complete = bool(known.all())
    rows_of_findings = [] if complete else model.layout.rows_within(layer)
    with one_thread(), seeded_torch(torch_seed >> 1, network.device), _only_layer(network, layer):
        for batch in chosen:
            loss_and_gradient(network, *examples.batch(batch, network.device), loss)
            gradient = network.values(network.grads)[place]
            if not complete:
                known_in_batch = 1 - np.isnan(examples.targets[batch]).mean()
                for row, share in zip(rows_of_findings, known.mean(axis=0), strict=True):
                    if share:
                        gradient[row] *= known_in_batch / share
            yield gradient


def gradient_summary(
    gradients: Iterator[Vector],
    length: int,
    batch_size: int,
    rows: Sequence[NDArray[np.intp]] = (),
) -> tuple[Vector, Vector, Vector]:
    """The mean, the numbers of `core.SPREAD`, and the variance in each of some rows, in one pass;
    zeros where there are no gradients.
    """
    count = 0
    mean = np.zeros(length)
    squares = 0.0
    squares_of_rows = np.zeros(len(rows))
    for gradient in gradients:
        count += 1
        distance_before = gradient - mean
        mean += distance_before / count
        distance_after = gradient - mean
        squares += float(distance_before @ distance_after)
        squares_of_rows += [distance_before[row] @ distance_after[row] for row in rows]
    freedom = max(count - 1, 1)
    variance = batch_size * squares / freedom
    variances = batch_size * squares_of_rows / freedom
    return (
        mean.astype(np.float32),
        np.array([count * batch_size, variance], np.float32),
        variances.astype(np.float32),
    )


def whole_batches(
    rows: Rows,
    size: int,
    most: int,
    rng: np.random.Generator,
    patients: NDArray[np.int64] | None = None,
) -> list[Rows]:
    """Up to so many batches of exactly this size, without replacement.

    Where patients are known, each is in one batch at most: in random order they are cut into groups
    of about as many images, and a batch is drawn from each group. So images of patients with many
    images are as likely to be measured as others; with batches that are filled patient by patient
    they would not be, and sites that are alike would differ.
    """
    order = rng.permutation(rows)
    most = min(most, len(order) // size)
    if patients is None:
        return [order[start : start + size] for start in range(0, most * size, size)]
    _, owner, counts = np.unique(patients[order], return_inverse=True, return_counts=True)
    turn = rng.permutation(len(counts))
    # where the middle of each patient's images is, one patient behind another, doubled
    doubled_middle = np.empty(len(counts), np.int64)
    doubled_middle[turn] = 2 * np.cumsum(counts[turn]) - counts[turn]
    for number in range(most, 1, -1):
        group = (doubled_middle * number // (2 * len(order)))[owner]
        if np.bincount(group, minlength=number).min() >= size:
            return [order[group == batch][:size] for batch in range(number)]
    return []


@contextmanager
def _only_layer(network: Network, layer: str) -> Iterator[None]:
    """Take gradients of one layer's parameters only: for the classifier, little more than a forward
    pass is left.
    """
    prefixes = network.layout.heads if layer == "classifier" else (layer,)
    named = network.module.named_parameters() if layer != "all" else ()
    others = [
        p
        for name, p in named
        if p.requires_grad and not any(in_layer(name, prefix) for prefix in prefixes)
    ]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)
