"""The classifier of a torch module, found by trying: which scores rise when one of a layer's
outputs does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.core import Entry, Heads
from feddraw.core.classifier_layer import choose_classifier, classifier_in_words
from feddraw.core.model import head_names
from feddraw.errors import UserError, in_one_line
from feddraw.training.network import evaluation_mode, scores_in_output

LEAST_SCORE_CHANGE = 1e-4  # a change of a score, where a layer's output is raised by one
SQUASHED_SCORE = 0.01  # from one, of the change of a score that is such an output itself
# (findings, rows of a layer): by how much scores change with each of its outputs.
ScoreReach = NDArray[np.float32]
ImageShape = tuple[int, int, int]  # channels, height and width of an image


def classifier_of(
    module: nn.Module,
    outputs: int,
    named: str | Sequence[str] = "",
    image: ImageShape | None = None,
    *,
    tell: bool = False,
) -> Heads:
    """The layers that give the scores, checked by trying where the shape of an image is given.

    With `tell`, scores that are no plain outputs of these layers are warned of.
    """
    params = [Entry(name, "param", tuple(p.shape), 0) for name, p in module.named_parameters()]
    if image is None:
        return choose_classifier(params, named, outputs)
    reach = reached_scores(module, outputs, image)
    heads = None if named else _layers_of_scores(reach, outputs)
    heads = heads or choose_classifier(params, named, outputs)
    _check_order(heads, reach, outputs)
    squashed = [
        name
        for name in head_names(heads)
        if name in reach and abs(reach[name].max() - 1) > SQUASHED_SCORE
    ]
    if tell and squashed:
        warnings.warn(
            "the network changes the outputs of its classifier"
            f" {classifier_in_words(heads, outputs)} (with a sigmoid or tanh?): remove this step,"
            " the loss expects raw outputs (logits)",
            stacklevel=2,
        )
    return heads


def reached_scores(module: nn.Module, outputs: int, image: ImageShape) -> dict[str, ScoreReach]:
    """By layer with no more outputs than findings: how the scores change where one of its outputs
    is raised, each in an image of its own.
    """
    _scores_of_noise(module, 1, outputs, image)  # first of all, whether the network fits the data
    reach: dict[str, ScoreReach] = {}
    for name, layer in module.named_modules():
        if _layer_outputs(layer) <= outputs:
            scores = _scores_reached_by(module, layer, outputs, image)
            if scores.size:
                reach[name] = scores
    return reach


def _layer_outputs(layer: nn.Module) -> float:
    """How many numbers a layer makes of its features; infinitely many if it is not that kind of
    layer.
    """
    weights = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
    if len(weights) != 1 or weights[0].shape[2:].numel() != 1:
        return math.inf
    return weights[0].shape[0]


@torch.no_grad()
def _scores_of_noise(module: nn.Module, images: int, outputs: int, image: ImageShape) -> Tensor:
    """The scores of an image of noise, so many times the same."""
    pixels = np.random.default_rng(0).normal(size=(1, *image)).astype(np.float32)
    device = next(module.parameters()).device
    try:
        with evaluation_mode(module):
            batch = torch.from_numpy(pixels).to(device).expand(images, -1, -1, -1).contiguous()
            scores = scores_in_output(module(batch))
    except UserError:
        raise
    except Exception as error:
        reason = in_one_line(error)
        channels, height, width = image
        kind = "a grey image" if channels == 1 else "an image in colour"
        raise UserError(
            f"the network cannot take {kind} of {height} × {width} pixels: {reason}"
        ) from None
    if scores.shape != (images, outputs):
        shape = " × ".join(map(str, scores.shape[1:])) or "one"
        raise UserError(
            f"the network gives {shape} score(s) per image for {outputs} finding(s): it must give"
            " one each"
        )
    return scores


def _scores_reached_by(
    module: nn.Module, layer: nn.Module, outputs: int, image: ImageShape
) -> ScoreReach:
    """How the scores change with each of a layer's outputs, which is raised by one in one image of
    a batch; the first image stays as it is.
    """
    rows = int(_layer_outputs(layer))
    used = False

    def rise(_: nn.Module, __: object, output: object) -> Tensor | None:
        nonlocal used
        if not isinstance(output, Tensor) or len(output) != rows + 1:
            return None
        axis = next((axis for axis in (output.ndim - 1, 1) if output.shape[axis] == rows), 0)
        if not axis:
            return None
        used = True
        shape = [1] * output.ndim
        shape[0] = rows + 1
        shape[axis] = rows
        one_each = torch.from_numpy(np.eye(rows + 1, rows, -1, np.float32))
        return output + one_each.to(output).view(shape)

    hook = layer.register_forward_hook(rise)
    try:
        scores = _scores_of_noise(module, rows + 1, outputs, image)
    finally:
        hook.remove()
    if not used:
        return np.zeros((outputs, rows), np.float32)
    return np.asarray((scores[1:] - scores[0]).abs().cpu().numpy().T)


def _layers_of_scores(reach: Mapping[str, ScoreReach], outputs: int) -> Heads | None:
    """The layers whose outputs each go to one score, in the order of the scores; none if they are
    not all covered.
    """
    heads: list[str] = []
    start = 0
    while start < outputs:
        fitting = [name for name, scores in reach.items() if _goes_to_scores(scores, start)]
        if not fitting:
            return None
        heads.append(fitting[-1])  # of a score that passes through two, the last
        start += reach[heads[-1]].shape[1]
    return heads[0] if len(heads) == 1 else tuple(heads)


def _goes_to_scores(reach: ScoreReach, start: int) -> bool:
    """Whether a layer's outputs go to the scores from `start` on, one to one."""
    findings, rows = reach.shape
    one_to_one = np.eye(findings, rows, -start, dtype=bool)
    return start + rows <= findings and bool(((reach > LEAST_SCORE_CHANGE) == one_to_one).all())


def _check_order(heads: Heads, reach: Mapping[str, ScoreReach], outputs: int) -> None:
    """Refuse a classifier that the scores do not depend on, or whose outputs go to other scores
    than its own.
    """
    start = 0
    for head in head_names(heads):
        if head not in reach:  # a layer within which the scores are made
            return
        reaches = reach[head] > LEAST_SCORE_CHANGE
        if not reaches.any():
            raise UserError(
                f"the scores do not depend on the layer '{head}': it is not the classifier"
            )
        one_score_each = (reaches.sum(axis=0) == 1).all()
        if one_score_each and not _goes_to_scores(reach[head], start):
            raise UserError(
                f"the classifier {classifier_in_words(heads, outputs)}, gives its scores in another"
                " order than the network: list the layers in the order of the findings"
            )
        start += reach[head].shape[1]
