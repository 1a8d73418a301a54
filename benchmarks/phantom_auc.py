"""Are phantoms neither trivial nor hopeless? Train `compact` centrally on them and check each finding's test AUC.

The bar is 64 px, 10,000 training images and seeds 0 to 2, about 15 minutes: python benchmarks/phantom_auc.py
What the laptop preset sees: python benchmarks/phantom_auc.py --size 32 --train 3500 --epochs 15 --seeds 0
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from feddraw.data import FINDINGS, Dataset, Part
from feddraw.data.phantom import LABEL_NOISE, phantom
from feddraw.models import compact

MACRO, EACH = (0.80, 0.93), (0.70, 0.97)


def tensors(dataset: Dataset, part: Part) -> tuple[Tensor, Tensor]:
    rows = dataset.rows[part]
    images = (torch.from_numpy(dataset.images[rows]).float() / 255 - dataset.mean) / dataset.std
    return images[:, None], torch.from_numpy(dataset.labels.values[rows]).float()


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(64):
            optimiser.zero_grad()
            x = images[batch].contiguous(memory_format=torch.channels_last)
            nn.functional.binary_cross_entropy_with_logits(network(x), labels[batch]).backward()
            optimiser.step()


def auc(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    positives, negatives = labels.sum(), (1 - labels).sum()
    return float((rankdata(scores)[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@torch.no_grad()
def test_aucs(network: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    network.eval()
    scores = torch.cat([network(batch) for batch in images.split(500)]).numpy()
    return [auc(score, label) for score, label in zip(scores.T, labels.numpy().T, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--mix", default="chestmnist")
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--label-noise", type=float, default=LABEL_NOISE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    ask = parser.parse_args()
    torch.set_num_threads(1)
    print("seed  macro  " + "  ".join(FINDINGS))
    for seed in ask.seeds:
        data = phantom(ask.size, ask.mix, ask.train, 0, ask.test, ask.label_noise, seed)
        torch.manual_seed(seed)
        network = compact(classes=len(FINDINGS)).to(memory_format=torch.channels_last)
        train(network, *tensors(data, "train"), ask.epochs, seed)
        each = test_aucs(network, *tensors(data, "test"))
        macro = float(np.mean(each))
        held = MACRO[0] <= macro <= MACRO[1] and all(EACH[0] <= value <= EACH[1] for value in each)
        columns = "  ".join(f"{value:{len(name)}.3f}" for value, name in zip(each, FINDINGS, strict=True))
        print(f"{seed:4d}  {macro:.3f}  {columns}  {'within the bar' if held else 'OUTSIDE THE BAR'}", flush=True)


if __name__ == "__main__":
    main()
