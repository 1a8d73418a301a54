"""A site's MONAI bundle as a federated client: weights in, weights, size and steps out.

It knows nothing of feddraw.
"""

from pathlib import Path

from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject
from torch import Tensor

BUNDLE = Path(__file__).parent / "bundle"


def open_algo(site: int) -> MonaiAlgo:
    algo = MonaiAlgo(
        str(BUNDLE),
        send_weight_diff=False,
        config_evaluate_filename=None,
        train_kwargs={"site": site},
    )
    algo.initialize({ExtraItems.CLIENT_NAME: f"site-{site + 1}"})
    return algo


def train(algo: MonaiAlgo, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], int, int]:
    """The trained weights, the number of images, and the optimiser steps of this round."""
    algo.train(ExchangeObject(weights=weights))
    found = algo.get_weights()
    steps = found.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS]
    return dict(found.weights), len(algo.train_workflow.train_dataset), steps
