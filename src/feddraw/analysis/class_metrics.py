"""How well images are called one of several classes: everything follows from the confusion matrix,
whose rows are the images' classes and whose columns are what they are called. Pure numpy.

A class without an image has no sensitivity and is left out of means; so is a class without an image
that none is called in the mean of F1. scikit-learn's functions give the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def called_classes(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """1 for the class with the highest score (of equals the first), 0 for the others; NaN for
    images with a score that is not finite. Classes are the last axis.
    """
    highest = np.nan_to_num(scores, nan=-np.inf).argmax(axis=-1)
    called = (highest[..., None] == np.arange(scores.shape[-1])).astype(np.float64)
    called[~np.isfinite(scores).all(axis=-1)] = np.nan
    return np.asarray(called)


def confusion_matrix(
    scores: NDArray[np.floating[Any]], truth: NDArray[np.floating[Any] | np.integer[Any]]
) -> Counts:
    """(classes, classes), from scores and labels (images, classes), of images whose class is known
    (not NaN, and not below zero) and that can be called.
    """
    called = called_classes(scores)
    counted = ~np.isnan(called).any(axis=1) & (truth >= 0).all(axis=1)
    classes = scores.shape[1]
    cells = truth[counted].argmax(axis=1) * classes + called[counted].argmax(axis=1)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def accuracy(confusion: Counts) -> float:
    """The share of images that are called what they are."""
    total = confusion.sum()
    return float(confusion.trace() / total) if total else math.nan


def sensitivities(confusion: Counts) -> Floats:
    """Of each class, the share of its images that are called so; their mean is the balanced
    accuracy.
    """
    return _divided(confusion.diagonal(), confusion.sum(axis=1))


def specificities(confusion: Counts) -> Floats:
    """Of each class, the share of other classes' images that are not called so."""
    others = confusion.sum() - confusion.sum(axis=1)
    called_wrongly = confusion.sum(axis=0) - confusion.diagonal()
    return _divided(others - called_wrongly, others)


def f1_scores(confusion: Counts) -> Floats:
    """Of each class, the harmonic mean of sensitivity and positive predictive value."""
    return _divided(2 * confusion.diagonal(), confusion.sum(axis=0) + confusion.sum(axis=1))


def cohens_kappa(confusion: Counts) -> float:
    """Agreement of calls and classes beyond chance; 0 is chance, 1 is perfect."""
    total = confusion.sum()
    if not total:
        return math.nan
    by_chance = float(confusion.sum(axis=0) @ confusion.sum(axis=1)) / float(total) ** 2
    if by_chance == 1:
        return math.nan
    return (accuracy(confusion) - by_chance) / (1 - by_chance)


def _divided(some: Counts, whole: Counts) -> Floats:
    nothing = np.full(len(whole), np.nan)
    return np.asarray(np.divide(some, whole, out=nothing, where=whole > 0))
