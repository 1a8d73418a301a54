"""A task small enough to read: two clouds of points, a network with batch normalisation, sites of
unequal size.
"""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


def load(site: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(site)
    labels = torch.randint(0, 2, (160 if site == 0 else 40,), generator=generator)
    return torch.randn(len(labels), 8, generator=generator) + 2.0 * labels[:, None], labels


def train(model: nn.Module, features: Tensor, labels: Tensor, lr: float, steps: int = 5) -> int:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    return steps
