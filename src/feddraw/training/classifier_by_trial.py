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


def classifier_of(
    module: nn.Module,
    outputs: int,
    named: str | Sequence[str] = "",
    side: int = 0,
    *,
    tell: bool = False,
) -> Heads:
    """The layers that give the scores, checked; `side` is that of an image in pixels, 0 where it is
    not known.

    With `tell`, scores that are no plain outputs of these layers are warned of.
    """
    params = [Entry(name, "param", tuple(p.shape), 0) for name, p in module.named_parameters()]
    if not side:
        return choose_classifier(params, named, outputs)
    reach = reached_scores(module, outputs, side)
    found = None if named else _layers_of_scores(reach, outputs)
    heads = found or choose_classifier(params, named, outputs)
    _check_classifier_order(heads, reach, outputs)
    names = head_names(heads)
    if tell and any(
        name in reach and abs(reach[name].max() - 1) > SQUASHED_SCORE for name in names
    ):
        more = f"changes the outputs of its classifier {classifier_in_words(heads, outputs)}"
        why = "remove this step, the loss expects raw outputs (logits)"
        warnings.warn(f"the network {more} (with a sigmoid or tanh?): {why}", stacklevel=2)
    return heads


def reached_scores(module: nn.Module, outputs: int, side: int) -> dict[str, ScoreReach]:
    """By layer with no more outputs than findings: each of its outputs is raised in an image of its
    own.
    """
    # First of all, whether the network fits the data.
    _classifier_scores_of_noise(module, 1, outputs, side)
    layers = {
        name: layer for name, layer in module.named_modules() if _layer_outputs(layer) <= outputs
    }
    reached = {
        name: _scores_reached_by(module, layer, outputs, side) for name, layer in layers.items()
    }
    return {name: found for name, found in reached.items() if found.size}


def _layer_outputs(layer: nn.Module) -> float:
    """How many numbers a layer makes of its features; infinitely many if it is not that kind of
    layer.
    """
    own = [p for p in layer.parameters(recurse=False) if p.ndim > 1]
    return own[0].shape[0] if len(own) == 1 and own[0].shape[2:].numel() == 1 else math.inf


@torch.no_grad()
def _classifier_scores_of_noise(module: nn.Module, images: int, outputs: int, side: int) -> Tensor:
    """Of the same image of noise, so many times."""
    pixels = np.random.default_rng(0).normal(size=(1, 1, side, side)).astype(np.float32)
    device = next(module.parameters()).device
    try:
        with evaluation_mode(module):
            batch = torch.from_numpy(pixels).to(device).expand(images, -1, -1, -1).contiguous()
            scores = scores_in_output(module(batch))
    except UserError:
        raise
    except Exception as error:
        reason = in_one_line(error)
        raise UserError(
            f"the network cannot take a grey image of {side} × {side} pixels: {reason}"
        ) from None
    if scores.shape != (images, outputs):
        shape = " × ".join(map(str, scores.shape[1:])) or "one"
        raise UserError(
            f"the network gives {shape} score(s) per image for {outputs} finding(s): it must give"
            " one each"
        )
    return scores


def _scores_reached_by(module: nn.Module, layer: nn.Module, outputs: int, side: int) -> ScoreReach:
    rows = int(_layer_outputs(layer))
    raised = []

    def rise(_: nn.Module, __: object, output: object) -> Tensor | None:
        if not isinstance(output, Tensor) or len(output) != rows + 1:
            return None
        axis = next((a for a in (output.ndim - 1, 1) if output.shape[a] == rows), 0)
        if not axis:
            return None
        shape = [rows + 1 if a == 0 else rows if a == axis else 1 for a in range(output.ndim)]
        raised.append(axis)
        return output + torch.from_numpy(np.eye(rows + 1, rows, -1, np.float32)).to(output).view(
            shape
        )

    hook = layer.register_forward_hook(rise)
    try:
        scores = _classifier_scores_of_noise(module, rows + 1, outputs, side)
    finally:
        hook.remove()
    if not raised:  # it was not used
        return np.zeros((outputs, rows), np.float32)
    return np.asarray((scores[1:] - scores[0]).abs().cpu().numpy().T)


def _layers_of_scores(reach: Mapping[str, ScoreReach], outputs: int) -> Heads | None:
    """The layers whose outputs each go to one score, in the order of the scores; none if they are
    not all covered.
    """
    heads = list[str]()
    start = 0
    while start < outputs:
        fitting = [name for name, one in reach.items() if _goes_to_scores(one, start)]
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


def _check_classifier_order(heads: Heads, reach: Mapping[str, ScoreReach], outputs: int) -> None:
    """Refuse a classifier that the scores do not depend on, or whose outputs go to other scores
    than its own.
    """
    start = 0
    for head in head_names(heads):
        if head not in reach:  # a layer within which the scores are made
            return
        if not (reach[head] > LEAST_SCORE_CHANGE).any():
            raise UserError(
                f"the scores do not depend on the layer '{head}': it is not the classifier"
            )
        if ((reach[head] > LEAST_SCORE_CHANGE).sum(axis=0) == 1).all() and not _goes_to_scores(
            reach[head], start
        ):
            wrong = (
                f"{classifier_in_words(heads, outputs)}, gives its scores in another order than the"
                " network"
            )
            raise UserError(f"the classifier {wrong}: list the layers in the order of the findings")
        start += reach[head].shape[1]
