"""Making a network with a frozen part: it is cut, tried against the whole, and remembered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from feddraw.core import Heads
from feddraw.errors import UserError, in_one_line
from feddraw.training.network import Build, evaluation_mode, scores_in_output
from feddraw.training.network_cut import NOISE_SEED, Cut, find_cut, noise_image
from feddraw.training.partly_frozen import FeatureExtractor, FrozenInPlace, TrainedPart
from feddraw.training.reproducibility import one_thread

# Of the largest score: by how much the scores of a cut network may differ from those of the whole.
LARGEST_DIFFERENCE = 1e-4


@dataclass(frozen=True, eq=False)
class _TriedCut:
    """A cut that gives the scores of the whole network, and how the trained part has to run."""

    cut: Cut
    row_per_image: bool


# A run makes its network several times, and finding and trying a cut takes longer than that.
_TRIED: dict[str, _TriedCut] = {}


def build_partly_frozen(
    build: Build,
    layer: str,
    side: int,
    *,
    channels: int = 1,
    projection: bool = False,
    from_features: bool = True,
    pretrained: bool = False,
) -> tuple[nn.Module, Heads]:
    """A network with what comes before a layer frozen: a `TrainedPart`, or `FrozenInPlace` if it is
    not to run `from_features`.
    """
    module, classifier = build(pretrained=pretrained)
    if not from_features:
        cut = find_cut(module, classifier, layer, side, projection, channels)
        return FrozenInPlace(module, cut), classifier
    key = _key(build, layer, (channels, side), projection)
    tried = _TRIED.get(key)
    if tried:
        part = TrainedPart(module, tried.cut, side, channels, row_per_image=tried.row_per_image)
        return part, classifier
    cut = find_cut(module, classifier, layer, side, projection, channels)
    part = _tried_part(module, cut, side, channels)
    if isinstance(build, partial):
        _TRIED[key] = _TriedCut(cut, part.row_per_image)
    return part, classifier


def _key(build: Build, layer: str, image: tuple[int, int], projection: bool) -> str:
    """What a cut is remembered by: the function that makes the network with its arguments, as text,
    for a network's settings are a dictionary, which cannot be a key.

    Of another function than a `partial` the text is an address, at which another may lie later;
    cuts of these are not remembered.
    """
    return repr((build, layer, image, projection))


def _tried_part(module: nn.Module, cut: Cut, side: int, channels: int) -> TrainedPart:
    """The trained part in the way of running that gives the scores of the whole network."""
    # others than the cut was found with
    images = noise_image(side, images=2, seed=NOISE_SEED + 1, channels=channels)
    with one_thread(), torch.no_grad(), evaluation_mode(module):
        expected = scores_in_output(module(images)).clone()
        features = FeatureExtractor(module, cut.layers[0])(images)
    part = TrainedPart(module, cut, side, channels)
    problem = _why_other_scores(part, features, expected)
    if problem:
        part.row_per_image = True
        problem = _why_other_scores(part, features, expected)
    if problem:
        raise UserError(
            f"the network cannot be cut at '{cut.layers[0]}': {problem}; choose another layer"
        )
    return part


def _why_other_scores(part: TrainedPart, features: Tensor, expected: Tensor) -> str | None:
    """Why a trained part does not give the scores of the whole network; None if it does."""
    try:
        with one_thread(), torch.no_grad(), evaluation_mode(part):
            scores = scores_in_output(part(features))
            difference = float((scores - expected).abs().max())
    except Exception as error:  # the network's own code can fail in any way
        return f"what follows does not run on features alone ({in_one_line(error)})"
    if difference > LARGEST_DIFFERENCE * (1 + float(expected.abs().max())):
        return "its scores depend on more than this layer's input"
    return None


def takes_features(build: Build) -> bool:
    """Whether a function makes a network without its frozen part."""
    return (
        isinstance(build, partial)
        and build.func is build_partly_frozen
        and bool(build.keywords.get("from_features", True))
    )
