"""A task small enough to read: two clouds of points, a network with batch normalisation, clients of
unequal size.
"""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.hidden(x))))


def load(partition: int) -> tuple[Tensor, Tensor]:
    """The points of one client: the first has most of them."""
    generator = torch.Generator().manual_seed(int(partition))
    labels = torch.randint(0, 2, (160 if partition == 0 else 40,), generator=generator)
    return torch.randn(len(labels), 8, generator=generator) + 2.0 * labels[:, None], labels


def train(model: nn.Module, features: Tensor, labels: Tensor, lr: float) -> float:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, features: Tensor, labels: Tensor) -> float:
    model.eval()
    return float((model(features).argmax(dim=1) == labels).float().mean())
